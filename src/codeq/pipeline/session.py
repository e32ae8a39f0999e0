"""A Spark session with defaults that fit one machine. Code that has a session of its own needs none of this."""

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from codeq.pipeline import java

LOCAL: dict[str, str] = {
    # Loopback only: by default Spark listens on every network of the machine.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Times are UTC, and stored so that every reader of Parquet understands them.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A shuffle on one machine gains nothing from 200 partitions.
    "spark.sql.shuffle.partitions": str(max(2, min(os.cpu_count() or 2, 16))),
    "spark.driver.memory": "2g",
    # What is written apart by its kind needs no sorting first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.log.level": "ERROR",
}
"""Compression of the heap is left to Java: two gigabytes hold the driver and both executors of a small machine."""


def make_session(master: str = "local[*]", app: str = "codeq", **settings: Any) -> SparkSession:
    """The session that is active, left as it is; or a new one. `settings` win: `spark_ui_enabled=True` is
    `spark.ui.enabled`, and names with dots can be given by `**{"spark.ui.enabled": True}`.

    A session that exists keeps its settings: nothing of a user's own session is changed here.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    java.use_java()
    # Workers would otherwise run the first `python3` of the path, which knows neither pyarrow nor codeQ.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in {**LOCAL, **_named(settings)}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _named(settings: dict[str, Any]) -> dict[str, str]:
    named = {name if "." in name else name.replace("_", "."): value for name, value in settings.items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in named.items()}
