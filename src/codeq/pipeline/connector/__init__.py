"""How Spark reads the event log (`codeq-events`) and writes tasks (`codeq`).

Imports the client of the pipeline, the wire and the SDK; never the lake, the worker, the audit or the report.
"""
