"""The rules of the queue: what a task is, how it moves, and which values are valid.

Pure values and functions. Imports msgspec and the standard library, without I/O, clock or randomness.
"""
