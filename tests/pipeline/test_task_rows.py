"""Rows become tasks with the limits that every new task has, without Spark."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from codeq.errors import InvalidRequest
from codeq.pipeline.connector.task_rows import Rejected, new_tasks
from codeq.wire.tasks import PackedTask


def converted(**columns: Any) -> list[PackedTask | Rejected]:
    batch = pa.record_batch({"payload": ["1"], **{name: [value] for name, value in columns.items()}})
    return list(new_tasks(batch, 7, command="mail", key_prefix="job-0-"))


def test_every_column_is_converted() -> None:
    at = datetime(2027, 1, 2, 3, 4, 5, 678_000, UTC)
    [task] = converted(
        command="post",
        priority=9,
        delay_seconds=1.5,
        run_at=at,
        idempotency_key=0,
        max_attempts=3,
        webhook="http://a/b",
    )
    assert task == PackedTask(
        command="post", payload=b"1", priority=9, delay_seconds=1.5, run_at="2027-01-02T03:04:05.678Z",
        idempotency_key="0", max_attempts=3, webhook="http://a/b",
    )  # fmt: skip


@pytest.mark.parametrize("key", [None, ""])
def test_a_row_without_a_key_gets_one_from_its_number(key: str | None) -> None:
    assert converted(idempotency_key=key, webhook="") == [
        PackedTask(command="mail", payload=b"1", idempotency_key="job-0-7")
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("command", "no spaces"), ("payload", None), ("priority", 10), ("priority", -1), ("delay_seconds", -1.0),
        ("delay_seconds", float("nan")), ("delay_seconds", float("inf")), ("delay_seconds", 31_622_401.0),
        ("run_at", "tomorrow"), ("idempotency_key", "k" * 256),
        ("max_attempts", 0), ("max_attempts", 101), ("webhook", "mailto:a@b"),
    ],
)  # fmt: skip
def test_a_row_outside_the_limits_is_rejected_with_its_number(column: str, value: Any) -> None:
    [rejected] = converted(**{column: value})
    assert isinstance(rejected, Rejected)
    assert (rejected.row, rejected.code) == (7, InvalidRequest.code)


@pytest.mark.parametrize("run_at", [datetime(1969, 12, 31, tzinfo=UTC), "1960-01-01T00:00:00Z"])
def test_a_time_long_past_means_at_once(run_at: Any) -> None:
    [task] = converted(run_at=run_at)
    assert isinstance(task, PackedTask)
    assert task.run_at == "1970-01-01T00:00:00.000Z"
