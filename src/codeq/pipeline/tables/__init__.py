"""The tables of the lake: names, keys, columns and what they mean. `docs/reference/lake.md` is made from them."""

from codeq.pipeline.tables.history import BRONZE_EVENTS, PAYLOAD, SILVER_ATTEMPTS, SILVER_TASKS
from codeq.pipeline.tables.shape import Column, Merge, Table

__all__ = ["BRONZE_EVENTS", "PAYLOAD", "SILVER_ATTEMPTS", "SILVER_TASKS", "Column", "Merge", "Table"]
