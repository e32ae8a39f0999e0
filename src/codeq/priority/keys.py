"""Every key of a priority queue, and which of them are in one slot of a Redis Cluster.

    key                      type    content
    task:queue               ZSET    id -> (100 - priority) * 1e13 + epoch ms: the tasks that are ready, best first
    task:retry:queue         ZSET    id -> epoch ms from which the task is ready again
    task:in-flight           ZSET    id -> epoch ms at which the lock of its worker expires
    task:records             HASH    id -> "<order> <attempts> <fencing number> <score>"
    task:sequence            string  the last number given: order of arrival, and fencing numbers
    task:wake                LIST    ids of tasks that became ready, for calls that wait; short, may be deleted
    task:corrupted           ZSET    members that are no tasks -> the score they had
    task:dead                ZSET    id of a task that was delivered too often -> the score it had
    task:lock:<id>           string  "<worker>:<fencing number>", expires with the lock

A task is in exactly one of queue, retry queue, in flight and dead. Before each name come the prefix and, if there is
one, the hash tag in braces and a colon: `{reviews}:task:queue`. A cluster puts keys with the same tag into one slot.
"""

from codeq.domain.errors import InvalidRequest

_NAMES = (
    "task:queue",
    "task:retry:queue",
    "task:in-flight",
    "task:records",
    "task:sequence",
    "task:wake",
    "task:corrupted",
    "task:dead",
)


class QueueKeys:
    """The keys of one queue. `fixed` is what every script is given, in the order of lua/_record.lua."""

    def __init__(self, prefix: str = "", hash_tag: str | None = None) -> None:
        if hash_tag is not None and (not hash_tag or "{" in hash_tag + prefix or "}" in hash_tag):
            raise InvalidRequest(f"a hash tag is a text without braces, also in the prefix: {hash_tag!r}, {prefix!r}")
        self._before = prefix if hash_tag is None else f"{prefix}{{{hash_tag}}}:"
        self.fixed = tuple(self._before + name for name in _NAMES)
        self.queue, self.retry, self.in_flight, self.records = self.fixed[:4]
        self.sequence, self.wake, self.corrupted, self.dead = self.fixed[4:]

    def lock(self, task_id: str) -> str:
        return f"{self._before}task:lock:{task_id}"
