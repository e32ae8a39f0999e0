"""A row of a DataFrame as a task: which columns there are, what they may hold, and why a row is no task."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import types as spark

from codeq.domain.limits import ATTEMPTS_MAX, ATTEMPTS_MIN, PAYLOAD_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from codeq.errors import InvalidRequest
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
"""What each column may be made of; a payload may be anything: text is taken as JSON, the rest is written as JSON."""


class Rejected(Struct, frozen=True):
    row: int
    code: str
    reason: str


Key = Callable[[int], str]


def check_columns(schema: spark.StructType, command: str) -> None:
    """Raises InvalidRequest for a DataFrame whose rows cannot be tasks."""
    given = {field.name: field.dataType for field in schema.fields}
    unknown = sorted(set(given) - set(COLUMNS))
    if unknown:
        raise InvalidRequest(
            f"columns that a task does not have: {', '.join(unknown)}; put them into payload, as in "
            f"df.select(struct('*').alias('payload')). A task has: {', '.join(COLUMNS)}"
        )
    if "payload" not in given:
        raise InvalidRequest("a task needs a column payload: JSON text, or a struct, map or array that becomes JSON")
    if "command" not in given and not command:
        raise InvalidRequest("a task needs a command: as a column, or as the option command for all rows")
    for name, kind in given.items():
        kinds = COLUMNS[name]
        if kinds and not isinstance(kind, kinds):
            takes = " or ".join(sorted({kind().simpleString() for kind in kinds}))
            raise InvalidRequest(f"column {name} is {kind.simpleString()}; it takes {takes}")


def orders(batch: pa.RecordBatch, first: int, *, command: str, key: Key) -> Iterator[PackedTask | Rejected]:
    """The tasks of a batch whose first row has the number `first` in its partition, and its rows that are none."""
    columns = {name: _values(batch.column(name)) for name in batch.schema.names}
    is_text = _is_text(batch.schema.field("payload").type)
    empty = [None] * batch.num_rows
    given = [columns.get(name, empty) for name in COLUMNS]
    for number, row in enumerate(zip(*given, strict=True), first):
        try:
            yield _order(row, command, is_text=is_text, key=lambda number=number: key(number))  # type: ignore[misc]
        except InvalidRequest as fault:
            yield Rejected(number, fault.code, str(fault))


def _order(row: tuple[Any, ...], fallback: str, *, is_text: bool, key: Callable[[], str]) -> PackedTask:
    command, payload, priority, delay_s, run_at, own_key, attempts, webhook = row
    if command is None and not fallback:
        raise InvalidRequest("command is null")
    return PackedTask(
        command=command if command is not None else fallback,
        payload=_payload(payload, is_text=is_text),
        priority=_within(priority, "priority", PRIORITY_MIN, PRIORITY_MAX) or 0,
        delay_seconds=_within(delay_s, "delay_seconds", 0, 31_622_400) or 0,
        run_at=_moment(run_at),
        idempotency_key=str(own_key) if own_key is not None else key(),
        max_attempts=_within(attempts, "max_attempts", ATTEMPTS_MIN, ATTEMPTS_MAX) or 0,
        webhook=webhook,
    )


def _payload(value: Any, *, is_text: bool) -> bytes:
    if value is None:
        raise InvalidRequest("payload is null")
    if is_text:
        payload = value if isinstance(value, bytes) else value.encode()
    else:
        try:
            payload = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as fault:
            raise InvalidRequest(f"payload cannot be written as JSON: {fault}") from None
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(f"the payload has {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} are taken")
    return payload


def _within(value: Any, name: str, least: int, most: int) -> Any:
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"{name} must be from {least} to {most}, not {value}")
    return float(value) if name == "delay_seconds" and value is not None else value


def _moment(value: datetime | str | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return times.text(round(moment.timestamp() * 1000))
    try:
        return times.text(times.parse(value))
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"run_at is {fault}") from None


def _values(column: pa.Array) -> list[Any]:
    return column.to_pylist(maps_as_pydicts="lossy")  # type: ignore[no-any-return]


def _is_text(kind: pa.DataType) -> bool:
    is_any = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    return any(check(kind) for check in is_any)
