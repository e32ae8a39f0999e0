"""Classes of changes: what the commit script must do for changes that move alike, with every key declared.

The script knows no rule of the queue. Here `lifecycle.position` has said which index a task leaves and which it enters,
and the script moves ids between keys as the classes say.
"""

from typing import Any, NamedTuple

from codeq.domain.queue import Index, QueueKey
from codeq.store import codec
from codeq.store.redis import keys
from codeq.store.redis.keys import Channels, ShardKeys

_PENDING, _DELAYED, _IN_PROGRESS, _DEAD, _NONE = Index
_COUNT_FIELDS = {_DELAYED: "d", _IN_PROGRESS: "r", _DEAD: "x"}
_UNFINISHED = frozenset({_PENDING, _DELAYED, _IN_PROGRESS})


class ChangeClass(NamedTuple):
    """What changes have in common that move alike, and which arguments each of them has."""

    tenant: str
    command: str
    before: Index | None
    after: Index | None
    priority: int
    """Of pending tasks, before or after."""
    is_quiet: bool
    is_final: bool
    is_guarded: bool
    """Whether a change expects a lease."""
    has_key: bool
    """Whether a change has an idempotency key."""
    has_content: bool
    """Whether a change has a body or a result among its arguments."""
    follows: bool
    """Whether a change is applied only if the one before it is."""
    was_withdrawn: bool
    """Whether tasks that are deleted may have left pending without a claim."""


class DescribedClasses(NamedTuple):
    keys: tuple[str, ...]
    """Every key that the script may touch."""
    description: bytes
    """For the script; names keys by their places."""


def describe(classes: tuple[ChangeClass, ...], shard_keys: ShardKeys, channels: Channels) -> DescribedClasses:
    return _Description(shard_keys, channels).of(classes)


class _Description:
    def __init__(self, shard_keys: ShardKeys, channels: Channels) -> None:
        self._shard_keys = shard_keys
        self._channels = channels
        self._places: dict[str, int] = {}

    def of(self, classes: tuple[ChangeClass, ...]) -> DescribedClasses:
        k = self._shard_keys
        for key in (k.records, k.bodies, k.results, k.task_keys, k.idempotency, k.number, k.events, k.absent):
            self._key(key)
        described = codec.encode([self._described(kind) for kind in classes])
        return DescribedClasses(tuple(self._places), described)

    def _described(self, kind: ChangeClass) -> dict[str, Any]:
        names, queue = self._shard_keys, QueueKey(kind.tenant, kind.command)
        of_queue = names.queue(queue)
        described: dict[str, Any] = _layout(kind) | {
            "counts": self._key(names.counts(kind.tenant)),
            "counted": [],
            "heads": [],
        }
        if kind.is_quiet:
            leased = self._key(of_queue.leased)
            return described | {
                "quiet": True, "enter": leased, "leased": leased,
                "heads": [[leased, self._key(names.leased_heads), of_queue.member]],
            }  # fmt: skip
        if kind.is_final and kind.after is not None:
            described["ended"] = True
        if kind.before is None and not kind.has_content:
            described["written"] = self._key(names.written_bodies)
        if kind.before is None or kind.after is None:
            described["listing"] = self._key(names.listing(kind.tenant))
        if kind.after is None:
            described["drops"] = True
        if kind.after is _PENDING:
            described["push"] = self._key(of_queue.pending[kind.priority])
            described["channel"] = self._channels.ready(queue)
        if kind.before is _PENDING:
            described["withdraws"] = [self._key(of_queue.withdrawn), str(kind.priority)]
        if kind.was_withdrawn:
            described["withdrawn"] = [self._key(of_queue.withdrawn), str(kind.priority)]
        self._index(described, kind, kind.before, "leave")
        self._index(described, kind, kind.after, "enter")
        self._count(described, kind)
        return described

    def _index(self, described: dict[str, Any], kind: ChangeClass, place: Index | None, verb: str) -> None:
        """Describes which sorted sets the task leaves or enters."""
        names, of_queue = self._shard_keys, self._shard_keys.queue(QueueKey(kind.tenant, kind.command))
        if place is _DELAYED:
            timed = (of_queue.delayed, names.delayed_heads, of_queue.member)
        elif place is _IN_PROGRESS:
            timed = (of_queue.leased, names.leased_heads, of_queue.member)
        elif place is _DEAD or place is _NONE:
            timed = (names.ended(kind.tenant), names.ended_heads, keys.quoted(kind.tenant))
        else:
            return
        index, heads, member = timed
        described[verb] = self._key(index)
        described["heads"].append([self._key(index), self._key(heads), member])
        if place is _IN_PROGRESS and verb == "leave":
            described["leased"] = self._key(index)
        if place is _DEAD:
            dead = [self._key(names.dead(kind.tenant)), kind.command]
            described["dead_from" if verb == "leave" else "dead_to"] = dead

    def _count(self, described: dict[str, Any], kind: ChangeClass) -> None:
        """Describes the counts that change: field, by how much for each task, the set of queues that are ready and the
        list, whether it counts bytes, and the set of tenants, with the name of this one, for the count of all tasks of
        a queue."""
        names, tenant, command, counted = self._shard_keys, kind.tenant, kind.command, described["counted"]
        for place, change in ((kind.before, -1), (kind.after, 1)):
            if place is _PENDING:
                pending = names.queue(QueueKey(tenant, command)).pending[kind.priority]
                ready = [self._key(names.ready(tenant)), self._key(pending)]
                counted.append([f"{kind.priority}{command}", change, ready, False, False])
            elif place is not None and place in _COUNT_FIELDS:
                counted.append([_COUNT_FIELDS[place] + command, change, False, False, False])
        if change := (kind.after not in (None, _NONE)) - (kind.before not in (None, _NONE)):
            counted.append([f"t{command}", change, False, False, [self._key(names.tenants), keys.quoted(tenant)]])
        if change := (kind.after in _UNFINISHED) - (kind.before in _UNFINISHED):
            counted.append(["#t", change, False, False, False])
        if kind.before is None or kind.after is None:
            counted.append(["#b", 1, False, True, False])

    def _key(self, key: str) -> int:
        """Returns the place of the key among those that the script declares."""
        return self._places.setdefault(key, len(self._places) + 1)


def _layout(kind: ChangeClass) -> dict[str, Any]:
    """Returns where the arguments of a change are: behind the head and the record, those that the class has."""
    described: dict[str, Any] = {}
    width = 2
    for name, is_there in (("guard", kind.is_guarded), ("field", kind.has_key), ("content", kind.has_content)):
        if is_there:
            described[name] = width
            width += 1
    if kind.before is None:
        described["new"] = True
    if kind.follows:
        described["follows"] = True
    return described | {"width": width}
