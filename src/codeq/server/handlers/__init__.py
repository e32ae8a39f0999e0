"""What each route does: parse, call the use case, render. No rule of the queue is here.

Imports usecases, wire and the rest of the server, but no engine.
"""
