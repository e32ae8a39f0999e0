"""The policies of one shard, all in memory."""

from collections import Counter
from collections.abc import Iterable

from codeq.domain.queue import QueueKey, QueuePolicy
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.write_buffer import WriteBuffer


class Policies:
    def __init__(self, buffer: WriteBuffer, stored: Iterable[tuple[QueueKey, QueuePolicy]]) -> None:
        self._buffer = buffer
        self.by_queue = dict(stored)
        self.of_tenant = Counter(queue.tenant for queue in self.by_queue)
        """How many each tenant has."""

    def set(self, queue: QueueKey, policy: QueuePolicy | None) -> None:
        """Stores the policy; None deletes it."""
        self.of_tenant[queue.tenant] += (policy is not None) - (queue in self.by_queue)
        if not self.of_tenant[queue.tenant]:
            del self.of_tenant[queue.tenant]
        if policy is None:
            self.by_queue.pop(queue, None)
            self._buffer.delete(keys.policy(queue))
        else:
            self.by_queue[queue] = policy
            self._buffer.put(keys.policy(queue), codec.encode(policy))
