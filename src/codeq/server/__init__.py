"""codeQ as a service: how the verbs of the queue are reached over HTTP."""
