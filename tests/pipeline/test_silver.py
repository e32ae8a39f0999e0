"""Silver rows equal those computed in plain Python, however the events are cut into batches."""

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from tests.pipeline.histories import History, Row, arrow, churn, cut, empty, frame
from tests.pipeline.silver_by_spark import silver_by_spark
from tests.pipeline.table_comparison import counted

from codeq.pipeline.lake import silver
from codeq.pipeline.lake.tables import SILVER_ATTEMPTS, SILVER_TASKS, Table
from codeq.pipeline.lake.update import Update

FOLDS: dict[str, tuple[Table, Update]] = {
    "attempts": (SILVER_ATTEMPTS, silver.attempts),
    "tasks": (SILVER_TASKS, silver.tasks),
}


@pytest.fixture(scope="module")
def history() -> History:
    made = churn(10, 500)
    ends = {(event["move"], event["status_after"]) for event in made.events if event["status_before"] == "IN_PROGRESS"}
    assert ends >= {("abandon", "FAILED"), ("abandon", "PENDING"), ("cancel", "CANCELLED")}, (
        "rare, and looked for below"
    )
    assert any(event["artifact_bytes"] for event in made.events)
    return made


@pytest.fixture(scope="module")
def whole(history: History) -> dict[str, list[Row]]:
    """The rows of each table, computed in one batch."""
    return {name: folded(name, [history.events]) for name in FOLDS}


def folded(name: str, batches: Sequence[Sequence[Row]]) -> list[Row]:
    """Returns all rows after these batches: those that each batch closed, and those that are open in the end."""
    table, fold = FOLDS[name]
    closed: list[Row] = []
    open_rows: list[Row] = []
    for batch in batches:
        rows = fold(as_table(open_rows, table), arrow(batch)).cast(schema_of(table)).to_pylist()
        closed += [row for row in rows if not row["is_open"]]
        open_rows = [row for row in rows if row["is_open"]]
    return sorted(closed + open_rows, key=lambda row: [row[key] for key in table.keys])


def as_table(rows: Sequence[Row], table: Table) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema_of(table))


def schema_of(table: Table) -> pa.Schema:
    return to_arrow_schema(table.schema, timezone="UTC")


@pytest.mark.parametrize("batches", [2, 4, 25])
@pytest.mark.parametrize("name", FOLDS)
def test_any_cut_into_batches_gives_the_same_rows(
    history: History, whole: dict[str, list[Row]], name: str, batches: int
) -> None:
    assert folded(name, cut(history, random.Random(batches), batches)) == whole[name]


@pytest.mark.parametrize("name", FOLDS)
def test_the_rows_are_those_of_the_table(history: History, whole: dict[str, list[Row]], name: str) -> None:
    table, fold = FOLDS[name]
    assert fold(as_table([], table), arrow(history.events)).schema.names == table.names
    keys = [tuple(row[key] for key in table.keys) for row in whole[name]]
    assert len(keys) == len(set(keys)) > 0


@pytest.mark.parametrize("name", FOLDS)
def test_nothing_comes_of_nothing(name: str) -> None:
    table, fold = FOLDS[name]
    assert fold(as_table([], table), arrow([])).cast(schema_of(table)).num_rows == 0


@pytest.mark.spark
@pytest.mark.parametrize("name", FOLDS)
def test_tables_of_spark_give_the_same_rows(spark: SparkSession, history: History, name: str) -> None:
    table, fold = FOLDS[name]
    made = silver_by_spark(fold, empty(spark, table.schema), frame(spark, history.events))
    assert made.schema == table.schema
    at_once = fold(as_table([], table), arrow(history.events)).cast(schema_of(table))
    assert counted(made) == counted(spark.createDataFrame(at_once, table.schema))


def test_deliveries_are_what_a_plain_reading_of_the_log_finds(history: History, whole: dict[str, list[Row]]) -> None:
    expected = deliveries_by_hand(history.events)
    found = {
        (row["task_id"], row["lease_token"]): {name: row[name] for name in expected_names} for row in whole["attempts"]
    }
    assert found == expected


def test_tasks_are_what_a_plain_reading_of_the_log_finds(history: History, whole: dict[str, list[Row]]) -> None:
    rows = {row["task_id"]: row for row in whole["tasks"]}
    deliveries = whole["attempts"]
    logs = by_task(history.events)
    assert rows.keys() == logs.keys()
    for task_id, log in logs.items():
        row, lasting = rows[task_id], [event for event in log if event["move"] != "purge"]
        mine = [delivery for delivery in deliveries if delivery["task_id"] == task_id and delivery["claimed_at"]]
        last = lasting[-1]
        assert (row["status"], row["last_seq"], row["attempts"]) == (
            last["status_after"],
            last["seq"],
            last["attempts"],
        )
        assert (row["artifacts"], row["artifact_bytes"]) == (last["artifacts"], last["artifact_bytes"])
        assert row["total_wait_ms"] == sum(delivery["wait_ms"] for delivery in mine)
        assert row["total_run_ms"] == sum(delivery["run_ms"] or 0 for delivery in mine)
        assert row["deliveries"] == len(mine)
        assert row["enqueued_at"] == log[0]["at"]
        assert row["first_claimed_at"] == min((delivery["claimed_at"] for delivery in mine), default=None)
        assert row["last_worker"] == (mine[-1]["worker_id"] if mine else None)
        moves = [event["move"] for event in log]
        for column, move in {"nacks": "nack", "expiries": "expire", "abandons": "abandon", "replays": "replay",
                             "promotes": "promote"}.items():  # fmt: skip
            assert row[column] == moves.count(move)
        is_dead = last["status_after"] == "FAILED" and last["move"] in ("nack", "expire", "abandon")
        assert row["is_dead"] == is_dead
        live = last["status_after"] in ("PENDING", "IN_PROGRESS")
        assert row["is_open"] == (live or (is_dead and log[-1]["move"] != "purge"))
        outcomes = {"COMPLETED": "completed", "CANCELLED": "cancelled", "FAILED": "dead" if is_dead else "failed"}
        assert row["outcome"] == outcomes.get(last["status_after"], "live")
        ended_at = None if live else last["at"]
        assert row["ended_at"] == ended_at
        assert row["end_to_end_ms"] == milliseconds(log[0]["at"], ended_at)


