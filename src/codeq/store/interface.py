"""What a store must do: the interface between the rules of the queue and the engine that stores the tasks.

Engines do not decide. They compare versions, index records by `lifecycle.position`, append one event per change, and
never read a status otherwise. Verbs are batches; an empty batch is legal and does nothing.

Verbs take effect at once and are visible to the next verb at once, but nothing is durable until `flush` has returned:
every use case flushes before it returns.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Raw, Struct

from codeq.domain.errors import StoreBusy, StoreError
from codeq.domain.limits import BATCH_BYTES_MAX, CLAIM_BYTES_MAX
from codeq.domain.queue import EffectivePolicy, Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Delivery, Filter, Page, Record
from codeq.domain.task import Change, Task
from codeq.domain.tenants import StorageUsage
from codeq.store import codec

if TYPE_CHECKING:
    import pyarrow as pa


class Clock(Protocol):
    """The time that a store uses, in Unix milliseconds. It never runs backwards."""

    def __call__(self) -> int: ...

    def start_at(self, ms: int) -> None:
        """Puts the clock forward to this time if it is behind it. Called when a store is opened, and only then."""


class ClaimRequest(Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks of which queues of a tenant a worker wants."""

    tenant: str
    commands: Sequence[str] | None
    """None for all queues of the tenant."""
    worker: str
    worker_name: str | None = None
    """What the worker calls itself, for the event."""
    lease_ms: int | None
    """None for the lease that the policy of a task's queue names."""
    limit: int
    policy_of: Callable[[QueueKey], EffectivePolicy]
    """A paused queue delivers nothing, and `max_consumers` caps a queue's tasks in progress."""
    held_elsewhere: Mapping[QueueKey, int] = MappingProxyType({})
    """How many tasks of the queues with `max_consumers` are in progress in other shards."""
    bytes_max: int = CLAIM_BYTES_MAX
    """No further task is taken once the payloads of those taken have this length."""
    priority: int | None = None
    """Tasks of this priority only; None for all, the highest first."""
    hand_back: Callable[[list[Delivery]], Awaitable[None]] | None = None
    """Called with the tasks that were leased after the caller of `take` had been cancelled."""
    request_id: str | None = None
    """See `Store.take`."""
    is_part: bool = False
    """Whether this is a further part of a claim that has begun: its tasks are remembered under the request id beside
    those of the other parts, and the id is not looked up, as it would find those."""

    def of_shard(
        self, level: int, *, limit: int, bytes_max: int, held_elsewhere: Mapping[QueueKey, int]
    ) -> "ClaimRequest":
        """Returns the part of the claim that one shard serves: up to `limit` tasks of one priority."""
        return ClaimRequest(
            tenant=self.tenant,
            commands=self.commands,
            worker=self.worker,
            worker_name=self.worker_name,
            lease_ms=self.lease_ms,
            limit=limit,
            bytes_max=bytes_max,
            policy_of=self.policy_of,
            held_elsewhere=held_elsewhere,
            priority=level,
            hand_back=self.hand_back,
            request_id=self.request_id,
            is_part=True,
        )


class Scope(NamedTuple):
    """Of which tasks `Store.due` returns those that are due. None stands for all."""

    shard: int | None = None
    tenant: str | None = None
    commands: Sequence[str] | None = None


ALL = Scope()


class Events(NamedTuple):
    """Consecutive events of a shard from number `start` on, and the range of events that the shard has: `first` to
    `next - 1`. `start` is later than asked for, if events there were trimmed or cannot be read."""

    records: Sequence[Raw]
    """As the codec encoded them: making columns of them needs no object per event."""
    start: int
    first: int
    next: int
    on_unreadable: Callable[[], None] = lambda: None
    """Called if a record turns out to be unreadable: the next read leaves it out."""

    @property
    def events(self) -> list[Task]:
        """Decodes the events, at every access. Raises StoreBusy if one cannot be read: the next read leaves it out."""
        try:
            return codec.decode_tasks(codec.joined(self.records))
        except codec.UNREADABLE as fault:
            self.on_unreadable()
            raise StoreBusy(f"an event from number {self.start} on cannot be read ({fault}); read again") from fault

    def columns(self, wanted: Set[str]) -> "dict[str, pa.Array] | None":
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

    def withdrawn(self, task: Task) -> None:
        """Called with a cancelled task that could have been claimed until then."""

    def moved_elsewhere(self, ended: Collection[str]) -> None:
        """Called when another process has moved tasks in the same store, with the ids of those that have ended; only
        inside a block of `Peers.watch_moves`."""

    def look_again(self) -> None:
        """Called now and then by a store that may miss what other processes do: whoever waits for that should look."""

    def policies_changed(self, queues: Iterable[QueueKey]) -> None:
        """Called when the stored policies of these queues have changed, here or in another process."""

    def unreadable(self, key: bytes, reason: str) -> None:
        """Called when a record cannot be read. It was moved aside, if its index would stop at it otherwise."""

    def emptied(self, queue: QueueKey, version: int) -> None:
        """Called when a claim of this process has left no task of the queue to claim: those that come have higher
        versions. Only by stores that say so (`Peers.tells_emptied`)."""

    def flushed(self, calls: int, seconds: float) -> None:
        """Called after a flush: how many calls it served, and how long the disk took."""


