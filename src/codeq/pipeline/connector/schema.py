"""The columns of an event as Spark types, derived from the one list in `codeq.wire.events`."""

from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from codeq.errors import InvalidRequest
from codeq.wire.events import COLUMNS, PAYLOAD

PURGED = "payload_purged"
"""With payloads: whether the task was purged, and its payload with it."""
_TYPES: dict[str, type[DataType]] = {
    "int32": IntegerType,
    "int64": LongType,
    "string": StringType,
    "timestamp": TimestampType,
}


def event_schema(*, payload: bool = False) -> StructType:
    """Returns the schema of `format("codeq-events")`; with `payload`, as with the option `includePayload`."""
    columns = (*COLUMNS, PAYLOAD) if payload else COLUMNS
    fields = [StructField(name, _TYPES[kind](), nullable) for name, kind, nullable in columns]
    return StructType([*fields, StructField(PURGED, BooleanType(), False)] if payload else fields)


def check_schema(schema: StructType, *, payload: bool) -> list[str]:
    """Returns the columns of a schema that the user chose: any columns of an event, in any order. Raises InvalidRequest
    for any other column.
    """
    known = {field.name: field.dataType for field in event_schema(payload=payload).fields}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            actual = known[field.name].simpleString() if field.name in known else "no column"
            raise InvalidRequest(
                f"the schema has column {field.name} as {field.dataType.simpleString()}, but events have {actual} of "
                "that name"
            )
    return [field.name for field in schema.fields]
