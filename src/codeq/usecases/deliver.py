"""Takes deliveries of result callbacks from their queues, and records how each attempt ended.

A delivery is a task of the queue `$webhooks` of its tenant (see `domain/result_callbacks.py`), so leases, backoff,
attempts, dead letters and retention are those of every task. Who sends them is the server's matter.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from codeq.domain import lifecycle
from codeq.domain.errors import CodeqError, NotFound, Refused, StoreBusy, StoreUnavailable
from codeq.domain.limits import PIECE_BYTES_MAX, WEBHOOK_TENANTS_MAX
from codeq.domain.queue import WEBHOOKS, QueueKey
from codeq.domain.requests import Delivery, NewTask, Outcome
from codeq.domain.result_callbacks import ResultCallback
from codeq.domain.task import Holder, Status, Task
from codeq.store.interface import ClaimRequest, Listener
from codeq.usecases import abandon, claim, nack, submit
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core, durable
from codeq.usecases.tenant_limits import all_fit, refusals

TEST_COMMAND = "codeq.test"
"""What a test delivery has as the command of its task."""


class Backlog(Listener):
    """The tenants that may have deliveries to send, in rotation. Must be among the store's listeners."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, None] = OrderedDict()
        self.changed = asyncio.Event()
        """Set when a tenant was added."""
        self.may_have_missed = True
        """Whether there may be deliveries of tenants that are not here: at first, and when others share the store."""

    def __len__(self) -> int:
        return len(self._tenants)

    def add(self, tenant: str) -> None:
        if tenant not in self._tenants and len(self._tenants) >= WEBHOOK_TENANTS_MAX:
            self.may_have_missed = True
            return
        self._tenants[tenant] = None
        self.changed.set()

    def next(self) -> str | None:
        """Removes and returns the tenant whose turn it is."""
        return self._tenants.popitem(last=False)[0] if self._tenants else None

    def ready(self, queue: QueueKey, tasks: int) -> None:  # noqa: ARG002 - taking them shows how many
        if queue.command == WEBHOOKS:
            self.add(queue.tenant)

    def policies_changed(self, queues: Iterable[QueueKey]) -> None:
        for queue in queues:
            self.ready(queue, 1)  # it may have been paused before

    def look_again(self) -> None:
        self.may_have_missed = True


async def find_backlog(core: Core, backlog: Backlog) -> None:
    """Adds all tenants that have deliveries to send. Costs a look at the queues in memory, or at every tenant on Redis;
    other calls run in between."""
    budget = LoopBudget(core, "")
    backlog.may_have_missed = False
    async for part in core.store.all_counts(WEBHOOKS):
        await budget.yield_if_spent()
        for queue, counted in part.items():
            if counted.pending:
                backlog.add(queue.tenant)


async def take(core: Core, tenant: str, *, worker: str, limit: int, lease_ms: int) -> list[Delivery]:
    """Leases up to `limit` of the tenant's deliveries. They are on disk as leased when it returns."""

    async def hand_back_all(taken: Sequence[Delivery]) -> None:
        await claim.hand_back(core, tenant, claim.leases_of(taken))

    taken = await core.store.take(
        ClaimRequest(
            tenant=tenant,
            commands=[WEBHOOKS],
            worker=worker,
            lease_ms=lease_ms,
            limit=limit,
            policy_of=core.policy_of,
            bytes_max=PIECE_BYTES_MAX,
            hand_back=hand_back_all,
        )
    )
    try:
        await core.store.flush([delivery.task.id for delivery in taken])
    except (asyncio.CancelledError, StoreBusy, StoreUnavailable):
        await hand_back_all(taken)
        raise
    return taken


def read(delivery: Delivery) -> ResultCallback:
    """Returns what is to be sent. Raises ValueError if it cannot be read."""
    return msgspec.json.decode(delivery.body.payload, type=ResultCallback)


async def command_of(core: Core, delivery: Task) -> str | None:
    """Reads of which command the task was whose end is delivered; None if that cannot be known."""
    try:
        [record] = await core.store.get_records(delivery.tenant, [delivery.id], results=False)
        return msgspec.json.decode(record.body.payload, type=ResultCallback).command if record is not None else None
    except (ValueError, StoreBusy, StoreUnavailable):
        return None


async def delivered(core: Core, delivery: Delivery, *, status: int, ms: int) -> Task | CodeqError:
    """Ends the delivery. Returns why not, if it was leased to another attempt meanwhile."""
    result = msgspec.json.encode({"status": status, "milliseconds": ms})
    outcome = Outcome(task_id=delivery.task.id, holder=_holder(delivery.task), status=Status.COMPLETED, result=result)
    [answer] = await submit.submit(core, delivery.task.tenant, [outcome])
    return answer if isinstance(answer, CodeqError) else answer.task


async def failed(
    core: Core, delivery: Delivery, reason: str, *, retry_after_ms: int | None = None, is_last: bool = False
) -> Task | CodeqError:
    """Counts a failed attempt: the delivery is retried after its backoff, and not before `retry_after_ms`, or it is
    dead. Returns why not, if it was leased to another attempt meanwhile."""
    task = delivery.task
    delay_ms = None if retry_after_ms is None else max(retry_after_ms, core.retry_ms(task))
    try:
        return await nack.nack(
            core, task.tenant, task.id, _holder(task), delay_ms=delay_ms, reason=reason, is_last=is_last
        )
    except (NotFound, Refused) as refusal:
        return refusal


async def hand_back(core: Core, delivery: Delivery, *, delay_ms: int = 0) -> Task | CodeqError:
    """Returns the delivery to its queue without counting an attempt."""
    task = delivery.task
    try:
        return await abandon.abandon(core, task.tenant, task.id, _holder(task), delay_ms=delay_ms)
    except (NotFound, Refused) as refusal:
        return refusal


@durable
async def enqueue_test(core: Core, tenant: str, url: str) -> Task:
    """Stores a delivery of no task, to see whether a receiver gets it and can verify it. It counts as a task of the
    tenant, and is refused past its limits; those of tasks that end are not, as each of them was a task before."""
    core.webhook_rules.check(url, "url")
    now_ms = core.now_ms()
    [delivery_id] = core.ids.generate(now_ms, core.shards, [None])
    callback = ResultCallback(
        task_id=delivery_id, command=TEST_COMMAND, url=url, status=Status.COMPLETED, error=None, last_error=None,
        attempts=0, created_ms=now_ms, ended_ms=now_ms, result=msgspec.Raw(b'{"test":true}'),
    )  # fmt: skip
    new = NewTask(command=WEBHOOKS, payload=msgspec.json.encode(callback))
    if not await all_fit(core, tenant, 1, len(new.payload)):
        for refusal in (await refusals(core, tenant, [new])).values():
            raise refusal
    policy = core.policy(tenant, WEBHOOKS)
    [task] = await core.commit([lifecycle.enqueue(new, delivery_id, tenant, now_ms=now_ms, policy=policy)])
    assert task is not None  # noqa: S101 - a new id is not taken
    return task


def _holder(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token, is_server=True)
