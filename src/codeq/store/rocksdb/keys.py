"""Every key of the RocksDB engine. Numbers are big-endian, so that byte order is their order.

    key                                             value
    m/format                                        the format version of the directory
    m/events                                        the number of the first event not trimmed away
    b/<tenant><id>                                  CreatedRecord: the task as enqueued, and its body; written once
    b/<tenant>                                      empty: where a listing of the tenant's tasks ends
    t/<tenant><id>                                  CurrentRecord: the task, and its result; absent while only claimed
    l/<tenant><id>                                  the payload, if it is large: states and keys are read without it
    r/<tenant><id>                                  the result, if it is large
    i/<tenant><idempotency key>                     the task's id
    p/<tenant><command><9 - priority><version>      pending: the task
    w/<tenant><command><visible ms><version>        delayed: the task
    h/<version>                                     claim batch: the tasks that one claim leased, while any of them is,
                                                    and the claim's request id, if it has one
    q/<tenant><command><version>                    dead: the task's id
    x/<purge ms><version>                           ended together: [tenant, id] of tasks to purge then
    e/<version>                                     events: the tasks after each move, numbered from <version>
    c/<tenant><command>                             counts of the queue, and where its pending tasks begin; a checksum
    y/<tenant><command>                             policy of the queue
    g/<kind><tenant><name>                          registration: [when it expires, its value]
    u/<tenant>                                      payload bytes of the tenant's tasks
    z/<key>                                         an entry that could not be read, moved from its key
    d/<visible ms><version>                         delayed, in format 1; moved to w/ when the directory is opened

A task is at p/, w/ or q/ exactly while `lifecycle.position` says so. Names end in 00 01 and a zero byte inside them
becomes 00 ff, so no name is a prefix of another and no key can fall into another queue, whatever its bytes.
"""

from functools import lru_cache
from struct import Struct

from codeq.domain.queue import QueueKey

FORMAT = b"m/format"
EVENTS_FIRST = b"m/events"
CLAIM_BATCHES, ENDED, EVENTS, COUNTS, POLICIES, BODIES = b"h/", b"x/", b"e/", b"c/", b"y/", b"b/"
UNREADABLE, USAGE, REGISTRY = b"z/", b"u/", b"g/"
DELAYED_FORMAT_1 = b"d/"
PENDING, DELAYED, DEAD = b"p/", b"w/", b"q/"
NUMBER_BYTES = 8

number = Struct(">Q").pack
"""Encodes a number in NUMBER_BYTES. Not a function of our own: every task has several keys with a number."""

_CACHED_NAMES = 8192
"""Per cache: a few megabytes for names of full length."""


def _terminated(text: str) -> bytes:
    return text.encode().replace(b"\0", b"\0\xff") + b"\0\x01"


name = lru_cache(maxsize=_CACHED_NAMES)(_terminated)
"""For names that were checked: at most 255 characters."""


@lru_cache(maxsize=_CACHED_NAMES)
def _queue(queue: QueueKey) -> bytes:
    return name(queue.tenant) + name(queue.command)


def split_names(data: bytes) -> list[str]:
    """Returns the names that `name` encoded, in order."""
    return [part.replace(b"\0\xff", b"\0").decode() for part in data.split(b"\0\x01")[:-1]]


def body(tenant: str, task_id: str) -> bytes:
    return b"b/" + name(tenant) + task_id.encode()


def current_record(tenant: str, task_id: str) -> bytes:
    return b"t/" + name(tenant) + task_id.encode()


def large_payload(tenant: str, task_id: str) -> bytes:
    return b"l/" + name(tenant) + task_id.encode()


def large_result(tenant: str, task_id: str) -> bytes:
    return b"r/" + name(tenant) + task_id.encode()


def idempotency(tenant: str, key: str) -> bytes:
    return b"i/" + name(tenant) + _terminated(key)  # each is used once: caching them would evict names


@lru_cache(maxsize=_CACHED_NAMES)
def pending_prefix(queue: QueueKey, priority: int) -> bytes:
    return b"p/" + _queue(queue) + bytes([9 - priority])


def dead_prefix(queue: QueueKey) -> bytes:
    return b"q/" + _queue(queue)


def dead_of_tenant(tenant: str) -> bytes:
    return b"q/" + name(tenant)


def delayed_prefix(queue: QueueKey) -> bytes:
    return b"w/" + _queue(queue)


def delayed(queue: QueueKey, visible_ms: int, version: int) -> bytes:
    return b"w/" + _queue(queue) + number(visible_ms) + number(version)


def ended(purge_ms: int, version: int) -> bytes:
    return ENDED + number(purge_ms) + number(version)


def claim_batch(version: int) -> bytes:
    return CLAIM_BATCHES + number(version)


def events(version: int) -> bytes:
    return EVENTS + number(version)


def counts(queue: QueueKey) -> bytes:
    return COUNTS + _queue(queue)


def policy(queue: QueueKey) -> bytes:
    return POLICIES + _queue(queue)


def usage(tenant: str) -> bytes:
    return USAGE + name(tenant)


def queue_prefix(index: bytes, queue: QueueKey) -> bytes:
    """Returns what the keys of a queue in PENDING, DELAYED or DEAD begin with."""
    return index + _queue(queue)


def queue_of(index: bytes, key: bytes) -> QueueKey:
    return QueueKey(*split_names(b"\0\x01".join([*key[len(index) :].split(b"\0\x01", 2)[:2], b""])))


def split_body(key: bytes) -> tuple[str, str]:
    """Returns tenant and id of a key below BODIES; the id is empty where a listing of the tenant ends."""
    tenant, _, task_id = key[len(BODIES) :].rpartition(b"\0\x01")
    return tenant.replace(b"\0\xff", b"\0").decode(), task_id.decode()


def after(prefix: bytes) -> bytes:
    """Returns the first key after every key that begins with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def registration(kind: str, tenant: str, entry: str) -> bytes:
    return REGISTRY + name(kind) + name(tenant) + _terminated(entry)
