"""Changes that would change nothing: found by filters, confirmed by a read, and answered without a write."""

from collections.abc import Sequence

from codeq.domain import lifecycle
from codeq.domain.queue import Index
from codeq.domain.task import Change, Move
from codeq.store.redis import records
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.filters import Filters
from codeq.store.redis.keys import ShardKeys, id_bytes, idempotency_field

_CANCEL, _ENQUEUE, _PURGE = Move.CANCEL, Move.ENQUEUE, Move.PURGE
_ENDINGS = frozenset({_CANCEL, _PURGE})
Filtered = Sequence[tuple[int, Change]]
"""Changes with their places among others."""
UNKNOWN = -1
"""Stands for an answer that only the script can give."""


class KnownChanges:
    """A key that has a task, a task that was cancelled or purged before: reads cost less than the script that finds
    that there is nothing to do, and leave nothing in the append-only file."""

    def __init__(self, connection: RedisClient, keys: ShardKeys, filters: Filters) -> None:
        self._connection = connection
        self._keys = keys
        self._filters = filters

    def filtered(self, changes: Sequence[Change]) -> Filtered:
        """Returns the changes that a filter may know something of: most have no key, and are none of these."""
        return [
            (place, change)
            for place, change in enumerate(changes)
            if (change.move in _ENDINGS if (body := change.body) is None else body.idempotency_key is not None)
        ]

    def suspects(self, filtered: Filtered) -> list[int]:
        """Returns the places of the changes that a filter says yes to."""
        return [place for place, change in filtered if self._is_suspect(change)]

    def _is_suspect(self, change: Change) -> bool:
        move = change.move
        if move is _ENQUEUE:
            field = _field(change)
            return field is not None and field in self._filters.idempotency
        if move is _CANCEL:
            return id_bytes(change.after.id) in self._filters.ghost
        return move is _PURGE and id_bytes(change.after.id) in self._filters.cleanup

    async def look(self, changes: Sequence[Change]) -> list[int | bytes]:
        """Returns what the commit script would answer to those that would indeed change nothing; UNKNOWN for others."""
        answers: list[int | bytes] = [UNKNOWN] * len(changes)
        fields = {place: field for place, change in enumerate(changes) if (field := _field(change)) is not None}
        ids = {place: id_bytes(change.after.id) for place, change in enumerate(changes) if place not in fields}
        if fields:
            owners = await self._connection.call("HMGET", self._keys.idempotency, *fields.values())
            for place, owner in zip(fields, owners, strict=True):
                if owner not in (None, id_bytes(changes[place].after.id)):
                    answers[place] = owner
        if ids:
            stored = await self._connection.call("HMGET", self._keys.records, *ids.values())
            for place, record in zip(ids, stored, strict=True):
                if _is_stale(changes[place], record):
                    answers[place] = 0
        return answers

    def learn(self, filtered: Filtered, answers: Sequence[int | bytes]) -> None:
        """Adds what these changes have done, or have found done."""
        filters = self._filters
        for place, change in filtered:
            move, before, answer = change.move, change.before, answers[place]
            if move is _ENQUEUE:
                field = _field(change)
                if field is not None and answer:
                    filters.idempotency.add(field)
            elif move is _PURGE:
                filters.cleanup.add(id_bytes(change.after.id))
            elif move is _CANCEL and before is not None and lifecycle.position(before) is Index.PENDING and answer:
                filters.ghost.add(id_bytes(change.after.id))


def _field(change: Change) -> str | None:
    body = change.body
    if change.move is not _ENQUEUE or body is None or body.idempotency_key is None:
        return None
    return idempotency_field(change.after.tenant, body.idempotency_key)


def _is_stale(change: Change, record: bytes | None) -> bool:
    """Whether the script would refuse the change. It accepts one that is there already: its answer was lost."""
    if record is None or change.before is None:
        return record is None
    return not records.is_current(record, change.before) and not records.is_record_of(record, change.after)
