"""How Spark works on tasks: claims them on executors, runs a function on them, submits the results.

Imports the client and the session of the pipeline, and the SDK; never the connector, the lake, the audit or the report.
"""
