"""codeQ on Spark: reads the event log, enqueues tasks, works on tasks, and builds the lake.

Imports point one way: report, audit and worker to lake and connector, and these to the client.

from codeq.pipeline import make_session, register

spark = make_session()
register(spark)
spark.read.format("codeq-events").option("endpoint", "http://127.0.0.1:8080").load()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from codeq.pipeline.connector.schema import event_schema
    from codeq.pipeline.connector.write_summary import last_write_summary
    from codeq.pipeline.session import make_session
    from codeq.pipeline.worker.work import work

__all__ = ["event_schema", "last_write_summary", "make_session", "register", "work"]

_MODULE_OF = {
    "event_schema": "codeq.pipeline.connector.schema",
    "last_write_summary": "codeq.pipeline.connector.write_summary",
    "make_session": "codeq.pipeline.session",
    "work": "codeq.pipeline.worker.work",
}


def register(spark: "SparkSession") -> None:
    """Registers the formats `codeq-events` and `codeq` in a session that has not found them by itself."""
    from codeq.pipeline.connector.sink import TaskSink  # noqa: PLC0415 - PySpark takes a second to import
    from codeq.pipeline.connector.source import EventsSource  # noqa: PLC0415

    spark.dataSource.register(EventsSource)
    spark.dataSource.register(TaskSink)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
