"""What each verb of the queue does, one file per verb: check the input, ask the lifecycle, commit, flush.

Imports domain and store.interface. It never names an engine, a clock or a source of randomness.
"""
