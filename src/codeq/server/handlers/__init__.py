"""The handlers: parse, call the use case, render. No rule of the queue is written here."""
