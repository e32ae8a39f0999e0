"""How webhooks leave the server: `sender.py` signs and sends one, `dispatcher.py` sends the deliveries of the queue."""