def test_a_history_whose_beginning_was_trimmed_gives_rows_without_it(
    history: History, whole: dict[str, list[Row]]
) -> None:
    kept = [event for event in history.events if event["seq"] > 120]
    cuts = cut(History(kept, []), random.Random(1), 2)
    rows = {name: folded(name, [kept]) for name in FOLDS}
    again = {name: folded(name, cuts) for name in FOLDS}
    for name, (table, _) in FOLDS.items():
        found = {tuple(row[key] for key in table.keys): row for row in rows[name]}
        untouched = {tuple(row[key] for key in table.keys): row for row in whole[name] if row["first_seq"] > 120}
        assert untouched.items() <= found.items()
        assert found.keys() - untouched.keys()
        assert again[name] == rows[name]
    assert any(row["enqueued_at"] is None and row["end_to_end_ms"] is None for row in rows["tasks"])
    assert_added_up(rows["tasks"], rows["attempts"])
    first = {row["task_id"]: row["first_claimed_at"] for row in whole["tasks"]}
    assert all(row["first_claimed_at"] in (None, first[row["task_id"]]) for row in rows["tasks"])


@pytest.mark.parametrize("since", [20, 60, 90, 150, 210])
def test_times_of_a_task_are_those_of_its_deliveries_wherever_the_history_begins(history: History, since: int) -> None:
    kept = [event for event in history.events if event["seq"] > since]
    assert_added_up(folded("tasks", [kept]), folded("attempts", [kept]))


def assert_added_up(tasks: Sequence[Row], deliveries: Sequence[Row]) -> None:
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in deliveries:
        totals[row["task_id"]][0] += row["wait_ms"] or 0
        totals[row["task_id"]][1] += row["run_ms"] or 0
    assert tasks
    for task in tasks:
        assert [task["total_wait_ms"], task["total_run_ms"]] == totals[task["task_id"]], task["task_id"]


def test_a_purge_alone_makes_no_row_and_closes_a_dead_one(history: History, whole: dict[str, list[Row]]) -> None:
    purged = [event for event in history.events if event["move"] == "purge"]
    assert purged
    assert folded("tasks", [purged]) == []
    assert folded("attempts", [purged]) == []
    dead = [row for row in whole["tasks"] if row["outcome"] == "dead"]
    assert {row["is_open"] for row in dead} == {True, False}


def by_task(events: Sequence[Row]) -> dict[str, list[Row]]:
    logs: defaultdict[str, list[Row]] = defaultdict(list)
    for event in events:
        logs[event["task_id"]].append(event)
    return {task_id: sorted(log, key=lambda event: int(event["seq"])) for task_id, log in logs.items()}


def milliseconds(start: datetime | None, end: datetime | None) -> int | None:
    return round((end - start) / timedelta(milliseconds=1)) if start and end else None


expected_names = ("ready_at", "claimed_at", "ended_at", "ended_by", "worker_id", "worker_name", "wait_ms", "run_ms",
                  "attempt", "ready_by", "is_open", "first_seq", "last_seq", "visible_at", "is_dead", "error",
                  "lease_until", "status_after")  # fmt: skip


def deliveries_by_hand(events: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """Returns the deliveries by one pass over the log of each task."""
    rows: dict[tuple[str, int], Row] = {}
    for task_id, log in by_task(events).items():
        coming: Row = {}
        for event in log:
            if event["status_before"] == "IN_PROGRESS":
                is_dead = event["status_after"] == "FAILED" and event["move"] != "fail"
                has_failed = is_dead or event["move"] in ("fail", "nack", "expire")
                coming |= {"ended_at": event["at"], "ended_by": event["move"], "last_seq": event["seq"],
                           "is_dead": is_dead, "status_after": event["status_after"],
                           "error": event["error"] if has_failed else None}  # fmt: skip
                rows[task_id, event["lease_token"]] = coming
            coming = coming_after(coming, event)
        if coming:
            rows[task_id, log[-1]["lease_token"] + ("claimed_at" not in coming)] = coming
    for row in rows.values():
        row["wait_ms"] = milliseconds(row.get("ready_at"), row.get("claimed_at"))
        row["run_ms"] = milliseconds(row.get("claimed_at"), row.get("ended_at"))
        row["is_open"] = "ended_at" not in row
    return {key: {name: row.get(name) for name in expected_names} for key, row in rows.items()}


def coming_after(coming: Row, event: Row) -> Row:
    """Returns the open delivery after this event."""
    if event["move"] == "claim":
        return coming | {"claimed_at": event["at"], "worker_id": event["worker_id"], "attempt": event["attempts"] + 1,
                         "worker_name": event["worker_name"], "lease_until": event["lease_until"],
                         "last_seq": event["seq"]}  # fmt: skip
    if event["move"] == "promote":
        return coming | {"last_seq": event["seq"]}
    if event["status_after"] == "PENDING":
        return {"ready_at": event["visible_at"] or event["at"], "visible_at": event["visible_at"],
                "ready_by": event["move"], "first_seq": event["seq"], "last_seq": event["seq"]}  # fmt: skip
    return {}
