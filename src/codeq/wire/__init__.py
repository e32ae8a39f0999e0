"""Which messages HTTP requests and responses contain, and how they become values of the domain.

Imports domain. Clients and the pipeline know the service by this package alone.
"""
