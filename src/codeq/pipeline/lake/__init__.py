"""How events become tables: bronze (the events), silver (deliveries and tasks) and gold (figures), as Delta.

Imports the connector, the client and the session of the pipeline; never the worker, the audit or the report.
"""
