"""An image shop: a web application takes orders, and workers resize, fetch and bill, whatever happens to them."""
