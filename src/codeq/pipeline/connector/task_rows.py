"""Converts rows of a DataFrame into tasks: the columns, their types, and why a row is rejected.

The limits of a task are those of `codeq.domain.validation`, so that the sink rejects what a server would refuse.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import types as spark

from codeq.domain import validation
from codeq.domain.requests import NewTask
from codeq.errors import InvalidRequest
from codeq.sdk.encoding import packed_task
from codeq.wire import times
from codeq.wire.tasks import PackedTask

_TEXT = (spark.StringType,)
_WHOLE = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
COLUMNS: dict[str, tuple[type[spark.DataType], ...]] = {
    "command": _TEXT,
    "payload": (),
    "priority": _WHOLE,
    "delay_seconds": (*_WHOLE, spark.FloatType, spark.DoubleType, spark.DecimalType),
    "run_at": (spark.TimestampType, spark.StringType),
    "idempotency_key": (spark.StringType, *_WHOLE),
    "max_attempts": _WHOLE,
    "webhook": _TEXT,
}
"""The Spark types that each column accepts. A payload may have any type: text and binary hold JSON already, any other
value is encoded as JSON.
"""


class Rejected(Struct, frozen=True):
    """A row that is not a valid task. `row` is its number in the partition."""

    row: int
    code: str
    reason: str


def check_columns(schema: spark.StructType, command: str) -> None:
    """Raises InvalidRequest if the columns of the DataFrame are not those of a task."""
    given = {field.name: field.dataType for field in schema.fields}
    unknown = sorted(set(given) - set(COLUMNS))
    if unknown:
        raise InvalidRequest(
            f"a task has no columns {', '.join(unknown)}; put them into payload, as in "
            f"df.select(struct('*').alias('payload')). The columns of a task are {', '.join(COLUMNS)}"
        )
    if "payload" not in given:
        raise InvalidRequest(
            "a task needs a column payload: JSON text, or a struct, map or array to be encoded as JSON"
        )
    if "command" not in given and not command:
        raise InvalidRequest("a task needs a command: as a column, or as the option command for all rows")
    for name, kind in given.items():
        kinds = COLUMNS[name]
        if kinds and not isinstance(kind, kinds):
            accepted = " or ".join(sorted({kind().simpleString() for kind in kinds}))
            raise InvalidRequest(f"column {name} is {kind.simpleString()}; it must be {accepted}")


def new_tasks(batch: pa.RecordBatch, first: int, *, command: str, key_prefix: str) -> Iterator[PackedTask | Rejected]:
    """Yields the task of each row, or why the row is rejected. `first` is the number of the first row in its partition;
    rows without an idempotency key get `key_prefix` and their number.
    """
    columns = {name: batch.column(name).to_pylist(maps_as_pydicts="lossy") for name in batch.schema.names}
    is_text = _is_text(batch.schema.field("payload").type)
    nulls = [None] * batch.num_rows
    rows = zip(*(columns.get(name, nulls) for name in COLUMNS), strict=True)
    for number, row in enumerate(rows, first):
        try:
            new_task = validation.new_task(_new_task(row, command, is_text=is_text))
            yield packed_task(new_task, new_task.idempotency_key or f"{key_prefix}{number}")
        except InvalidRequest as fault:
            yield Rejected(number, fault.code, str(fault))


def _new_task(row: tuple[Any, ...], default_command: str, *, is_text: bool) -> NewTask:
    command, payload, priority, delay_s, run_at, key, max_attempts, webhook = row
    if command is None and not default_command:
        raise InvalidRequest("command is null")
    return NewTask(
        command=default_command if command is None else command,
        payload=_payload(payload, is_text=is_text),
        priority=0 if priority is None else priority,
        delay_ms=_milliseconds(delay_s) if delay_s else 0,
        run_at_ms=None if run_at is None else _unix_ms(run_at),
        max_attempts=max_attempts,
        idempotency_key=None if key is None or key == "" else str(key),
        webhook=webhook or None,
    )


def _payload(value: Any, *, is_text: bool) -> bytes:
    if value is None:
        raise InvalidRequest("payload is null")
    if is_text:
        return value if isinstance(value, bytes) else value.encode()
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidRequest(f"payload cannot be written as JSON: {fault}") from None


def _milliseconds(seconds: float) -> int:
    try:
        return round(seconds * 1000)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"delay_seconds must be a number of seconds, not {seconds}") from None


def _unix_ms(value: datetime | str) -> int:
    try:
        if isinstance(value, str):
            return max(0, times.parse(value))
        return max(0, round((value.replace(tzinfo=UTC) if value.tzinfo is None else value).timestamp() * 1000))
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"run_at is {fault}") from None


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
