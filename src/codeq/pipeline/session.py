"""A Spark session that fits where it runs. Code that has a session of its own needs none of this."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from codeq.pipeline import java

EVERYWHERE: dict[str, str] = {
    # Times are UTC, and stored so that every reader of Parquet understands them.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What is written apart by its kind needs no sorting first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
_COLLECTOR = "spark.driver.extraJavaOptions"
_GC = re.compile(r"-XX:\+Use\w*GC\b")
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
LOCAL: dict[str, str] = {
    **EVERYWHERE,
    # Loopback only: by default Spark listens on every network of the machine.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A shuffle on one machine gains nothing from 200 partitions.
    "spark.sql.shuffle.partitions": str(max(2, min(os.cpu_count() or 2, 16))),
    "spark.driver.memory": "2g",
    _COLLECTOR: "-XX:+UseParallelGC",
    # With so few partitions there is nothing to adapt, and looking for it takes longer than small jobs do.
    "spark.sql.adaptive.enabled": "false",
    # A run of the pipeline compiles some 200 pieces of code; the default forgets the first before it comes to the last.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Noting the line of Python behind every expression takes several calls of Java for each.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.log.level": "ERROR",
}
"""Compression of the heap is left to Java: two gigabytes hold the driver and both executors of a small machine."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the program it runs: where and how Spark runs has been said there."""
_RANGE = 1_000_000
"""Longer than any cluster is wide."""


def make_session(
    master: str | None = None, app: str = "codeq", *, secrets: Any = None, **settings: Any
) -> SparkSession:
    """The session that is active, left as it is; or a new one. `settings` win: `spark_ui_enabled=True` is
    `spark.ui.enabled`, and names with dots can be given by `**{"spark.ui.enabled": True}`. `secrets` are variables
    for the environment of the executors, a dictionary; a narrower type would refuse settings given by `**`.

    Without a master it is what SPARK_REMOTE or spark-submit say, else this machine. `sc://host` is a server of Spark
    Connect. On a cluster, spark-submit and `spark-defaults.conf` decide all that `settings` leave open.
    A session that exists keeps its settings: nothing of a user's own session is changed here.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    named = _named(settings)
    remote = os.environ.get("SPARK_REMOTE") if master is None else master if master.startswith("sc://") else None
    if remote is None and master is None and _SUBMITTED in os.environ:
        return _completed(_made(SparkSession.builder, named))
    place = remote or master or "local[*]"
    is_local = place.startswith("local")
    if not place.startswith("sc://"):
        _prepare(is_local=is_local)
    if remote is not None:
        return _made(SparkSession.builder.remote(remote), {**(_local() if is_local else EVERYWHERE), **named})
    whole = {**(_local() if is_local else {}), **named, "spark.master": place, "spark.app.name": app}
    if secrets:
        # As settings they would be on the command line of Java, where everybody on the machine can read them.
        with _starting_java():
            SparkContext(conf=SparkConf().setAll(list(whole.items())), environment=dict(secrets))
    made = _made(SparkSession.builder, whole)
    return made if is_local else _completed(made)


def tasks_at_once(spark: SparkSession) -> int:
    """How many tasks Spark runs side by side. Spark Connect does not say, but cuts a range into as many pieces."""
    if hasattr(spark, "sparkContext"):
        return int(spark.sparkContext.defaultParallelism)
    pieces = spark.range(_RANGE).select(f.spark_partition_id().alias("piece"))
    return 1 + int(pieces.agg(f.max("piece")).collect()[0][0])


def _prepare(*, is_local: bool) -> None:
    """Set what Java and the processes of Python take from the environment."""
    java.use_java()
    # Workers would otherwise run the first `python3` of the path, which knows neither pyarrow nor codeQ.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _made(builder: SparkSession.Builder, settings: dict[str, str]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _starting_java():
        return builder.getOrCreate()


def _local() -> dict[str, str]:
    """LOCAL, but for a collector of garbage where the environment names one: Java does not start with two."""
    said = " ".join(os.environ.get(name, "") for name in _JAVA_OPTIONS)
    return {name: value for name, value in LOCAL.items() if name != _COLLECTOR or not _GC.search(said)}


@contextmanager
def _starting_java() -> Iterator[None]:
    try:
        yield
    except PySparkRuntimeError as fault:
        if "JAVA_GATEWAY_EXITED" not in str(fault):
            raise
        raise java.NoJava(f"{java.describe()} does not start; what it said is above") from None


def _completed(spark: SparkSession) -> SparkSession:
    """Fill in what nobody has set."""
    said = dict(spark.sparkContext.getConf().getAll())
    for name, value in EVERYWHERE.items():
        if name not in said:
            spark.conf.set(name, value)
    return spark


def _named(settings: dict[str, Any]) -> dict[str, str]:
    named = {name if "." in name else name.replace("_", "."): value for name, value in settings.items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in named.items()}
