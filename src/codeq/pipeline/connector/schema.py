"""The columns of an event as Spark knows them, made of the one list in `codeq.wire.events`."""

from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from codeq.errors import InvalidRequest
from codeq.wire.events import COLUMNS, PAYLOAD

_TYPES: dict[str, type[DataType]] = {
    "int32": IntegerType,
    "int64": LongType,
    "string": StringType,
    "timestamp": TimestampType,
}


def event_schema(*, payload: bool = False) -> StructType:
    """What `format("codeq-events")` reads; with `payload`, what it reads with `includePayload`."""
    columns = (*COLUMNS, PAYLOAD) if payload else COLUMNS
    return StructType([StructField(name, _TYPES[kind](), nullable) for name, kind, nullable in columns])


def check_wanted(wanted: StructType, *, payload: bool) -> list[str]:
    """The columns of a schema that a user gave: any of ours, in any order. Raises InvalidRequest for another."""
    known = {field.name: field for field in event_schema(payload=payload).fields}
    for field in wanted.fields:
        if field.name not in known or known[field.name].dataType != field.dataType:
            ours = known[field.name].dataType.simpleString() if field.name in known else "none"
            asked = field.dataType.simpleString()
            raise InvalidRequest(f"column {field.name} was asked for as {asked}, but events have {ours} of that name")
    return [field.name for field in wanted.fields]
