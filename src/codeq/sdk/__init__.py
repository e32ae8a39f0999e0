"""How a program uses the queue: one set of verbs for a server and for a store in the same process, and workers.

Imports domain and wire only.
"""
