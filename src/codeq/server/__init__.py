"""How the verbs of the queue are reached over HTTP. Imports domain, store, usecases and wire."""
