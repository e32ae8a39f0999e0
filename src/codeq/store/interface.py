"""What a store must do: the interface between the rules of the queue and the engine that stores the tasks.

Engines do not decide. They compare versions, index records by `lifecycle.position`, append one event per change, and
never read a status otherwise. Verbs are batches; an empty batch is legal and does nothing.

Verbs take effect at once and are visible to the next verb at once, but nothing is durable until `flush` has returned:
every use case flushes before it returns.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Raw, Struct

from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Change, Task
from codeq.store import codec

if TYPE_CHECKING:
    import pyarrow as pa


class ClaimRequest(Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks of which queues a worker wants. `limits` caps a queue's tasks in progress; absent means no cap."""

    queues: Sequence[QueueKey]
    worker: str
    lease_ms: int
    limit: int
    limits: Mapping[QueueKey, int] = {}


class Events(NamedTuple):
    """Consecutive events of a shard, and the range of events that the shard has: `first` to `next - 1`."""

    records: Sequence[Raw]
    """As the codec encoded them: making columns of them needs no object per event."""
    first: int
    next: int

    @property
    def events(self) -> list[Task]:
        """Decodes the events, at every access."""
        return codec.decode_tasks(codec.joined(self.records))

    def columns(self, wanted: Collection[str]) -> "dict[str, pa.Array] | None":
        """Returns fields of the events as Arrow columns; None if a record is not encoded as this version encodes it.

        Needs numpy and pyarrow, whose first import is slow.
        """
        from codeq.store import arrow  # noqa: PLC0415 - large, and only readers of Arrow need it

        try:
            return arrow.columns(self.records, wanted)
        except arrow.UnexpectedEncoding:
            return None


class Listener:
    """Callbacks of a store. They run on the event loop, so they must not block, and they must not raise."""

    def ready(self, queue: QueueKey, tasks: int) -> None:
        """Called when `tasks` tasks of the queue have become claimable."""

    def moved(self, tasks: Sequence[Task]) -> None:
        """Called with the tasks after their move. Heartbeats are not reported."""

    def flushed(self, calls: int, seconds: float) -> None:
        """Called after a flush: how many calls it served, and how long the disk took."""


class Store(Protocol):
    @property
    def shards(self) -> int:
        """How many shards there are; the ids of new tasks name one of them (see `domain.ids`)."""

    def now_ms(self) -> int:
        """Returns the store's clock, in Unix milliseconds. It never runs backwards while the store is open."""

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        """Applies each change whole or not at all: record, body, result, index, counts and event in one atomic step.

        Returns per change: `change.after`, now with its version; None where the stored task is no longer
        `change.before`; or, for an enqueue whose idempotency key the tenant has used, the task that has the key.
        A heartbeat extends the lease in memory and is written lazily. The changes of one shard are applied in order.
        """

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        """Leases up to `limit` ready tasks, by `lifecycle.claim`: highest priority first over all queues, equal
        priorities in rotation over the queues, first in first out inside one. No task is leased to two callers.

        Costs the same whatever the backlog and however many tasks were delivered before.
        """

    async def get_tasks(self, tenant: str, ids: Sequence[str]) -> list[Task | None]:
        """Returns the stored tasks; None for an id that does not exist or belongs to another tenant."""

    async def get_records(self, tenant: str, ids: Sequence[str]) -> list[Record | None]:
        """As `get_tasks`, with body and result. None for the rest once BATCH_BYTES_MAX of payload have been read."""

    async def due(self, index: Index, now_ms: int, limit: int) -> list[Task]:
        """Returns tasks that are due, earliest first: DELAYED by visibility, IN_PROGRESS by lease, NONE by retention.

        NONE includes dead tasks. The cost is proportional to what it returns, not to what is stored.
        """

    async def find(self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int) -> Page:
        """Returns a page of the tenant's tasks, newest first (dead ones by command, oldest death first).

        Reads a bounded number of records: a page may be short, even empty, with a cursor to continue from.
        Raises InvalidRequest for a bad cursor.
        """

    async def counts(self, tenant: str | None, *, ages: bool = False) -> dict[QueueKey, QueueCounts]:
        """Returns every queue of the tenant (of all tenants for None) that holds a task, with exact counts.

        `oldest_ms` is set with `ages` only: it may read a record per queue and priority.
        """

    async def events(self, shard: int, start: int, limit: int) -> Events:
        """Returns events `start`, `start + 1`, ... of the shard; if `start` was trimmed, from the first one left."""

    async def trim(self, *, before_ms: int, keep_max: int) -> int:
        """Deletes events older than `before_ms`, and the oldest beyond `keep_max` per shard. Returns how many."""

    def policies(self) -> Mapping[QueueKey, QueuePolicy]:
        """Returns the stored policies of every tenant."""

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None) -> None:
        """Stores the policy; None deletes it."""

    async def flush(self) -> None:
        """Returns once everything that any verb has done or returned is on disk. At once if it already is.

        Raises StoreFailed if it may not be: then the outcome of the waiting calls is unknown, and the store refuses
        everything until it is opened again.
        """

    async def checkpoint(self, target: Path) -> None:
        """Writes a consistent copy into the new directory `target`, while the store continues to work."""

    async def close(self) -> None:
        """Flushes, releases the files, and refuses every later call."""


Clock = Callable[[], int]
