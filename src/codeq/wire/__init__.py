"""What travels over HTTP. Clients and the pipeline know the service by this package alone."""
