"""A priority queue on a Redis sorted set, for programs that need this and nothing else of codeQ.

Imports redis-py, `domain.errors` and `distribution`. `docs/guides/priority-queue.md` says when to use it and when
the service.
"""

from codeq.distribution import missing_package

try:
    from codeq.priority.blocking import BlockingPriorityQueue
    from codeq.priority.errors import InvalidTaskId, LockLost
    from codeq.priority.queue import PriorityQueue
    from codeq.priority.tasks import Claimed, Corrupted, TaskPriority
except ModuleNotFoundError as missing:
    if missing.name != "redis":
        raise
    raise ModuleNotFoundError(missing_package("codeq.priority", "redis", "redis"), name="redis") from None

__all__ = [
    "BlockingPriorityQueue",
    "Claimed",
    "Corrupted",
    "InvalidTaskId",
    "LockLost",
    "PriorityQueue",
    "TaskPriority",
]