class Registration(Struct, frozen=True, kw_only=True, gc=False):
    """A small record that lives until it expires: a worker that is at work, a subscription."""

    kind: str
    tenant: str
    name: str
    value: bytes
    expires_ms: int


class Registry(Protocol):
    """What workers and subscribers tell about themselves. Every process with the same store sees the same entries.
    Changes take effect at once, and are durable after `Store.flush`. Callers bound how many entries a tenant has."""

    async def put(self, entries: Sequence[Registration]) -> None:
        """Stores the entries, in the place of those with the same kind, tenant and name."""

    async def add(self, entries: Sequence[Registration]) -> list[bool]:
        """Stores those entries of which no other with the same kind, tenant and name exists. Returns which it has
        stored: of several processes that add the same entry at once, one does."""

    async def advance(self, entries: Sequence[Registration], *, over: Sequence[bytes]) -> list[bool]:
        """As `add`, and also stores an entry in the place of one whose value is less than `over`, which has a value for
        each entry. Values are digits, all of the same length; an empty one is less than all."""

    async def remove(self, kind: str, tenant: str, names: Sequence[str]) -> list[bool]:
        """Deletes entries. Returns which there were."""

    async def get(self, kind: str, tenant: str, names: Sequence[str]) -> list[Registration | None]:
        """Returns these entries; None for a name that there is not, or that has expired."""

    async def entries(self, kind: str, tenant: str | None = None) -> list[Registration]:
        """Returns the entries that have not expired, of the tenant or of all. Costs what it returns, and a little of
        what has expired."""


class Peers(Protocol):
    """The processes that share a store: what they tell each other, and which of them does the background work."""

    @property
    def tells_emptied(self) -> bool:
        """Whether `Listener.emptied` is called. Needed only where other processes add and claim tasks too."""

    def add_listener(self, listener: Listener) -> None:
        """Calls the listener from now on, as those the store was opened with."""

    def notify_ready(self, queue: QueueKey) -> None:
        """Tells the listeners of every process that the queue may have tasks to deliver, for reasons other than a move:
        a slot has become free, or a rule has changed. Does not wait."""

    def watch(self, queues: Sequence[QueueKey]) -> AbstractAsyncContextManager[None]:
        """Reports, inside the block, tasks of these queues that other processes make ready. May report a queue once
        at the beginning, because its tasks may have become ready before."""

    def watch_moves(self) -> AbstractAsyncContextManager[None]:
        """Reports, inside the block, tasks that other processes move. May call `Listener.look_again` at the beginning,
        because they may have been moved before."""

    async def is_sweeper(self, shard: int) -> bool:
        """Returns whether this process should do the background work of the shard. More than one may: moves happen
        once whoever makes them, so this only saves work."""


Primaries = tuple[str, ...]
"""What tells the server that has a shard from another one, for each shard. It never changes for an embedded store."""


