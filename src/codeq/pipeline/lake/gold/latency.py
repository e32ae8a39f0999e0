"""Gold tables about durations: percentiles of waits, runs and whole tasks, and service levels."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from codeq.pipeline.lake.gold.adding import added_up
from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, day_of, midnight_of, start_of
from codeq.pipeline.lake.gold.merge import Columns, GoldTable, divided, null_for_nan, number_when, ratio
from codeq.pipeline.lake.gold.sketches import kll_of, kll_quantiles
from codeq.pipeline.lake.grouping import Rows, groups_by, take
from codeq.pipeline.lake.tables import GOLD_LATENCY, GOLD_SERVICE_LEVELS, Merge

_MEASURES = {"waits": "wait", "runs": "run", "ends": "end_to_end"}
_PERCENTS = (50, 90, 95, 99)
_HOUR_KEYS = ("tenant", "command", "priority", "start", "day")
_DAY_KEYS = ("tenant", "command", "priority", "day")


def _latency(batch: GoldBatch) -> Iterator[pa.Table]:
    delivered = _measured(batch.closed_attempts, batch.hour_s, waits="wait", runs="run")
    ended = _measured(batch.finished_tasks, batch.hour_s, ends="end_to_end")
    for hours in (delivered, ended):
        yield _with_grain(hours, "hour")
        # The sketch of a day is merged from those of its hours, which is far cheaper than sketching every row twice.
        ways = {
            name: Merge.KLL if name.endswith("_sketch") else Merge.SUM
            for name in hours.column_names if name not in _HOUR_KEYS
        }  # fmt: skip
        days = added_up(Rows(hours), _DAY_KEYS, ways)
        yield _with_grain(days.append_column("start", midnight_of(Rows(days).column("day"))), "day")


def _measured(rows: Rows, seconds: int, **measures: str) -> pa.Table:
    start = start_of(rows, "ended_at", seconds)
    day = day_of(rows.column("ended_at"))
    keys = {name: rows.column(name) for name in ("tenant", "command", "priority")} | {"start": start, "day": day}
    groups = groups_by(Rows(pa.table(keys)), _HOUR_KEYS)
    first = groups.first(np.ones(len(rows), bool))
    columns = {name: take(column, first) for name, column in keys.items()}
    for count, measure in measures.items():
        name = f"{measure}_ms"
        has, values = rows.has(name), rows.numbers(name)
        columns[count] = pa.array(groups.total(has.astype(np.int64), has))
        columns[name] = pa.array(groups.total(values, has))
        of_groups = [kll_of(values[some].astype(np.float64)) for some in groups.split(has)]
        columns[f"{measure}_sketch"] = pa.array(of_groups, pa.binary())
    return pa.table(columns)


def _with_grain(rows: pa.Table, grain: str) -> pa.Table:
    return rows.append_column("grain", pa.repeat(pa.scalar(grain), len(rows)))


def _with_percentiles(rows: Rows, goals: Goals) -> Columns:  # noqa: ARG001
    ranks, nothing = [p / 100 for p in _PERCENTS], [None] * len(_PERCENTS)
    columns = {}
    for measure in _MEASURES.values():
        sketches = rows.column(f"{measure}_sketch").to_pylist()
        quantiles = [kll_quantiles(sketch, ranks) or nothing for sketch in sketches]
        for place, p in enumerate(_PERCENTS):
            columns[f"{measure}_p{p}_ms"] = pa.array([values[place] for values in quantiles], pa.float64())
    return columns


def _service_levels(batch: GoldBatch) -> Iterator[pa.Table]:
    """Counts tasks that were completed or failed, and deliveries that made their task dead."""
    tasks, ends = batch.task_sums, batch.delivery_sums
    is_completed, in_time = tasks.is_in("outcome", "completed"), tasks.numbers("in_time") == 1
    yield pa.table({
        **_of_commands(tasks, batch.goals),
        "tasks": tasks.column("number"),
        **number_when(
            tasks,
            good=is_completed & in_time,
            late=is_completed & ~in_time,
            failed=tasks.is_in("outcome", "failed"),
        ),
    })  # fmt: skip
    dead = Rows(ends.table.filter(pa.array(ends.numbers("is_dead") == 1)))
    yield pa.table({
        **_of_commands(dead, batch.goals), "tasks": dead.column("number"), "failed": dead.column("number"),
    })  # fmt: skip


def _of_commands(sums: Rows, goals: Goals) -> dict[str, pa.Array]:
    columns = {name: sums.column(name) for name in ("tenant", "command", "hour", "day")}
    columns["target_ms"] = pa.array(sums.by_text("command", goals.target_ms), pa.int64())
    return columns | {"objective": pa.array(sums.by_text("command", goals.objective), pa.float64())}


def _with_burn(rows: Rows, goals: Goals) -> Columns:  # noqa: ARG001
    share = ratio(rows, "good", "tasks")
    objective = rows.column("objective").to_numpy(zero_copy_only=False)
    return {"share": null_for_nan(share), "burn": null_for_nan(divided(1 - share, 1 - objective))}


LATENCY = GoldTable(GOLD_LATENCY, _latency, _with_percentiles)
SERVICE_LEVELS = GoldTable(GOLD_SERVICE_LEVELS, _service_levels, _with_burn)
