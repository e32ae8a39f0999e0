"""The policies of all queues: kept in memory, stored in the first shard."""

from collections.abc import Mapping

from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.store import codec
from codeq.store.redis.keys import queue_member, queue_of_member

VERSION = b""
"""The field that counts changes; no queue has this name."""


class PolicyCache:
    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        self.by_queue: dict[QueueKey, QueuePolicy] = {}
        self._raw: dict[QueueKey, bytes] = {}
        self.generation = 0
        """Counts what was taken over, so that an answer of Redis that others have overtaken is noticed."""
        self.replace_all(stored)

    def replace_all(self, stored: Mapping[bytes, bytes]) -> list[QueueKey]:
        """Takes over all stored policies. Returns the queues whose policy is another one now."""
        self.version = stored.get(VERSION, b"0")
        known = {queue_of_member(field.decode()): raw for field, raw in stored.items() if field != VERSION}
        changed = [queue for queue in known.keys() | self._raw.keys() if known.get(queue) != self._raw.get(queue)]
        for queue in changed:
            self._set(queue, known.get(queue, b""))
        self.generation += 1
        return changed

    def set(self, queue: QueueKey, raw: bytes) -> None:
        """Takes over one policy that this process has stored; b"" if it was deleted.

        Another process may have stored one since, which was read already: so all are read again.
        """
        self._set(queue, raw)
        self.generation += 1
        self.version = b""

    def _set(self, queue: QueueKey, raw: bytes) -> None:
        """One that cannot be read is none: the defaults apply."""
        try:
            policy = codec.decode_policy(raw)
        except codec.UNREADABLE:
            self.by_queue.pop(queue, None)
        else:
            self.by_queue[queue] = policy
        if raw:
            self._raw[queue] = raw
        else:
            self._raw.pop(queue, None)

    def raw(self, queue: QueueKey) -> bytes:
        return self._raw.get(queue, b"")


def field_of(queue: QueueKey) -> str:
    return queue_member(queue)
