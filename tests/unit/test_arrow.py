"""Columns made of encoded tasks equal the fields of the decoded tasks, and any other encoding is refused."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.random_tasks import tasks

from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.arrow import UNSUPPORTED, UnexpectedEncoding, columns
from codeq.wire import events as wire


def _records(found: list[Task]) -> list[msgspec.Raw]:
    return codec.split_tasks(codec.joined([codec.encode(task) for task in found]))


def _moment(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def _odd(task: Task, field: str, value: object) -> msgspec.Raw:
    """Returns the encoded task with a value in the field that no task has there."""
    plain = msgspec.msgpack.decode(codec.encode(task))
    plain[Task.__struct_fields__.index(field)] = value
    return msgspec.Raw(msgspec.msgpack.encode(plain))


def _without_last(record: msgspec.Raw, fields: int) -> msgspec.Raw:
    """Returns the record as a version wrote it that did not know its last fields."""
    return msgspec.Raw(msgspec.msgpack.encode(msgspec.msgpack.decode(record)[:-fields]))


@settings(max_examples=150, deadline=None)
@given(st.lists(tasks, min_size=1, max_size=12))
def test_columns_hold_what_the_tasks_hold(found: list[Task]) -> None:
    fields = set(Task.__struct_fields__) - UNSUPPORTED
    made = columns(_records(found), fields)
    assert {name: column.to_pylist() for name, column in made.items()} == {
        name: [getattr(task, name) for task in found] for name in fields
    }


@settings(max_examples=60, deadline=None)
@given(st.lists(tasks, min_size=1, max_size=12), st.integers(2, 4))
def test_records_of_older_versions_have_the_defaults_of_later_fields(found: list[Task], missing: int) -> None:
    older = [_without_last(record, missing) for record in _records(found)]
    known = [codec.decode_task(record) for record in older]
    fields = set(Task.__struct_fields__) - UNSUPPORTED
    made = columns(older, fields)
    assert made["artifact_bytes"].to_pylist() == [0] * len(found)
    assert {name: column.to_pylist() for name, column in made.items()} == {
        name: [getattr(task, name) for task in known] for name in fields
    }
    with pytest.raises(UnexpectedEncoding):
        columns([*_records(found), *older], fields)


@settings(max_examples=100, deadline=None)
@given(st.lists(tasks, min_size=1, max_size=12))
def test_a_batch_of_events_is_the_same_from_columns_and_from_tasks(found: list[Task]) -> None:
    schema = wire.arrow_schema()
    batch = wire.arrow_batch(columns(_records(found), wire.TASK_FIELDS), 3, schema)
    batch.validate(full=True)
    assert batch.equals(wire.arrow_batch(wire.arrow_fields(found), 3, schema))


@settings(max_examples=60, deadline=None)
@given(tasks)
def test_a_batch_of_events_says_what_an_event_says(task: Task) -> None:
    event = wire.event(msgspec.structs.replace(task, updated_ms=0, visible_ms=0, lease_until_ms=0))
    [row] = wire.arrow_batch(wire.arrow_fields([task]), event.shard, wire.arrow_schema()).to_pylist()
    times = ("at", "visible_at", "lease_until")
    assert {name: row[name] for name in row if name not in times} == {
        name: getattr(event, name) for name in row if name not in times
    }
    for name, at_ms in zip(times, (task.updated_ms, task.visible_ms, task.lease_until_ms), strict=True):
        assert row[name] == (_moment(at_ms) if at_ms or name == "at" else None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(tasks, max_size=3),
    tasks,
    st.sampled_from(
        ["id", "priority", "previous", "max_deliveries", "error", "trace_id", "backoff", "progress", "artifacts"]
    ),
    st.sampled_from([-1, -1000, 1.5, True, ["a"], {"a": 1}, b"x"]),
)
def test_what_is_not_a_task_is_refused(found: list[Task], task: Task, field: str, value: object) -> None:
    with pytest.raises(UnexpectedEncoding):
        columns([*_records(found), _odd(task, field, value)], wire.TASK_FIELDS)


@pytest.mark.parametrize("record", [b"\x90", b"\xdc\x00\x1c\xdb\x7f\xff\xff\xff", b"\xdc\x00\x01\xa1a", b"\xc0"])
def test_what_is_cut_short_is_refused(record: bytes) -> None:
    with pytest.raises(UnexpectedEncoding):
        columns([msgspec.Raw(record)], wire.TASK_FIELDS)
