"""codeQ: a durable, multi-tenant task queue."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codeq.distribution import __version__ as __version__

if TYPE_CHECKING:
    from codeq import errors
    from codeq.domain.backoff import Backoff, BackoffKind, PartialBackoff
    from codeq.domain.errors import CodeqError
    from codeq.domain.queue import OnExpiry
    from codeq.domain.requests import NewTask
    from codeq.domain.task import Move, Status
    from codeq.domain.tenants import TenantLimits
    from codeq.embedded import AsyncQueue, Queue, open, open_async
    from codeq.sdk.backoffs import exponential, fixed, linear, partial_backoff
    from codeq.sdk.client import AsyncClient, Client
    from codeq.sdk.default_queue import set_default_queue
    from codeq.sdk.definitions import TaskDefinition, task
    from codeq.sdk.jobs import (
        Job,
        QueueInfo,
        ReleaseResult,
        TaskDetails,
        TaskFailed,
        WaitTimeout,
    )
    from codeq.sdk.new_tasks import new_task, new_tasks
    from codeq.sdk.queue_policies import EffectivePolicy, QueuePolicy
    from codeq.sdk.tasks import ReplayedTask, Task, TypedTask
    from codeq.sdk.webhooks import WebhookInvalid, verify_webhook
    from codeq.sdk.worker import (
        Bury,
        Fail,
        Failure,
        Interrupted,
        Retry,
        RunningJob,
        Snooze,
        Worker,
        current_job,
    )
    from codeq.sdk.worker_info import WorkerStatus
    from codeq.store.data_dir import restore

_NAMES_BY_MODULE = {
    "codeq.domain.backoff": ("Backoff", "BackoffKind", "PartialBackoff"),
    "codeq.domain.errors": ("CodeqError",),
    "codeq.domain.queue": ("OnExpiry",),
    "codeq.domain.requests": ("NewTask",),
    "codeq.domain.task": ("Move", "Status"),
    "codeq.domain.tenants": ("TenantLimits",),
    "codeq.embedded": ("AsyncQueue", "Queue", "open", "open_async"),
    "codeq.sdk.client": ("AsyncClient", "Client"),
    "codeq.sdk.jobs": (
        "ReleaseResult",
        "Job",
        "TaskDetails",
        "QueueInfo",
        "TaskFailed",
        "WaitTimeout",
    ),
    "codeq.sdk.backoffs": ("exponential", "fixed", "linear", "partial_backoff"),
    "codeq.sdk.default_queue": ("set_default_queue",),
    "codeq.sdk.definitions": ("TaskDefinition", "task"),
    "codeq.sdk.new_tasks": ("new_task", "new_tasks"),
    "codeq.sdk.queue_policies": ("EffectivePolicy", "QueuePolicy"),
    "codeq.sdk.tasks": ("ReplayedTask", "Task", "TypedTask"),
    "codeq.sdk.webhooks": ("WebhookInvalid", "verify_webhook"),
    "codeq.sdk.worker": (
        "Bury",
        "Fail",
        "Failure",
        "Interrupted",
        "Retry",
        "RunningJob",
        "Snooze",
        "Worker",
        "current_job",
    ),
    "codeq.sdk.worker_info": ("WorkerStatus",),
    "codeq.store.data_dir": ("restore",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
"""Imported at first use: a client needs no storage engine, and the command line should start at once."""

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "Backoff",
    "BackoffKind",
    "Bury",
    "Client",
    "CodeqError",
    "EffectivePolicy",
    "Fail",
    "Failure",
    "Interrupted",
    "Job",
    "Move",
    "NewTask",
    "OnExpiry",
    "PartialBackoff",
    "Queue",
    "QueueInfo",
    "QueuePolicy",
    "ReleaseResult",
    "ReplayedTask",
    "Retry",
    "RunningJob",
    "Snooze",
    "Status",
    "Task",
    "TaskDefinition",
    "TaskDetails",
    "TaskFailed",
    "TenantLimits",
    "TypedTask",
    "WaitTimeout",
    "WebhookInvalid",
    "Worker",
    "WorkerStatus",
    "current_job",
    "errors",
    "exponential",
    "fixed",
    "linear",
    "new_task",
    "new_tasks",
    "open",
    "open_async",
    "partial_backoff",
    "restore",
    "set_default_queue",
    "task",
    "verify_webhook",
]

if not TYPE_CHECKING:  # a type checker must still notice a name that is not there

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("codeq.errors")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'codeq' has no attribute {name!r}")
        found = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
