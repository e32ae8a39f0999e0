"""How does a program use the queue? One set of verbs for a server (over HTTP) and for a store in the same process, and
workers. Imports `domain` and `wire` only.
"""