class Store(Protocol):
    @property
    def peers(self) -> Peers:
        """The processes that have this store open."""

    @property
    def registry(self) -> Registry:
        """Entries about workers and subscribers, not about tasks."""

    @property
    def shards(self) -> int:
        """How many shards there are; the ids of new tasks name one of them (see `domain.ids`)."""

    @property
    def is_local(self) -> bool:
        """Whether its verbs wait for no other machine: reading is as quick as remembering, and shards are best visited
        one after the other."""

    @property
    def log_id(self) -> str:
        """Identifies the event log: another store has another id, and so has a store that was restored from a backup,
        because its log goes on from an earlier event."""

    def all_counts(self, command: str | None = None) -> AsyncIterator[Mapping[QueueKey, QueueCounts]]:
        """Yields the counts of the queues of all tenants that hold a task, or of those of one command; without ages, a
        few queues at a time."""

    def now_ms(self) -> int:
        """Returns the store's time, in Unix milliseconds. It never runs backwards, nor from one opening to the next."""

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        """Applies each change whole or not at all: record, body, result, index, counts and event in one atomic step.

        Returns per change: `change.after`, now with its version; None where the stored task is no longer
        `change.before`; or, for an enqueue whose idempotency key the tenant has used, the task that has the key.
        A heartbeat extends the lease and leaves the version as it is; it may be written lazily. So an expiry, an
        abandon and a heartbeat are also refused where the lease is no longer that of `change.before`. The changes of
        one shard are applied in order.
        """

    async def take(self, request: ClaimRequest) -> list[Delivery]:
        """Leases up to `limit` ready tasks, by `lifecycle.claim`: highest priority first over all queues and shards,
        equal priorities in rotation over the queues, first in first out inside a queue of one shard. No task is leased
        to two callers.

        Fewer are leased once their payloads have `bytes_max` together. Costs the same whatever the backlog and
        however many tasks were delivered before. A caller that is cancelled meanwhile loses none: see
        `ClaimRequest.hand_back`.

        With a `request_id` that this tenant and worker have used for a claim whose tasks are still leased by it,
        returns those tasks (`is_repeat`, with their leases as they are) and takes none. Otherwise remembers the id
        for as long as one of the tasks is leased by this claim, also over a restart. A claim that got no task is not
        remembered.
        """

    async def get_tasks(self, tenant: str, ids: Sequence[str], *, from_memory: bool = False) -> list[Task | None]:
        """Returns the stored tasks; None for an id that does not exist or belongs to another tenant.

        With `from_memory`, returns without a read tasks in progress as this process last saw them, and None for all
        others; an empty list where reading costs little. Another process may have moved them since: `commit` refuses a
        change of such a task, and nobody may refuse a caller because of it.
        """

    async def get_records(self, tenant: str, ids: Sequence[str], *, results: bool = True) -> list[Record | None]:
        """As `get_tasks`, with body and, unless `results` is False, with result. Callers bound what they ask for."""

    async def due(self, index: Index, now_ms: int, limit: int, *, scope: Scope = ALL) -> list[Task]:
        """Returns tasks that are due, earliest first in a queue, and the queues in turn: DELAYED by visibility,
        IN_PROGRESS by lease, NONE by retention (of all queues, whatever the scope).

        NONE includes dead tasks. The cost is proportional to what it returns, not to what is stored.
        """

    async def find(
        self, tenant: str, wanted: Filter, *, cursor: str | None, limit: int, bytes_max: int = BATCH_BYTES_MAX
    ) -> Page:
        """Returns a page of the tenant's tasks, newest first (dead ones by command, oldest death first; those of
        `purge_to_ms` by the time of their purge).

        Reads a bounded number of records, and ends before the payloads of its tasks exceed `bytes_max`: a page may be
        short, even empty, with a cursor to continue from.
        Raises InvalidRequest for a bad cursor.
        """

    async def counts(
        self, tenant: str | None, command: str | None = None, *, ages: bool = False
    ) -> dict[QueueKey, QueueCounts]:
        """Returns every queue of the tenant (of all tenants for None) that holds a task, with exact counts; only the
        queue of the command, if one is named.

        `oldest_ms` is set with `ages` only: it may read a record per queue and priority.
        """

    async def events(self, shard: int, start: int, limit: int) -> Events:
        """Returns events `start`, `start + 1`, ... of the shard; if `start` was trimmed or cannot be read, from the
        next one on."""

    async def trim(self, *, before_ms: int, keep_max: int, shard: int | None = None) -> int:
        """Deletes events older than `before_ms`, and the oldest beyond `keep_max`, of one shard or of each. Returns how
        many."""

    def policies(self) -> Mapping[QueueKey, QueuePolicy]:
        """Returns the stored policies of every tenant."""

    async def set_policy(self, queue: QueueKey, policy: QueuePolicy | None, *, replacing: QueuePolicy | None) -> bool:
        """Stores the policy; None deletes it. Does nothing and returns False if the stored one is not `replacing`."""

    async def tenant_usage(
        self, tenant: str, *, commands: Sequence[str] = (), keys: Sequence[str] = ()
    ) -> StorageUsage:
        """Returns what the tenant has stored, in constant time; of what other processes do, perhaps a second late.
        If asked, also which of these commands have tasks, and which of these idempotency keys belong to one."""

    @property
    def primaries(self) -> Primaries:
        """The server of each shard, as last heard of."""

    async def flush(self, ids: Sequence[str] | None = None, *, since: Primaries | None = None) -> None:
        """Returns once everything that the caller's verbs have done or returned is on disk. At once if it already is.

        Waits for the shards that this asyncio task has used since its last flush, or for those of the tasks `ids`: a
        slow disk of one shard does not delay calls that have nothing to do with it.

        `since` is what `primaries` was before the first of these verbs. A server that has taken over since then
        may not have what they did, and nobody can tell.

        Raises StoreFailed or StoreUnavailable if it may not be: then the outcome of the waiting calls is unknown. After
        StoreFailed the store refuses everything until it is opened again.
        """

    async def checkpoint(self, target: Path) -> None:
        """Writes a consistent copy into the new directory `target`, while the store continues to work.

        Raises InvalidRequest if the engine has means of its own for that.
        """

    async def close(self, because: StoreError | None = None) -> None:
        """Flushes, releases the files, and refuses every later call: with StoreClosed, or with `because`."""
