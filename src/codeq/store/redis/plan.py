"""What the commit script must do: changes sorted into classes that move alike, with every key declared.

The script knows no rule of the queue. Here `lifecycle.position` says which index a task leaves and which it enters, and
the script moves ids between keys as the classes say.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from codeq.domain import lifecycle
from codeq.domain.queue import Index, QueueKey
from codeq.domain.task import Change, Move, Task
from codeq.store import codec
from codeq.store.redis import keys
from codeq.store.redis.connection import LuaScript
from codeq.store.redis.keys import Channels, ShardKeys, id_bytes, version_bytes

COMMIT = LuaScript("commit")
INLINE_BODY_BYTES_MAX = 1024
"""Bodies up to this length are arguments of the script; longer ones are written beside it, because Lua hashes every
argument."""

_PENDING, _DELAYED, _IN_PROGRESS, _DEAD, _NONE = Index
_EXPIRE, _HEARTBEAT, _PURGE = Move.EXPIRE, Move.HEARTBEAT, Move.PURGE
_GUARDED = frozenset({_EXPIRE, _HEARTBEAT})
_COUNT_FIELDS = {_DELAYED: "d", _IN_PROGRESS: "r", _DEAD: "x"}
_UNFINISHED = frozenset({_PENDING, _DELAYED, _IN_PROGRESS})


class _Class(NamedTuple):
    """What changes have in common that move alike."""

    queue: QueueKey
    before: Index | None
    after: Index | None
    priority: int
    """Of pending tasks, before or after."""
    is_quiet: bool
    is_final: bool


class CommitPlan:
    """The arguments of the commit script for these changes."""

    def __init__(self, shard_keys: ShardKeys, channels: Channels, shard: int, changes: Sequence[Change]) -> None:
        self._shard_keys = shard_keys
        self._channels = channels
        self._places: dict[str, int] = {}
        self._classes: dict[_Class, int] = {}
        self._descriptions: list[dict[str, Any]] = []
        self.bodies: list[tuple[bytes, bytes]] = []
        """Large bodies of new tasks, by id: to be written in the same transaction, before the script."""
        k = shard_keys
        for key in (k.records, k.bodies, k.results, k.task_keys, k.idempotency, k.number, k.events, k.absent):
            self._key(key)
        arguments: list[bytes | str | int] = []
        for change in changes:
            arguments += self._arguments(change)
        self.arguments = [codec.encode(self._descriptions), channels.moved, shard.to_bytes(2, "big"), *arguments]

    @property
    def keys(self) -> list[str]:
        return list(self._places)

    def _arguments(self, change: Change) -> list[bytes | str | int]:
        before, after, body = change.before, change.after, change.body
        task_id = id_bytes(after.id)
        content = change.result or b""
        field = ""
        if body is not None:
            content = codec.encode(body)
            if len(content) > INLINE_BODY_BYTES_MAX:
                self.bodies.append((task_id, content))
                content = b""
            if body.idempotency_key is not None:
                field = keys.idempotency_field(after.tenant, body.idempotency_key)
        return [
            task_id + after.payload_bytes.to_bytes(4, "big"),
            b"" if before is None else version_bytes(before.version),
            before.lease_until_ms if before is not None and change.move in _GUARDED else "",
            codec.encode(after),
            after.visible_ms or after.lease_until_ms or after.purge_ms,
            field,
            self._class_of(change),
            content,
        ]

    def _class_of(self, change: Change) -> int:
        before, after = change.before, change.after
        kind = _Class(
            QueueKey(after.tenant, after.command),
            None if before is None else lifecycle.position(before),
            None if change.move is _PURGE else lifecycle.position(after),
            after.priority,
            change.move is _HEARTBEAT,
            after.status.is_final,
        )
        number = self._classes.get(kind)
        if number is None:
            self._descriptions.append(self._described(kind))
            number = self._classes[kind] = len(self._descriptions)
        return number

    def _described(self, kind: _Class) -> dict[str, Any]:
        names = self._shard_keys
        tenant = kind.queue.tenant
        of_queue = names.queue(kind.queue)
        described: dict[str, Any] = {"remove": [], "add": [], "counts": [], "heads": [], "tasks": 0}
        described["usage"] = self._key(names.usage(tenant))
        if kind.is_quiet:
            leased = self._key(of_queue.leased)
            described |= {"quiet": True, "guard": leased, "add": [leased]}
            described["heads"] = [[leased, self._key(names.leased_heads), of_queue.member]]
            return described
        if kind.is_final and kind.after is not None:
            described["ended"] = True
        if kind.before is None or kind.after is None:
            described["listing"] = self._key(names.listing(tenant))
        if kind.after is None:
            described["drops"] = True
        if kind.after is _PENDING:
            described["push"] = self._key(of_queue.pending[kind.priority])
            described["channel"] = self._channels.ready(kind.queue)
        self._index(described, kind, kind.before, "remove")
        self._index(described, kind, kind.after, "add")
        described["tasks"] = (kind.after in _UNFINISHED) - (kind.before in _UNFINISHED)
        self._count(described, kind)
        return described

    def _index(self, described: dict[str, Any], kind: _Class, place: Index | None, verb: str) -> None:
        """Describes which sorted sets the task leaves or enters."""
        names, of_queue = self._shard_keys, self._shard_keys.queue(kind.queue)
        tenant = kind.queue.tenant
        if place is _DELAYED:
            timed = (of_queue.delayed, names.delayed_heads, of_queue.member)
        elif place is _IN_PROGRESS:
            timed = (of_queue.leased, names.leased_heads, of_queue.member)
        elif place is _DEAD or place is _NONE:
            timed = (names.ended(tenant), names.ended_heads, keys.quoted(tenant))
        else:
            return
        index, heads, member = timed
        described[verb].append(self._key(index))
        described["heads"].append([self._key(index), self._key(heads), member])
        if place is _IN_PROGRESS:
            described["guard"] = self._key(index)
        if place is _DEAD:
            described["dead_from" if verb == "remove" else "dead_to"] = [
                self._key(names.dead(tenant)), kind.queue.command,
            ]  # fmt: skip

    def _count(self, described: dict[str, Any], kind: _Class) -> None:
        """Describes the counts that change. The last of a count's values are: the set of queues that are ready, and
        what counts and lists queues."""
        names, tenant, command = self._shard_keys, kind.queue.tenant, kind.queue.command
        counts = self._key(names.counts(tenant))
        for place, change in ((kind.before, -1), (kind.after, 1)):
            if place is _PENDING:
                described["counts"].append(
                    [counts, f"{kind.priority}{command}", change, self._key(names.ready(tenant))]
                )
            elif place is not None and place in _COUNT_FIELDS:
                described["counts"].append([counts, _COUNT_FIELDS[place] + command, change])
        counted = (kind.after not in (None, _NONE)) - (kind.before not in (None, _NONE))
        if counted:
            totals = [self._key(names.usage(tenant)), self._key(names.tenants), keys.quoted(tenant)]
            described["counts"].append([counts, f"t{command}", counted, False, totals])

    def _key(self, key: str) -> int:
        """Returns the place of the key among those that the script declares."""
        return self._places.setdefault(key, len(self._places) + 1)


def answer_of(change: Change, answer: int | bytes) -> Task | bytes | None:
    """Returns the task after the change; None if it was refused; the id of the task that has its idempotency key."""
    if isinstance(answer, bytes):
        return answer
    if not answer:
        return None
    if change.move is not _HEARTBEAT:
        codec.versioned(change.after, answer)
    return change.after
