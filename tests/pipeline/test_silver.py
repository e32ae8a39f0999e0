"""Deliveries and tasks from events: right as such, and the same however the events are cut into batches."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.comparing import at_once
from tests.pipeline.histories import History, Row, churn, cut, empty, frame

from codeq.pipeline import silver
from codeq.pipeline.tables import SILVER_ATTEMPTS, SILVER_TASKS, Table

pytestmark = pytest.mark.spark

Fold = Callable[[DataFrame, DataFrame], DataFrame]
FOLDS: dict[str, tuple[Table, Fold]] = {
    "attempts": (SILVER_ATTEMPTS, silver.attempts),
    "tasks": (SILVER_TASKS, silver.tasks),
}


@pytest.fixture(scope="module")
def history() -> History:
    return churn(7, 400)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, history: History) -> dict[str, list[Row]]:
    """The rows of each table, made in one go."""
    return at_once({name: partial(folded, spark, name, [history.events]) for name in FOLDS})


def folded(spark: SparkSession, name: str, batches: Sequence[Sequence[Row]]) -> list[Row]:
    """All rows there are after these batches: what each of them closed, and what is open in the end."""
    table, fold = FOLDS[name]
    closed: list[Row] = []
    open_rows: list[Any] = []
    for batch in batches:
        rows = fold(spark.createDataFrame(open_rows, table.schema), frame(spark, batch)).collect()
        closed += [row.asDict() for row in rows if not row.is_open]
        open_rows = [row for row in rows if row.is_open]
    return sorted(closed + [row.asDict() for row in open_rows], key=lambda row: [row[key] for key in table.keys])


@pytest.mark.parametrize("name", FOLDS)
def test_any_cut_into_batches_gives_the_same_rows(
    spark: SparkSession, history: History, whole: dict[str, list[Row]], name: str
) -> None:
    assert folded(spark, name, cut(history, random.Random(0), 4)) == whole[name]


@pytest.mark.parametrize("name", FOLDS)
def test_the_rows_are_those_of_the_table(
    spark: SparkSession, history: History, whole: dict[str, list[Row]], name: str
) -> None:
    table, fold = FOLDS[name]
    schema = fold(empty(spark, table.schema), frame(spark, history.events)).schema
    assert [(field.name, field.dataType) for field in schema] == [(c.name, c.kind) for c in table.columns]
    keys = [tuple(row[key] for key in table.keys) for row in whole[name]]
    assert len(keys) == len(set(keys)) > 0


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
        assert row["total_wait_ms"] == sum(delivery["wait_ms"] for delivery in mine)
        assert row["total_run_ms"] == sum(delivery["run_ms"] or 0 for delivery in mine)
        assert row["deliveries"] == len(mine)
        assert row["enqueued_at"] == plain(log[0]["at"])
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
        assert row["ended_at"] == plain(ended_at)
        assert row["end_to_end_ms"] == milliseconds(log[0]["at"], ended_at)


def test_a_history_whose_beginning_was_trimmed_gives_rows_without_it(
    spark: SparkSession, history: History, whole: dict[str, list[Row]]
) -> None:
    kept = [event for event in history.events if event["seq"] > 120]
    cuts = cut(History(kept, []), random.Random(1), 2)
    rows = at_once({name: partial(folded, spark, name, [kept]) for name in FOLDS})
    again = at_once({name: partial(folded, spark, name, cuts) for name in FOLDS})
    for name, (table, _) in FOLDS.items():
        found = {tuple(row[key] for key in table.keys): row for row in rows[name]}
        untouched = {tuple(row[key] for key in table.keys): row for row in whole[name] if row["first_seq"] > 120}
        assert untouched.items() <= found.items()
        assert found.keys() - untouched.keys()
        assert again[name] == rows[name]
    assert any(row["enqueued_at"] is None and row["end_to_end_ms"] is None for row in rows["tasks"])
    first = {row["task_id"]: row["first_claimed_at"] for row in whole["tasks"]}
    assert all(row["first_claimed_at"] in (None, first[row["task_id"]]) for row in rows["tasks"])


def test_a_purge_alone_makes_no_row_and_closes_a_dead_one(
    spark: SparkSession, history: History, whole: dict[str, list[Row]]
) -> None:
    purged = [event for event in history.events if event["move"] == "purge"]
    assert purged
    assert folded(spark, "tasks", [purged]) == []
    assert folded(spark, "attempts", [purged]) == []
    dead = [row for row in whole["tasks"] if row["outcome"] == "dead"]
    assert {row["is_open"] for row in dead} == {True, False}


def by_task(events: Sequence[Row]) -> dict[str, list[Row]]:
    logs: defaultdict[str, list[Row]] = defaultdict(list)
    for event in events:
        logs[event["task_id"]].append(event)
    return {task_id: sorted(log, key=lambda event: int(event["seq"])) for task_id, log in logs.items()}


def plain(at: datetime | None) -> datetime | None:
    """As Spark gives times back: in the zone of the machine, without saying so."""
    return at.astimezone().replace(tzinfo=None) if at else None


def milliseconds(start: datetime | None, end: datetime | None) -> int | None:
    return round((end - start) / timedelta(milliseconds=1)) if start and end else None


expected_names = ("ready_at", "claimed_at", "ended_at", "ended_by", "worker_id", "wait_ms", "run_ms", "attempt",
                  "ready_by", "is_open", "first_seq", "last_seq", "visible_at", "is_dead")  # fmt: skip


def deliveries_by_hand(events: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """One pass per task over its log, as one would do it on paper."""
    rows: dict[tuple[str, int], Row] = {}
    for task_id, log in by_task(events).items():
        coming: Row = {}
        for event in log:
            if event["status_before"] == "IN_PROGRESS":
                coming |= {"ended_at": event["at"], "ended_by": event["move"], "last_seq": event["seq"],
                           "is_dead": event["status_after"] == "FAILED" and event["move"] != "fail"}  # fmt: skip
                rows[task_id, event["lease_token"]] = coming
            coming = coming_after(coming, event)
        if coming:
            rows[task_id, log[-1]["lease_token"] + ("claimed_at" not in coming)] = coming
    for row in rows.values():
        row["wait_ms"] = milliseconds(row.get("ready_at"), row.get("claimed_at"))
        row["run_ms"] = milliseconds(row.get("claimed_at"), row.get("ended_at"))
        row["is_open"] = "ended_at" not in row
    return {
        key: {name: plain(row.get(name)) if name.endswith("_at") else row.get(name) for name in expected_names}
        for key, row in rows.items()
    }


def coming_after(coming: Row, event: Row) -> Row:
    """What is known of the delivery to come, or under way, after this event."""
    if event["move"] == "claim":
        return coming | {"claimed_at": event["at"], "worker_id": event["worker_id"], "attempt": event["attempts"] + 1,
                         "last_seq": event["seq"]}  # fmt: skip
    if event["move"] == "promote":
        return coming | {"last_seq": event["seq"]}
    if event["status_after"] == "PENDING":
        return {"ready_at": event["visible_at"] or event["at"], "visible_at": event["visible_at"],
                "ready_by": event["move"], "first_seq": event["seq"], "last_seq": event["seq"]}  # fmt: skip
    return {}
