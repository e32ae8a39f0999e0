"""codeQ: a durable, multi-tenant task queue."""

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import CodeqError
from codeq.domain.queue import OnExpiry, QueueCounts, QueuePolicy
from codeq.domain.requests import NewTask
from codeq.domain.task import Move, Status, Task
from codeq.embedded import AsyncQueue, Job, Kept, Queue, new_tasks, open, open_async
from codeq.store.opening import restore

__version__ = "0.1.0"

__all__ = [
    "AsyncQueue",
    "Backoff",
    "BackoffKind",
    "CodeqError",
    "Job",
    "Kept",
    "Move",
    "NewTask",
    "OnExpiry",
    "Queue",
    "QueueCounts",
    "QueuePolicy",
    "Status",
    "Task",
    "new_tasks",
    "open",
    "open_async",
    "restore",
]
