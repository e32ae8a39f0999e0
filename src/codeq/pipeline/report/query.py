"""Queries the gold tables for a report: executors add them up, and a few hundred rows are collected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from codeq.domain.queue import SYSTEM_PREFIX, WEBHOOKS, is_system
from codeq.pipeline.audit import Verdict
from codeq.pipeline.lake import gold
from codeq.pipeline.lake.gold import Goals
from codeq.pipeline.report import data
from codeq.pipeline.report.roll_up import Most, NewRows, Row, partials, roll_up

STEPS_MAX = 180
"""Points in a plot: as many as a screen can show apart, and enough for a day in steps of ten minutes."""
DETAIL_S = 1800
"""A history up to this long is shown by the second. The steps of gold, minutes and hours, would be too few points."""
WORKERS_MAX = 50
SIGNATURES_MAX = 50
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000)


class Detail(Protocol):
    """Reads the rows of a short time, from which its steps of seconds are computed."""

    def __call__(self, first: datetime, last: datetime) -> NewRows: ...


def collect(
    tables: Mapping[str, DataFrame],
    *,
    made_at: datetime,
    title: str = "codeQ",
    verdicts: Sequence[Verdict] = (),
    goals: Goals | None = None,
    live: tuple[int, int] | None = None,
    detail: Detail | None = None,
    freshness: data.Freshness | None = None,
) -> data.ReportData:
    """Queries the gold tables, given by name. All times are in UTC.

    `live` are the tasks that are live now, and those of them in progress: the backlog of a part of the history is
    counted back from them. `detail` shows a short history by the second.
    """
    rows = {table.table.name: tables[table.table.name] for table in gold.ALL}
    flow, latency = rows[gold.THROUGHPUT.table.name], rows[gold.LATENCY.table.name]
    first, last = _time_range(flow)
    commands = roll_up(gold.THROUGHPUT, flow, "command")
    fine_flow, fine_latency = flow, latency
    if detail is not None and first and last and (last - first).total_seconds() <= DETAIL_S:
        new = detail(first, last)
        first, last = _event_range(new.events) or (first, last)
        steps = {"minute_s": _step_s(first, last), "hour_s": _latency_step_s(first, last)}
        fine_flow, fine_latency = (partials(table, new, **steps) for table in (gold.THROUGHPUT, gold.LATENCY))
    step_s = _step_s(first, last, least=60 if fine_flow is flow else 1)
    is_own = ~f.col("command").startswith(SYSTEM_PREFIX)
    timeline, backlog = _timeline(fine_flow.where(is_own), step_s, live)
    return data.ReportData(
        title=title,
        made_at=made_at,
        first_at=first,
        last_at=last,
        step_seconds=step_s,
        totals=_totals(commands, backlog),
        audit=[data.RuleResult(**asdict(verdict), label=verdict.label) for verdict in verdicts],
        freshness=freshness or data.Freshness(),
        timeline=timeline,
        latency_over_time=_latency_over_time(fine_latency.where(is_own), first, last),
        latency=_latency_by_command(latency),
        outcomes=sorted((_outcomes(row) for row in commands), key=lambda of: -of.enqueued),
        dead_letters=_dead_letters(rows[gold.DEAD_LETTERS.table.name]),
        tenants=_tenants(rows[gold.USAGE.table.name]),
        workers=_workers(rows[gold.WORKERS.table.name]),
        retries=_retries(rows[gold.RETRIES.table.name]),
        service_levels=_service_levels(rows[gold.SERVICE_LEVELS.table.name]),
        capacity=_capacity(rows[gold.CAPACITY.table.name], goals),
    )


def _time_range(flow: DataFrame) -> tuple[datetime | None, datetime | None]:
    found = flow.agg(
        f.unix_seconds(f.min("minute")).alias("first"), f.unix_seconds(f.max("minute")).alias("last")
    ).first()
    if found is None or found["first"] is None:
        return None, None
    return _utc(found["first"]), _utc(found["last"] + 60)


def _event_range(events: DataFrame) -> tuple[datetime, datetime] | None:
    found = events.agg(f.unix_millis(f.min("at")).alias("first"), f.unix_millis(f.max("at")).alias("last")).first()
    if found is None or found["first"] is None:
        return None
    return _utc(found["first"] / 1000), _utc(found["last"] / 1000)


def _step_s(first: datetime | None, last: datetime | None, *, least: int = 1) -> int:
    seconds = (last - first).total_seconds() if first and last else 0
    return next((step for step in _STEPS_S if step >= least and seconds / step <= STEPS_MAX), _STEPS_S[-1])


def _latency_step_s(first: datetime, last: datetime) -> int:
    """Percentiles need some tasks in each step, so there are fewer steps."""
    seconds = (last - first).total_seconds()
    return next((step for step in _STEPS_S if seconds / step <= STEPS_MAX / 6), _STEPS_S[-1])


def _timeline(
    flow: DataFrame, step_s: int, live_now: tuple[int, int] | None
) -> tuple[list[data.TimelinePoint], tuple[int, int]]:
    step = f.expr(f"unix_seconds(minute) div {step_s} * {step_s}")
    names = ["enqueues", "completes", "fails", "deaths", "entered", "left", "began", "stopped"]
    found = {row["step"]: row for row in roll_up(gold.THROUGHPUT, flow.withColumn("step", step), "step")}
    if not found:
        return [], (0, 0)
    steps = range(min(found), max(found) + step_s, step_s)
    counts = [{name: found[at][name] if at in found else 0 for name in names} for at in steps]
    now, running_now = live_now or (None, None)
    live = _levels([row["entered"] - row["left"] for row in counts], now)
    running = _levels([row["began"] - row["stopped"] for row in counts], running_now)
    moments = [
        data.TimelinePoint(
            at=_utc(at), enqueued=row["enqueues"], completed=row["completes"], failed=row["fails"],
            dead=row["deaths"], backlog=live[i], running=running[i],
        )
        for i, (at, row) in enumerate(zip(steps, counts, strict=True))
    ]  # fmt: skip
    return moments, (live[-1], running[-1])


def _levels(changes: Iterable[int], now: int | None) -> list[int]:
    """Returns the running sum of the changes, up to the level of now. If that is not known, a trimmed log may start
    below the true level, so it is raised until no level is negative.
    """
    levels = list(accumulate(changes))
    start = now - levels[-1] if now is not None else -min(0, *levels)
    return [start + level for level in levels]


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
    found = sorted(roll_up(gold.LATENCY, rows, "at"), key=lambda row: int(row["at"]))
    return [_latency(row, at=_utc(row["at"])) for row in found]


def _latency_by_command(latency: DataFrame) -> list[data.Latency]:
    rows = roll_up(gold.LATENCY, latency.where("grain = 'day'"), "command")
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
    found = roll_up(gold.DEAD_LETTERS, rows, "signature", most=Most("deaths", SIGNATURES_MAX))
    shown = rows.where(f.col("signature").isin([row["signature"] for row in found]))
    tenants: dict[str, list[str]] = {}
    for row in roll_up(gold.DEAD_LETTERS, shown, "signature", "tenant"):
        tenants.setdefault(row["signature"], []).append(row["tenant"])
    return [data.DeadLetter(**row, tenants=sorted(tenants[row["signature"]])) for row in found]


def _tenants(rows: DataFrame) -> list[data.TenantUsage]:
    found = roll_up(gold.USAGE, rows, "tenant")
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
    found = roll_up(gold.WORKERS, rows, "worker_id", "tenant", most=Most("deliveries", WORKERS_MAX))
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
    found = sorted(roll_up(gold.RETRIES, rows, "command"), key=lambda row: -row["deliveries"])
    return [data.Retries(**{name: row[name] for name in plain}, took=[row[name] for name in buckets]) for row in found]


def _service_levels(rows: DataFrame) -> list[data.ServiceLevel]:
    found = roll_up(gold.SERVICE_LEVELS, rows, "command", "target_ms", "objective")
    return [data.ServiceLevel(**row) for row in sorted(found, key=lambda row: -(row["burn"] or 0))]


def _capacity(rows: DataFrame, goals: Goals | None) -> list[data.Capacity]:
    """Returns for each command the hour in which it needed most workers."""
    found = roll_up(gold.CAPACITY, rows, "command", "hour", goals=goals)
    names = data.Capacity.__struct_fields__
    made: dict[str, data.Capacity] = {}
    for row in sorted(found, key=lambda row: (row["workers_needed"] or 0, row["arrivals_per_second"] or 0)):
        values: dict[str, Any] = {name: row[name] for name in names}
        made[row["command"]] = data.Capacity(**values)
    return sorted(made.values(), key=lambda capacity: -(capacity.workers_needed or 0))


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
