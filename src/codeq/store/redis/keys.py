"""Every key and channel of the Redis engine.

All keys of a shard begin with its hash tag, so that they are in one slot of a cluster:

    {codeq:<shard>}:<key>        type    content
    n                            string  number of the last event
    t                            hash    task id -> record; see `records.py`
    b                            hash    task id -> body
    r                            hash    task id -> result; of completed tasks, none for `null`, empty for no result
    f                            zset    bodies whose script has not run yet: task id by the time of writing
    k                            hash    task id -> field of `i`, for tasks with an idempotency key
    i                            hash    <tenant>:<idempotency key> -> task id
    p:<tenant>:<command>:<0..9>  list    pending, by priority: version (8), task id (16), payload bytes (4)
    W:<tenant>:<command>         zset    withdrawn (cancelled) while pending, in the order of bytes: <0..9>, version (8)
    d:<tenant>:<command>         zset    delayed: task id by the time it becomes visible
    l:<tenant>:<command>         zset    in progress: task id by the end of its lease
    x:<tenant>                   zset    ended: task id by the time it is purged
    D, L, X                      zset    queues, queues and tenants by the first time in their d, l and x
    q:<tenant>                   zset    dead, in the order of bytes: <command>, 0, version (8), task id (16)
    z:<tenant>                   zset    all tasks in the order of their ids
    c:<tenant>                   hash    counts by <0..9|d|r|x|t><command>: pending, delayed, in progress, dead, all;
                                         and of the tenant: #t, tasks that have not ended; #b, payload bytes; #q, queues
    a:<tenant>                   zset    the fields of `c` whose queue has pending tasks, in the order of bytes
    T                            set     tenants with tasks that are pending, delayed, in progress or dead
    e                            stream  events: <number of the first>-0, then the records of one script
    o:<tenant>:<worker>:<id>     string  the tasks that a claim with this request id leased; expires with the lease
    y                            hash    policies: <tenant>:<command> -> policy; in the first shard
    g:<kind>:<tenant>            hash    registrations: name -> expiry (8 bytes) and value; in the first shard
    G:<kind>:<tenant>            zset    names by the time they expire
    J:<kind>                     zset    tenants with registrations, by the latest of these times
    m                            hash    format, number of shards, id of the log, run id of the server when leases got
                                         their grace, and the name under which artifacts are owned
    s                            string  the process that does the background work; expires
    w                            string  written before WAIT
    v:<scope>:<tenant>:<subject> string  a rate limit's bucket: tokens left, and when; in the first shard. Without a
                                         subject, that of the tenant. Expires when it is full
    u                            hash    tenant -> bytes of artifacts that it has stored; in the first shard
    h                            hash    what could not be read: its key, and why
    -                            none     never written. A script that declares it is refused whole while the slot moves
                                         between nodes; else one that empties a key and reads it would end half-way

Channels have no slot; every process hears those it subscribes to:

    codeq:ready:<tenant>:<command>   tasks of the queue have become claimable
    codeq:moved                      shard (2 bytes), then the ids of the tasks that have ended
    codeq:policies                   fields of `y` that have changed

Tenants and idempotency keys are percent-encoded, and commands have no colon, so that no name can forge a key.
"""

from binascii import unhexlify
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from codeq.domain.ids import is_task_id
from codeq.domain.limits import PRIORITY_MAX
from codeq.domain.queue import QueueKey

_CACHED_NAMES = 8192
"""Per cache: a few megabytes for names of full length."""

PREFIX = "codeq"
"""The default of the setting that keeps several installations apart in one Redis."""


class KeysOfQueue(NamedTuple):
    """The keys of one queue in one shard."""

    pending: tuple[str, ...]
    """By priority."""
    delayed: str
    leased: str
    withdrawn: str
    member: str
    """The queue's name in `D` and `L`."""


