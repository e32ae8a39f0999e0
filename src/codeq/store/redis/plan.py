"""What the commit script must do: the changes as arguments, in runs of those that move alike."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from struct import Struct as Layout
from typing import NamedTuple

from codeq.domain import lifecycle
from codeq.domain.task import Body, Change, Move, Task
from codeq.store import codec
from codeq.store.redis import keys, records
from codeq.store.redis.classes import ChangeClass, DescribedClasses, describe
from codeq.store.redis.connection import LuaScript
from codeq.store.redis.keys import Channels, ShardKeys, id_bytes

COMMIT = LuaScript("commit")
INLINE_BODY_BYTES_MAX = 1024
"""Bodies up to this length are arguments of the script; longer ones are written beside it, because Lua hashes every
argument."""

_CACHED_DESCRIPTIONS = 1024
"""Per shard: about two megabytes. Most commits have one or two classes, and the same ones again and again."""

_CANCEL, _COMPLETE, _HEARTBEAT, _PURGE = Move.CANCEL, Move.COMPLETE, Move.HEARTBEAT, Move.PURGE
_GUARDED = frozenset({Move.EXPIRE, Move.ABANDON, _HEARTBEAT})
"""Moves that a heartbeat may contradict, which changes a lease and no version: they expect the lease as well."""
Argument = bytes | str | int
_position = lifecycle.position
_delivery_of = attrgetter("delivery")
_new_head, _head = Layout(">16sI").pack, Layout(">16sIQ").pack


class CommitPlan(NamedTuple):
    keys: tuple[str, ...]
    arguments: list[Argument]
    bodies: list[tuple[bytes, bytes]]
    """Large bodies of new tasks, by id: to be written in the same transaction, before the script."""


class CommitPlanner:
    """Makes the arguments of the commit script of one shard."""

    def __init__(self, shard_keys: ShardKeys, shard: int) -> None:
        self._shard_keys = shard_keys
        self._channels = Channels(shard_keys.prefix)
        self._shard = shard.to_bytes(2, "big")
        self._described = lru_cache(maxsize=_CACHED_DESCRIPTIONS)(self._describe)

    def plan(self, changes: Sequence[Change], *, is_repeated: bool = False) -> CommitPlan:
        """`is_repeated`: whether the script may have been run with these changes before."""
        classes = _Classes()
        runs: list[list[int | str]] = []
        arguments: list[Argument] = []
        bodies: list[tuple[bytes, bytes]] = []
        last_number = last_time = run = 0
        for change, follows in _with_deliveries(changes):
            before, after = change.before, change.after
            own = _created(after, change.body, bodies) if before is None else _moved(change, before)
            number = classes.number(change, len(own), follows=follows)
            time = after.visible_ms or after.lease_until_ms or after.purge_ms
            if number != last_number or time != last_time:
                if run:
                    runs.append([last_number, str(last_time), run])
                last_number, last_time, run = number, time, 0
            run += 1
            arguments += own
        if run:
            runs.append([last_number, str(last_time), run])
        described = self._described(tuple(classes.found))
        has_twins = len({change.after.id for change in changes}) < len(changes)
        head: list[Argument] = [
            described.description,
            codec.encode(runs),
            self._channels.moved,
            self._shard,
            "2" if is_repeated else "1" if has_twins else "",
        ]
        return CommitPlan(described.keys, head + arguments, bodies)

    def _describe(self, classes: tuple[ChangeClass, ...]) -> DescribedClasses:
        return describe(classes, self._shard_keys, self._channels)


class _Classes:
    """The classes of some changes, numbered from 1."""

    def __init__(self) -> None:
        self.found: dict[ChangeClass, int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, change: Change, width: int, *, follows: bool) -> int:
        """Returns the number of the class of a change with so many arguments.

        It is looked up by what decides the class, because to make one costs three times as much.
        """
        before, after, move, body = change.before, change.after, change.move, change.body
        decisive = (
            move, after.command, after.priority, width, _position(after), after.tenant, follows,
            (body is None or body.idempotency_key is None) if before is None else (before.move, _position(before)),
        )  # fmt: skip
        number = self._numbers.get(decisive)
        if number is None:
            kind = _class_of(change, width, follows=follows)
            number = self._numbers[decisive] = self.found.setdefault(kind, len(self.found) + 1)
        return number


def _with_deliveries(changes: Sequence[Change]) -> Iterable[tuple[Change, bool]]:
    """Returns the changes, each with the delivery that it creates behind it, and whether it is such a delivery."""
    if not any(map(_delivery_of, changes)):
        return zip(changes, repeat(False))
    found = [((change, False), (change.delivery, True)) for change in changes]
    return [(change, follows) for pair in found for change, follows in pair if change is not None]


def _created(after: Task, body: Body | None, bodies: list[tuple[bytes, bytes]]) -> list[Argument]:
    """Returns the arguments of a new task. A large body is added to `bodies` instead."""
    task_id = id_bytes(after.id)
    arguments: list[Argument] = [_new_head(task_id, after.payload_bytes), records.without_version(after)]
    if body is None:
        return arguments
    if body.idempotency_key is not None:
        arguments.append(keys.idempotency_field(after.tenant, body.idempotency_key))
    content = codec.encode(body)
    if len(content) > INLINE_BODY_BYTES_MAX:
        bodies.append((task_id, content))
    else:
        arguments.append(content)
    return arguments


def _moved(change: Change, before: Task) -> list[Argument]:
    """Returns the arguments of a change of a stored task."""
    after, move = change.after, change.move
    head = _head(id_bytes(after.id), after.payload_bytes, before.version)
    arguments: list[Argument] = [head, records.without_version(after)]
    if move is _COMPLETE:
        if change.result != records.NULL:
            arguments.append(change.result or b"")
    elif move is _PURGE:
        if before.move is _CANCEL:
            arguments[0] = head + before.previous.to_bytes(8, "big")
    elif move in _GUARDED:
        arguments.append(before.lease_until_ms)
    elif change.result:
        arguments.append(change.result)
    return arguments


def _class_of(change: Change, width: int, *, follows: bool) -> ChangeClass:
    """Returns the class of a change with so many arguments."""
    before, after, move, body = change.before, change.after, change.move, change.body
    is_guarded = before is not None and move in _GUARDED
    has_key = before is None and body is not None and body.idempotency_key is not None
    return ChangeClass(
        after.tenant,
        after.command,
        None if before is None else _position(before),
        None if move is _PURGE else _position(after),
        after.priority,
        move is _HEARTBEAT,
        after.status.is_final,
        is_guarded,
        has_key,
        width > 2 + is_guarded + has_key,
        follows,
        _was_withdrawn(change),
    )


def _was_withdrawn(change: Change) -> bool:
    """Returns whether the change deletes a task that may have been cancelled while it was pending."""
    return change.move is _PURGE and change.before is not None and change.before.move is _CANCEL


def answered(changes: Sequence[Change], answers: Sequence[int | bytes]) -> list[Task | None]:
    """Returns the tasks after these changes, each with the version that the script has given it; None for a change that
    was refused, or if another task has its key."""
    tasks: list[Task | None] = []
    for change, version in zip(changes, answers, strict=True):
        if type(version) is not int or not version:
            tasks.append(None)
            continue
        after = change.after
        if change.move is not _HEARTBEAT:
            codec.set_field(after, "version", version)
        if change.delivery is not None:
            codec.set_field(change.delivery.after, "version", version + 1)
        tasks.append(after)
    return tasks
