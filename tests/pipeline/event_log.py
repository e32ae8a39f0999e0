"""Reads the event log of a server through Spark and through HTTP, and enqueues tasks to fill it."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.server.server_process import Caller, Server, Tenant, answered

from codeq.wire import paths

OptionsFor = Callable[..., dict[str, str]]


def platform(server: Server) -> Caller:
    return Caller(server, server.token("ops", "admin", scopes=["codeq:admin", "codeq:platform"]))


def events(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("codeq-events").options(**options).load()


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def log_of(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """Returns the log of the first shard as the server gives it in JSON."""
    found: list[dict[str, Any]] = []
    while True:
        page = answered(caller.get(paths.EVENTS, limit=50_000, **query), 200)
        found += page["events"]
        if page["nextOffset"] >= page["endOffset"]:
            return found
        query["offset"] = page["nextOffset"]


def enqueue(tenant: Tenant, count: int, command: str = "work") -> None:
    new_tasks = [{"command": command, "payload": n} for n in range(count)]
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": new_tasks}), 200)
