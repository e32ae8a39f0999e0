"""Makes a Spark session with settings for where it runs. Programs that have a session do not need this."""

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

COMMON_SETTINGS: dict[str, str] = {
    # Times are UTC, and stored in the type that every reader of Parquet understands.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
_GC_SETTING = "spark.driver.extraJavaOptions"
_GC_FLAG = re.compile(r"-XX:\+Use\w*GC\b")
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
LOCAL_SETTINGS: dict[str, str] = {
    **COMMON_SETTINGS,
    # Loopback only: by default Spark listens on every network interface.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A shuffle on one machine gains nothing from 200 partitions.
    "spark.sql.shuffle.partitions": str(max(2, min(os.cpu_count() or 2, 16))),
    "spark.driver.memory": "2g",
    _GC_SETTING: "-XX:+UseParallelGC",
    # With so few partitions there is nothing to adapt, and the check takes longer than a small job.
    "spark.sql.adaptive.enabled": "false",
    # A run of the pipeline compiles some 200 pieces of code, more than the default cache holds.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Recording the line of Python behind every expression takes several calls to Java for each.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.log.level": "ERROR",
}
"""Two gigabytes hold the driver and both executors of a small machine."""

_REDACTED = "(?i)secret|password|token|access[._]?key|account[._]?key|storage[._]?key|credential"
"""Spark's own pattern of what its pages and its event log do not show, with the names of the stores' variables."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the program it runs: it has chosen master and settings already."""
_PROBE_ROWS = 1_000_000
"""More rows than any cluster has cores."""


def make_session(
    master: str | None = None, app: str = "codeq", *, secrets: Any = None, **settings: Any
) -> SparkSession:
    """Returns the active session unchanged, or makes a new one.

    `settings` win over all others: `spark_ui_enabled=True` is `spark.ui.enabled`, and names with dots can be given as
    `**{"spark.ui.enabled": True}`. `secrets` is a dictionary of environment variables for the executors; its type is
    Any, because a narrower one would refuse settings given by `**`.

    Without `master`, SPARK_REMOTE or spark-submit decide, else Spark runs on this machine. `sc://host` is a Spark
    Connect server. On a cluster, spark-submit and `spark-defaults.conf` decide everything that `settings` leave open.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    named = _setting_names(settings)
    remote = os.environ.get("SPARK_REMOTE") if master is None else master if master.startswith("sc://") else None
    if remote is None and master is None and _SUBMITTED in os.environ:
        return _with_common_settings(_build(SparkSession.builder, named))
    target = remote or master or "local[*]"
    is_local = target.startswith("local")
    if not target.startswith("sc://"):
        _prepare_environment(is_local=is_local)
    if remote is not None:
        defaults = _local_settings() if is_local else COMMON_SETTINGS
        return _build(SparkSession.builder.remote(remote), {**defaults, **named})
    all_settings = {**(_local_settings() if is_local else {}), **named, "spark.master": target, "spark.app.name": app}
    if secrets:
        # As settings they would be on the command line of Java, which every user of the machine can read.
        all_settings.setdefault("spark.redaction.regex", _REDACTED)
        with _java_errors():
            SparkContext(conf=SparkConf().setAll(list(all_settings.items())), environment=dict(secrets))
    session = _build(SparkSession.builder, all_settings)
    return session if is_local else _with_common_settings(session)


def parallelism_of(spark: SparkSession) -> int:
    """Returns how many tasks Spark runs in parallel. Spark Connect does not expose it, but splits a range into as many
    partitions.
    """
    if hasattr(spark, "sparkContext"):
        return int(spark.sparkContext.defaultParallelism)
    partitions = spark.range(_PROBE_ROWS).select(f.spark_partition_id().alias("partition"))
    return 1 + int(partitions.agg(f.max("partition")).collect()[0][0])


def _prepare_environment(*, is_local: bool) -> None:
    """Sets the environment variables that Java and the Python processes of Spark read."""
    java.use_java()
    # Workers would otherwise run the first `python3` of the path, which may have neither pyarrow nor codeQ.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _build(builder: SparkSession.Builder, settings: dict[str, str]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _java_errors():
        return builder.getOrCreate()


def _local_settings() -> dict[str, str]:
    """LOCAL_SETTINGS, without the garbage collector if the environment chooses one: Java does not start with two."""
    options = " ".join(os.environ.get(name, "") for name in _JAVA_OPTIONS)
    return {
        name: value for name, value in LOCAL_SETTINGS.items() if name != _GC_SETTING or not _GC_FLAG.search(options)
    }


@contextmanager
def _java_errors() -> Iterator[None]:
    """Raises NoJava if Java does not start."""
    try:
        yield
    except PySparkRuntimeError as fault:
        if "JAVA_GATEWAY_EXITED" not in str(fault):
            raise
        raise java.NoJava(f"{java.describe()} does not start; its output is above") from None


def _with_common_settings(spark: SparkSession) -> SparkSession:
    """Sets those of COMMON_SETTINGS that nobody has set."""
    present = dict(spark.sparkContext.getConf().getAll())
    for name, value in COMMON_SETTINGS.items():
        if name not in present:
            spark.conf.set(name, value)
    return spark


def _setting_names(settings: dict[str, Any]) -> dict[str, str]:
    """Replaces underscores by dots in names without dots, and writes values as text."""
    named = {name if "." in name else name.replace("_", "."): value for name, value in settings.items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in named.items()}
