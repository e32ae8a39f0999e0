"""Found by PySpark by its name: makes `format("codeq")` known to every session."""

from codeq.pipeline.connector.sink import TaskSink as DefaultSource

__all__ = ["DefaultSource"]
