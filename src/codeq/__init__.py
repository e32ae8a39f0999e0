"""codeQ: a durable, multi-tenant task queue."""

from codeq import errors
from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import CodeqError
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.domain.requests import NewTask
from codeq.domain.task import Move, Status, Task
from codeq.embedded import AsyncQueue, Queue, open, open_async
from codeq.sdk.client import AsyncClient, Client
from codeq.sdk.jobs import GivenBack, Job, Kept, QueueInfo, TaskFailed, WaitedTooLong
from codeq.sdk.verbs import new_tasks
from codeq.sdk.worker import Fail, Interrupted, Retry, RunningJob, Worker, current_job
from codeq.store.opening import restore

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "Backoff",
    "BackoffKind",
    "Client",
    "CodeqError",
    "Fail",
    "GivenBack",
    "Interrupted",
    "Job",
    "Kept",
    "Move",
    "NewTask",
    "OnExpiry",
    "Queue",
    "QueueInfo",
    "QueuePolicy",
    "Retry",
    "RunningJob",
    "Status",
    "Task",
    "TaskFailed",
    "WaitedTooLong",
    "Worker",
    "current_job",
    "errors",
    "new_tasks",
    "open",
    "open_async",
    "restore",
]
