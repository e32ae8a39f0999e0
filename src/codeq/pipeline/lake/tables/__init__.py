"""Which tables the lake has: names, keys, columns and their meaning. `docs/reference/lake.md` is made of it.

Imports the wire and the types of PySpark alone.
"""

from codeq.pipeline.lake.tables.bronze_silver import (
    AUDIT_QUEUES,
    AUDIT_VIOLATIONS,
    BRONZE_EVENTS,
    SILVER_ATTEMPTS,
    SILVER_TASKS,
)
from codeq.pipeline.lake.tables.gold import (
    GOLD,
    GOLD_CAPACITY,
    GOLD_DEAD_LETTERS,
    GOLD_LATENCY,
    GOLD_RETRIES,
    GOLD_SERVICE_LEVELS,
    GOLD_THROUGHPUT,
    GOLD_USAGE,
    GOLD_WORKERS,
)
from codeq.pipeline.lake.tables.table import Column, Merge, Table

__all__ = [
    "ALL", "AUDIT_QUEUES", "AUDIT_VIOLATIONS", "BRONZE_EVENTS", "GOLD", "GOLD_CAPACITY", "GOLD_DEAD_LETTERS",
    "GOLD_LATENCY", "GOLD_RETRIES",
    "GOLD_SERVICE_LEVELS", "GOLD_THROUGHPUT", "GOLD_USAGE", "GOLD_WORKERS", "SILVER_ATTEMPTS",
    "SILVER_TASKS", "Column", "Merge", "Table", "reference",
]  # fmt: skip

ALL: tuple[Table, ...] = (BRONZE_EVENTS, SILVER_ATTEMPTS, SILVER_TASKS, AUDIT_VIOLATIONS, AUDIT_QUEUES, *GOLD)

_HEAD = """# Tables of the lake

Each is a Delta table in a folder of its own. Times are in UTC, with microseconds; durations are in milliseconds.
A column of a gold table that has a word under *adds up by* can be added up further in that way, over hours,
tenants or whatever else; those without are keys, or computed from the others.
This page is made from `codeq.pipeline.lake.tables`.
"""


def reference() -> str:
    """Returns the reference page of all tables, in Markdown."""
    return _HEAD + "".join(_section(table) for table in ALL)


def _section(table: Table) -> str:
    keys = ", ".join(f"`{key}`" for key in table.keys)
    by = "day, those of the newest day by hour" if table.partition == "hour" else f"`{table.partition}`"
    split = f" Files are split by {by}." if table.partition else ""
    adds_up = any(column.merge for column in table.columns)
    lines = [f"\n## {table.name}\n", f"{table.text}", f"One row per {keys}.{split}\n"]
    lines.append("| column | type | meaning |" + (" adds up by |" if adds_up else ""))
    lines.append("|---|---|---|" + ("---|" if adds_up else ""))
    for column in table.columns:
        more = f" {column.merge or ''} |" if adds_up else ""
        lines.append(f"| `{column.name}` | {column.kind.simpleString()} | {column.text} |{more}")
    return "\n".join(lines) + "\n"
