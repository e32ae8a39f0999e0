"""Found by PySpark by its name: makes `format("codeq-events")` known to every session."""

from codeq.pipeline.connector.source import EventsSource as DefaultSource

__all__ = ["DefaultSource"]
