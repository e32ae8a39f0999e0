"""Keeps a tenant within its limits: which new tasks, and which policy, would exceed them."""

from collections.abc import Sequence

from codeq.domain.errors import QuotaExceeded
from codeq.domain.queue import QueueKey
from codeq.domain.requests import NewTask
from codeq.domain.tenants import StorageUsage, TenantLimits
from codeq.usecases.core import Core

RETRY_AFTER_S = 5
"""For tasks and bytes, of which there will be fewer soon. A producer that returns sooner only adds load."""


async def all_fit(core: Core, tenant: str, number: int, size: int) -> bool:
    """Returns whether the tenant has room for so many new tasks with so many bytes of payload, even if each is for a
    queue of its own."""
    limits, usage = core.tenant_limits, await core.store.tenant_usage(tenant)
    return (
        (not limits.tasks or usage.tasks + number <= limits.tasks)
        and (not limits.queues or usage.queues + number <= limits.queues)
        and (not limits.payload_bytes or usage.payload_bytes + size <= limits.payload_bytes)
    )


async def refusals(core: Core, tenant: str, new_tasks: Sequence[NewTask]) -> dict[int, QuotaExceeded]:
    """Returns which of these tasks the tenant has no room for, by their place. Those before them are accepted.

    A repeated idempotency key adds nothing and is never refused. `all_fit` comes first: it costs the same for any
    number of tasks.
    """
    limits = core.tenant_limits
    keys = [new_task.idempotency_key for new_task in new_tasks if new_task.idempotency_key is not None]
    commands = list({new_task.command for new_task in new_tasks})
    usage = await core.store.tenant_usage(tenant, commands=commands, keys=keys)
    room, seen = _Room(limits, usage), set(usage.keys)
    found: dict[int, QuotaExceeded] = {}
    for place, new_task in enumerate(new_tasks):
        key = new_task.idempotency_key
        if key is not None and key in seen:
            continue
        refusal = room.add(new_task)
        if refusal is not None:
            found[place] = refusal
        elif key is not None:
            seen.add(key)
    return found


async def check_policies(core: Core, queue: QueueKey) -> None:
    """Refuses a policy for a queue that has none, once the tenant has as many as it may have."""
    limit = core.tenant_limits.policies
    if not limit or queue in core.store.policies():
        return
    if (await core.store.tenant_usage(queue.tenant)).policies >= limit:
        raise QuotaExceeded(f"the tenant has {limit} policies, as many as it may have; delete one", limit="policies")


class _Room:
    """What is left for the tenant, task by task."""

    def __init__(self, limits: TenantLimits, usage: StorageUsage) -> None:
        self._limits = limits
        self._tasks = usage.tasks
        self._bytes = usage.payload_bytes
        self._queues = usage.queues
        self._commands = set(usage.commands)
        self._no_more: QuotaExceeded | None = None
        """The refusal of every further task, once there are as many as there may be."""

    def add(self, new_task: NewTask) -> QuotaExceeded | None:
        """Counts the task in; returns why it is refused if there is no room for it."""
        limits, size, command = self._limits, len(new_task.payload), new_task.command
        if limits.tasks and self._tasks >= limits.tasks:
            self._no_more = self._no_more or QuotaExceeded(
                f"the tenant has {self._tasks} tasks that have not ended, and may have {limits.tasks}",
                limit="tasks",
                retry_after_s=RETRY_AFTER_S,
            )
            return self._no_more
        if limits.payload_bytes and self._bytes + size > limits.payload_bytes:
            return QuotaExceeded(
                f"the tenant has stored {self._bytes} bytes of payload, and may store {limits.payload_bytes}",
                limit="payload_bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        is_new_queue = command not in self._commands
        if is_new_queue and limits.queues and self._queues + 1 > limits.queues:
            return QuotaExceeded(
                f"the tenant has tasks in {self._queues} queues, and may have them in {limits.queues}", limit="queues"
            )
        self._tasks += 1
        self._bytes += size
        self._queues += is_new_queue
        self._commands.add(command)
        return None