class ShardKeys:
    """The keys of one shard."""

    def __init__(self, prefix: str, shard: int) -> None:
        self.prefix = prefix
        self.tag = tag = f"{{{prefix}:{shard}}}"
        self.number, self.events = f"{tag}:n", f"{tag}:e"
        self.records, self.bodies, self.results = f"{tag}:t", f"{tag}:b", f"{tag}:r"
        self.written_bodies = f"{tag}:f"
        self.task_keys, self.idempotency = f"{tag}:k", f"{tag}:i"
        self.delayed_heads, self.leased_heads, self.ended_heads = f"{tag}:D", f"{tag}:L", f"{tag}:X"
        self.tenants, self.policies, self.meta = f"{tag}:T", f"{tag}:y", f"{tag}:m"
        self.sweeper, self.marker, self.unreadable = f"{tag}:s", f"{tag}:w", f"{tag}:h"
        self.absent = f"{tag}:-"
        self.artifact_bytes = f"{tag}:u"
        self.queue = lru_cache(maxsize=_CACHED_NAMES)(self._queue)

    def _queue(self, queue: QueueKey) -> KeysOfQueue:
        name = queue_member(queue)
        return KeysOfQueue(
            tuple(f"{self.tag}:p:{name}:{priority}" for priority in range(PRIORITY_MAX + 1)),
            f"{self.tag}:d:{name}",
            f"{self.tag}:l:{name}",
            f"{self.tag}:W:{name}",
            name,
        )

    def ended(self, tenant: str) -> str:
        return f"{self.tag}:x:{quoted(tenant)}"

    def dead(self, tenant: str) -> str:
        return f"{self.tag}:q:{quoted(tenant)}"

    def listing(self, tenant: str) -> str:
        return f"{self.tag}:z:{quoted(tenant)}"

    def counts(self, tenant: str) -> str:
        return f"{self.tag}:c:{quoted(tenant)}"

    def ready(self, tenant: str) -> str:
        return f"{self.tag}:a:{quoted(tenant)}"

    def claim(self, tenant: str, worker: str, request_id: str) -> str:
        return f"{self.tag}:o:{quoted(tenant)}:{quoted(worker)}:{quoted(request_id)}"

    def registry(self, kind: str, tenant: str) -> tuple[str, str, str]:
        """Returns the keys of a tenant's registrations: values, expiries, and the tenants that have some."""
        name = f"{kind}:{quoted(tenant)}"
        return f"{self.tag}:g:{name}", f"{self.tag}:G:{name}", self.registered_tenants(kind)

    def registered_tenants(self, kind: str) -> str:
        return f"{self.tag}:J:{kind}"

    def bucket(self, name: Sequence[str]) -> str:
        return f"{self.tag}:v:{':'.join(map(quoted, name))}"


class Channels:
    """The channels of one installation."""

    def __init__(self, prefix: str) -> None:
        self.moved = f"{prefix}:moved"
        self.policies = f"{prefix}:policies"
        self._ready = f"{prefix}:ready:"

    def ready(self, queue: QueueKey) -> str:
        return self._ready + queue_member(queue)

    def ready_of_tenant(self, tenant: str) -> str:
        """Returns the pattern of the channels of all queues of the tenant. Encoded names have no special characters."""
        return f"{self._ready}{quoted(tenant)}:*"

    def queue_of(self, channel: str) -> QueueKey | None:
        """Returns the queue whose channel this is; None for any other channel."""
        return queue_of_member(channel.removeprefix(self._ready)) if channel.startswith(self._ready) else None


@lru_cache(maxsize=_CACHED_NAMES)
def quoted(text: str) -> str:
    return quote(text, safe="")


@lru_cache(maxsize=_CACHED_NAMES)
def queue_member(queue: QueueKey) -> str:
    return f"{quoted(queue.tenant)}:{queue.command}"


def queue_of_member(member: str) -> QueueKey:
    tenant, _, command = member.rpartition(":")
    return QueueKey(unquote(tenant), command)


def idempotency_field(tenant: str, key: str) -> str:
    return f"{quoted(tenant)}:{key}"


def id_bytes(task_id: str) -> bytes:
    return unhexlify(task_id.replace("-", ""))


def task_id(data: bytes) -> str:
    digits = data.hex()
    text = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    if not is_task_id(text):
        raise ValueError(f"{data!r} is not a task id")
    return text


def version_bytes(version: int) -> bytes:
    return version.to_bytes(8, "big")
