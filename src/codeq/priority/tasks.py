"""What the queue gives and takes: task ids, priorities, scores, a claimed task, a corrupted member."""

import math
import re
from dataclasses import dataclass
from enum import IntEnum

from codeq.domain.errors import InvalidRequest
from codeq.priority.errors import InvalidTaskId

PRIORITY_MAX = 100
BAND = 10**13
"""One priority in scores. The largest score, 1.01e15, is below 2**53, so a double keeps every millisecond of it."""

TASK_ID_CHARS_MAX = 256
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@#=+,~-]*")
"""The same in lua/dequeue.lua. No quotes and no spaces, so that an id has one form whoever wrote it."""


class TaskPriority(IntEnum):
    """The priorities of the code review. Any number from 0 to 100 may be used."""

    HIGH = 100
    NORMAL = 50


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task that this worker has locked. As text it is the task's id."""

    task_id: str
    priority: int
    lock: str
    """The value of the lock: the worker's name, a colon, the fencing number."""
    fencing: int
    """Larger with every delivery of any task. A system that stores results can refuse smaller ones."""
    attempts: int
    """How often the task was delivered, this time included."""

    def __str__(self) -> str:
        return self.task_id


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A member of the queue that is no task of ours. It was set aside as it was."""

    member: bytes
    score: float
    reason: str


def check_task_id(task_id: object) -> str:
    if not isinstance(task_id, str):
        raise InvalidTaskId(f"a task id is a str, not {type(task_id).__name__}: {task_id!r:.60}")
    if not _TASK_ID.fullmatch(task_id) or len(task_id) > TASK_ID_CHARS_MAX:
        raise InvalidTaskId(
            f"not a task id: {task_id!r:.60}; 1 to {TASK_ID_CHARS_MAX} letters, digits and ._:/@#=+,~-, "
            "beginning with a letter or digit"
        )
    return task_id


def check_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidRequest(f"priority is a whole number from 0 to {PRIORITY_MAX}, not {priority!r:.60}")
    return int(priority)


def score(priority: int, epoch_ms: int) -> int:
    """Returns where a task stands in the queue: the smallest score is served first."""
    return (PRIORITY_MAX - priority) * BAND + epoch_ms


def priority_of(score: float) -> int:
    return PRIORITY_MAX - int(score // BAND)


def corrupted(member: bytes, score: float) -> Corrupted:
    """Says what is wrong with a member that was set aside."""
    try:
        check_task_id(member.decode())
    except UnicodeDecodeError:
        return Corrupted(member, score, "not UTF-8")
    except InvalidTaskId:
        return Corrupted(member, score, "not a task id")
    known = math.isfinite(score) and 0 <= score < (PRIORITY_MAX + 1) * BAND
    return Corrupted(member, score, "reason unknown" if known else "the score is of no priority")
