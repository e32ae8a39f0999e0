"""Queries the gold tables for a report: Spark computes the sums, and a few hundred rows are collected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from codeq.domain.queue import SYSTEM_PREFIX, WEBHOOKS, is_system
from codeq.pipeline.audit import Verdict
from codeq.pipeline.lake import gold
from codeq.pipeline.lake.gold import Goals, GoldTable
from codeq.pipeline.report import data

STEPS_MAX = 180
"""Points in a plot: as many as a screen can show apart, and enough for a day in steps of ten minutes."""
WORKERS_MAX = 50
SIGNATURES_MAX = 50
_STEPS_S = (60, 300, 600, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000)


def collect(
    tables: Mapping[str, DataFrame],
    *,
    made_at: datetime,
    title: str = "codeQ",
    verdicts: Sequence[Verdict] = (),
    goals: Goals | None = None,
) -> data.ReportData:
    """Queries the gold tables, given by name. All times are in UTC."""
    rows = {table.table.name: tables[table.table.name] for table in gold.ALL}
    flow = rows[gold.THROUGHPUT.table.name]
    first, last = _time_range(flow)
    step_s = _step_s(first, last)
    commands = _collect_by(gold.THROUGHPUT, flow, "command")
    timeline, backlog = _timeline(flow.where(~f.col("command").startswith(SYSTEM_PREFIX)), step_s)
    return data.ReportData(
        title=title,
        made_at=made_at,
        first_at=first,
        last_at=last,
        step_seconds=step_s,
        totals=_totals(commands, backlog),
        audit=[data.RuleResult(**asdict(verdict), label=verdict.label) for verdict in verdicts],
        timeline=timeline,
        latency_over_time=_latency_over_time(rows[gold.LATENCY.table.name], first, last),
        latency=_latency_by_command(rows[gold.LATENCY.table.name]),
        outcomes=sorted((_outcomes(row) for row in commands), key=lambda of: -of.enqueued),
        dead_letters=_dead_letters(rows[gold.DEAD_LETTERS.table.name]),
        tenants=_tenants(rows[gold.USAGE.table.name]),
        workers=_workers(rows[gold.WORKERS.table.name]),
        retries=_retries(rows[gold.RETRIES.table.name]),
        service_levels=_service_levels(rows[gold.SERVICE_LEVELS.table.name]),
        capacity=_capacity(rows[gold.CAPACITY.table.name], goals),
    )


def _collect_by(table: GoldTable, rows: DataFrame, *keys: str) -> list[Row]:
    # Sketches are not collected: their percentiles are in columns of their own.
    sketches = [column.name for column in table.table.columns if column.name.endswith("_sketch")]
    return table.roll_up(rows, *keys).drop(*sketches).collect()


def _time_range(flow: DataFrame) -> tuple[datetime | None, datetime | None]:
    found = flow.agg(
        f.unix_seconds(f.min("minute")).alias("first"), f.unix_seconds(f.max("minute")).alias("last")
    ).first()
    if found is None or found["first"] is None:
        return None, None
    return _utc(found["first"]), _utc(found["last"] + 60)


def _step_s(first: datetime | None, last: datetime | None) -> int:
    seconds = (last - first).total_seconds() if first and last else 0
    return next((step for step in _STEPS_S if seconds / step <= STEPS_MAX), _STEPS_S[-1])


def _timeline(flow: DataFrame, step_s: int) -> tuple[list[data.TimelinePoint], tuple[int, int]]:
    step = f.expr(f"unix_seconds(minute) div {step_s} * {step_s}").alias("step")
    names = ["enqueues", "completes", "fails", "deaths", "entered", "left", "began", "stopped"]
    sums = flow.groupBy(step).agg(*(f.sum(name).alias(name) for name in names)).collect()
    found = {row["step"]: row for row in sums}
    if not found:
        return [], (0, 0)
    steps = range(min(found), max(found) + step_s, step_s)
    counts = [{name: found[at][name] if at in found else 0 for name in names} for at in steps]
    live = _levels([row["entered"] - row["left"] for row in counts])
    running = _levels([row["began"] - row["stopped"] for row in counts])
    moments = [
        data.TimelinePoint(
            at=_utc(at), enqueued=row["enqueues"], completed=row["completes"], failed=row["fails"],
            dead=row["deaths"], backlog=live[i], running=running[i],
        )
        for i, (at, row) in enumerate(zip(steps, counts, strict=True))
    ]  # fmt: skip
    return moments, (live[-1], running[-1])


def _levels(changes: Iterable[int]) -> list[int]:
    """Returns the running sum of the changes. A trimmed log may start below the true level, so it is raised until no
    level is negative.
    """
    levels = list(accumulate(changes))
    return [level - min(0, *levels) for level in levels]


def _totals(commands: Sequence[Row], backlog: tuple[int, int]) -> data.Totals:
    """Adds up the tasks of all commands. Those that the server made for itself are among the events only."""
    own = [row for row in commands if not is_system(row["command"])]
    total = {name: sum(row[name] for row in own) for name in gold.THROUGHPUT.table.names if name in _FLOW_SUMS}
    return data.Totals(
        events=sum(row[name] for row in commands for name in _MOVES),
        enqueued=total["enqueues"],
        completed=total["completes"],
        failed=total["fails"],
        dead=max(0, total["deaths"] - total["replays"]),
        cancelled=total["cancels"],
        live=backlog[0],
        running=backlog[1],
        deliveries=total["claims"],
        payload_bytes=total["payload_bytes"],
        webhooks=sum(row["enqueues"] for row in commands if row["command"] == WEBHOOKS),
    )


_MOVES = ("enqueues", "claims", "completes", "fails", "nacks", "expiries", "abandons", "promotes", "cancels", "replays",
          "purges")  # fmt: skip
_FLOW_SUMS = (*_MOVES, "deaths", "payload_bytes")


def _outcomes(row: Row) -> data.Outcomes:
    return data.Outcomes(
        command=row["command"],
        enqueued=row["enqueues"],
        completed=row["completes"],
        failed=row["fails"],
        dead=max(0, row["deaths"] - row["replays"]),
        cancelled=row["cancels"],
        live=max(0, row["entered"] - row["left"]),
    )


def _latency_over_time(latency: DataFrame, first: datetime | None, last: datetime | None) -> list[data.Latency]:
    hours = (last - first).total_seconds() / 3600 if first and last else 0
    grain = "hour" if hours <= STEPS_MAX else "day"
    rows = latency.where(f.col("grain") == grain).withColumn("at", f.unix_seconds("start"))
    found = sorted(_collect_by(gold.LATENCY, rows, "at"), key=lambda row: int(row["at"]))
    return [_latency(row, at=_utc(row["at"])) for row in found]


def _latency_by_command(latency: DataFrame) -> list[data.Latency]:
    rows = _collect_by(gold.LATENCY, latency.where("grain = 'day'"), "command")
    return [_latency(row, command=row["command"]) for row in sorted(rows, key=lambda row: -row["runs"])]


def _latency(row: Row, **of: Any) -> data.Latency:
    parts: dict[str, Any] = {
        measure: data.Percentiles(
            number=row[count], **{f"p{p}": row[f"{measure}_p{p}_ms"] for p in (50, 90, 95, 99)}
        )
        for count, measure in {"waits": "wait", "runs": "run", "ends": "end_to_end"}.items()
    }  # fmt: skip
    return data.Latency(**of, **parts)


def _dead_letters(rows: DataFrame) -> list[data.DeadLetter]:
    tenants = rows.groupBy("signature").agg(f.array_sort(f.collect_set("tenant")).alias("tenants"))
    table = gold.DEAD_LETTERS.roll_up(rows, "signature").join(tenants, "signature")
    table = table.withColumns({name: f.unix_millis(name) for name in ("first_at", "last_at")})
    found = table.orderBy(f.desc("deaths"), "signature").limit(SIGNATURES_MAX).collect()
    return [
        data.DeadLetter(**row.asDict() | {name: _utc(row[name] / 1000) for name in ("first_at", "last_at")})
        for row in found
    ]


def _tenants(rows: DataFrame) -> list[data.TenantUsage]:
    found = _collect_by(gold.USAGE, rows, "tenant")
    made = [
        data.TenantUsage(
            tenant=row["tenant"], tasks=row["tasks"], completed=row["completes"], deliveries=row["deliveries"],
            payload_bytes=row["payload_bytes"], run_seconds=row["run_seconds"], artifacts=row["artifacts"],
            artifact_bytes=row["artifact_bytes"], webhooks=row["webhooks"], webhook_attempts=row["webhook_attempts"],
        )
        for row in found
    ]  # fmt: skip
    return sorted(made, key=lambda tenant: (-tenant.tasks, tenant.tenant))


def _workers(rows: DataFrame) -> list[data.WorkerUsage]:
    table = gold.WORKERS.roll_up(rows, "tenant", "worker_id")
    found = table.orderBy(f.desc("deliveries"), "worker_id").limit(WORKERS_MAX).collect()
    return [
        data.WorkerUsage(
            worker=row["worker_id"], tenant=row["tenant"], deliveries=row["deliveries"], completed=row["completes"],
            failures=row["failures"], expiries=row["expiries"], busy_seconds=row["busy_seconds"],
            failure_share=row["failure_share"],
        )
        for row in found
    ]  # fmt: skip


def _retries(rows: DataFrame) -> list[data.Retries]:
    buckets = ["took_1", "took_2", "took_3", "took_4", "took_5", "took_6_to_10", "took_more"]
    plain = ("command", "deliveries", "nacks", "expiries", "abandons", "deaths", "retry_share")
    found = sorted(_collect_by(gold.RETRIES, rows, "command"), key=lambda row: -row["deliveries"])
    return [data.Retries(**{name: row[name] for name in plain}, took=[row[name] for name in buckets]) for row in found]


def _service_levels(rows: DataFrame) -> list[data.ServiceLevel]:
    found = _collect_by(gold.SERVICE_LEVELS, rows, "command", "target_ms", "objective")
    return [data.ServiceLevel(**row.asDict()) for row in sorted(found, key=lambda row: -(row["burn"] or 0))]


def _capacity(rows: DataFrame, goals: Goals | None) -> list[data.Capacity]:
    """Returns for each command the hour in which it needed most workers."""
    hours = gold.CAPACITY.roll_up(rows, "command", "hour", goals=goals).drop("worker_sketch")
    found = hours.withColumn("hour", f.unix_seconds("hour")).collect()
    names = data.Capacity.__struct_fields__
    made: dict[str, data.Capacity] = {}
    for row in sorted(found, key=lambda row: (row["workers_needed"] or 0, row["arrivals_per_second"] or 0)):
        values: dict[str, Any] = {name: row[name] for name in names}
        made[row["command"]] = data.Capacity(**values | {"hour": _utc(row["hour"]), "workers": row["workers"] or 0})
    return sorted(made.values(), key=lambda capacity: -(capacity.workers_needed or 0))


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
