"""Every key of the RocksDB engine. Numbers are big-endian, so that byte order is their order.

    key                                             value
    m/format                                        the format version of the directory
    m/events                                        the number of the first event not trimmed away
    b/<tenant><id>                                  CreatedRecord: the task as enqueued, and its body; written once
    t/<tenant><id>                                  CurrentRecord: the task, and its result; absent while only claimed
    i/<tenant><idempotency key>                     the task's id
    p/<tenant><command><9 - priority><version>      pending: the task
    d/<visible ms><version>                         delayed: the task
    h/<version>                                     claim batch: the tasks that one claim leased, while any of them is
    q/<tenant><command><version>                    dead: the task's id
    x/<purge ms><version>                           ended together: [tenant, id] of tasks to forget then
    e/<version>                                     events: the tasks after each move, numbered from <version>
    c/<tenant><command>                             counts of the queue, and where its pending tasks begin
    y/<tenant><command>                             policy of the queue

A task is at p/, d/ or q/ exactly while `lifecycle.position` says so. Names end in 00 01 and a zero byte inside them
becomes 00 ff, so no name is the beginning of another and none can reach into another queue, whatever its bytes.
"""

from functools import lru_cache

from codeq.domain.queue import QueueKey

FORMAT = b"m/format"
EVENTS_FIRST = b"m/events"
DELAYED, CLAIM_BATCHES, ENDED, EVENTS, COUNTS, POLICIES, BODIES = b"d/", b"h/", b"x/", b"e/", b"c/", b"y/", b"b/"


def _terminated(text: str) -> bytes:
    return text.encode().replace(b"\0", b"\0\xff") + b"\0\x01"


name = lru_cache(maxsize=65_536)(_terminated)


@lru_cache(maxsize=65_536)
def _queue(queue: QueueKey) -> bytes:
    return name(queue.tenant) + name(queue.command)


def split_names(data: bytes) -> list[str]:
    """The names that `name` made, in order."""
    return [part.replace(b"\0\xff", b"\0").decode() for part in data.split(b"\0\x01")[:-1]]


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def body(tenant: str, task_id: str) -> bytes:
    return b"b/" + name(tenant) + task_id.encode()


def current_record(tenant: str, task_id: str) -> bytes:
    return b"t/" + name(tenant) + task_id.encode()


def idempotency(tenant: str, key: str) -> bytes:
    return b"i/" + name(tenant) + _terminated(key)  # each is asked for once: remembering them would push names out


@lru_cache(maxsize=65_536)
def pending_prefix(queue: QueueKey, priority: int) -> bytes:
    return b"p/" + _queue(queue) + bytes([9 - priority])


def dead_prefix(queue: QueueKey) -> bytes:
    return b"q/" + _queue(queue)


def dead_of_tenant(tenant: str) -> bytes:
    return b"q/" + name(tenant)


def delayed(visible_ms: int, version: int) -> bytes:
    return DELAYED + number(visible_ms) + number(version)


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


def after(prefix: bytes) -> bytes:
    """The first key behind every key that begins with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
