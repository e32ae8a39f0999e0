"""How far a gold table has come: which events of bronze and which closed rows of silver it has taken in."""

from typing import NamedTuple

from codeq.pipeline.lake.table import EVENTS, Lake, LakeTable

ATTEMPTS, TASKS = "codeq/attempts", "codeq/tasks"
"""Marks: up to which batch the closed rows of silver are in the table."""


class Position(NamedTuple):
    """What a gold table has taken in."""

    epoch: int
    attempts: int
    tasks: int
    offsets: tuple[tuple[int, int], ...]
    """By shard, the first event of bronze that is not in it."""


def position_of(lake: Lake, table: LakeTable) -> Position:
    """Returns where the table stands. One of another epoch than silver's has nothing that counts."""
    if not table.batch or table.epoch != lake.tasks.epoch:
        return Position(lake.tasks.epoch, 0, 0, ())
    attempts, tasks = table.mark(ATTEMPTS), table.mark(TASKS)
    if attempts is None or tasks is None:
        return _position_of_old(lake, table)
    return Position(table.epoch, attempts, tasks, tuple(sorted(table.offsets.items())))


def _position_of_old(lake: Lake, table: LakeTable) -> Position:
    """The version before recorded only the batch of bronze, and gave closed rows the same number."""
    ends: dict[int, int] = {}
    for file in lake.bronze.files(part=EVENTS, up_to_batch=table.batch):
        if file.shard is not None:
            ends[file.shard] = max(ends.get(file.shard, 0), file.last_seq + 1)
    return Position(table.epoch, table.batch, table.batch, tuple(sorted(ends.items())))
