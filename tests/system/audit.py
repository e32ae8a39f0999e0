"""Whether a closed data directory is consistent: every task in exactly one index, every move in the event log once.

`audit(path)` reads the RocksDB keys of each shard without codeQ's store and returns what is wrong, as sentences; an
empty list means nothing is. `read_shards(path)` returns what was read, for checks against what was acknowledged.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rocksdict import DBRecoveryMode, Options, Rdict

from codeq.domain import lifecycle
from codeq.domain.ids import shard_of
from codeq.domain.queue import Index, QueueKey
from codeq.domain.task import Body, Move, Status, Task
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.sharded import shard_name

_P, _R, _C, _F, _X = Status
_LEGAL: dict[Move, tuple[set[Status | None], set[Status]]] = {
    Move.ENQUEUE: ({None}, {_P}),
    Move.PROMOTE: ({_P}, {_P}),
    Move.CLAIM: ({_P}, {_R}),
    Move.COMPLETE: ({_R}, {_C}),
    Move.FAIL: ({_R}, {_F}),
    Move.NACK: ({_R}, {_P, _F}),
    Move.EXPIRE: ({_R}, {_P, _F}),
    Move.ABANDON: ({_R}, {_P, _F}),
    Move.CANCEL: ({_P, _R}, {_X}),
    Move.REPLAY: ({_F}, {_P}),
    Move.PURGE: ({_C, _F, _X}, {_C, _F, _X}),
}


@dataclass
class Stored:
    """A task as the keys show it: the newest of its records, its body and its result."""

    task: Task
    body: Body
    result: bytes | None


@dataclass
class ShardKeys:
    """The content of the keys of one shard."""

    number: int
    first: int = 1
    events: dict[int, Task] = field(default_factory=dict)
    tasks: dict[str, Stored] = field(default_factory=dict)
    of: dict[bytes, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """Keys without their prefix, and values, by the prefix."""
    faults: list[str] = field(default_factory=list)

    @property
    def next(self) -> int:
        return max(self.events, default=self.first - 1) + 1


def audit(path: Path) -> list[str]:
    """Returns what is wrong with the closed directory. Opening replays RocksDB's logs: audit a copy."""
    return faults_of(read_shards(path))


def log_faults_of(shard: ShardKeys) -> list[str]:
    """Returns what is wrong with the events of a shard, and with its tasks as the events tell of them."""
    return [text for check in (_events, _chains, _records) for text in check(shard)]


def faults_of(shards: list[ShardKeys]) -> list[str]:
    found = []
    for shard in shards:
        checks = (_events, _chains, _records, _indexes, _leases, _retention, _idempotency, _counts)
        found += [f"shard {shard.number}: {text}" for text in shard.faults]
        found += [f"shard {shard.number}: {text}" for check in checks for text in check(shard)]
    return found


def read_shards(path: Path) -> list[ShardKeys]:
    manifest = json.loads((path / "codeq.json").read_text())
    return [_read(path / shard_name(number), number) for number in range(manifest["shards"])]


def _read(path: Path, number: int) -> ShardKeys:
    shard = ShardKeys(number)
    options = Options(raw_mode=True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    database = Rdict(str(path / "rocksdb"), options)
    try:
        for key, value in database.items():
            shard.of[key[:2]][key[2:]] = value
    finally:
        database.close()
    floor = shard.of[b"m/"].get(b"events")
    shard.first = int.from_bytes(floor, "big") if floor is not None else 1
    for key, value in shard.of[b"e/"].items():
        start = int.from_bytes(key, "big")
        for i, event in enumerate(codec.decode_tasks(value)):
            if start + i in shard.events:
                shard.faults.append(f"event {start + i} is stored twice")
            shard.events[start + i] = event
    leased = _leased(shard)
    for key, value in shard.of[b"b/"].items():
        if key.endswith(b"\0\x01") and not value:
            continue  # where a listing ends
        opened = codec.decode_created(value)
        kept_value = shard.of[b"t/"].get(key)
        kept = codec.decode_current(kept_value) if kept_value is not None else None
        records = [codec.decode_task(opened.task)]
        if kept is not None:
            records.append(codec.decode_task(kept.task))
        claimed = leased.get(records[0].id)
        if claimed is not None:
            records.insert(1, claimed)  # a heartbeat rewrites the record at the same version: that one is newer
        task = max(enumerate(records), key=lambda pair: (pair[1].version, pair[0]))[1]
        shard.tasks[task.id] = _stored(shard, key, task, opened, kept)
        if key != _name(task.tenant) + task.id.encode():
            shard.faults.append(f"task {task.id} of {task.tenant} is stored under the key {key!r}")
    return shard


def _stored(
    shard: ShardKeys, key: bytes, task: Task, opened: codec.CreatedRecord, kept: codec.CurrentRecord | None
) -> Stored:
    """Returns the task with its body and its result, which may have keys of their own."""
    body, result = codec.decode_body(opened.body), kept.result if kept else None
    if key in shard.of[b"l/"]:
        body = msgspec.structs.replace(body, payload=shard.of[b"l/"][key])
    if kept and kept.result_bytes:
        result = shard.of[b"r/"].get(key)
    if len(body.payload) != task.payload_bytes or (kept and kept.result_bytes and result is None):
        shard.faults.append(f"task {task.id} lacks its payload or its result")
    return Stored(task, body, result)


def _leased(shard: ShardKeys) -> dict[str, Task]:
    """Returns the newest claim batch of each task."""
    newest: dict[str, Task] = {}
    for value in shard.of[b"h/"].values():
        for task in codec.decode_tasks(codec.split_claim(value)[0]):
            if task.id not in newest or newest[task.id].version < task.version:
                newest[task.id] = task
    return newest


def _events(shard: ShardKeys) -> Iterator[str]:
    numbers = sorted(shard.events)
    if numbers and numbers[0] != shard.first:
        yield f"the events begin with {numbers[0]}, not {shard.first}"
    for before, after in pairwise(numbers):
        if after != before + 1:
            yield f"events {before + 1} to {after - 1} are missing"
    for number, event in shard.events.items():
        if event.version != number:
            yield f"event {number} says that it is event {event.version}"
        if shard_of(event.id) != shard.number:
            yield f"event {number} is about {event.id}, a task of another shard"


def _chains(shard: ShardKeys) -> Iterator[str]:
    latest: dict[str, Task] = {}
    ends: Counter[str] = Counter()
    for number in sorted(shard.events):
        event = shard.events[number]
        before = latest.get(event.id)
        for text in _link(before, event, shard.first):
            yield f"event {number} ({event.move} of {event.id}): {text}"
        ends[event.id] += event.move in (Move.COMPLETE, Move.FAIL)
        latest[event.id] = event
    for task_id, times in ends.items():
        if times > 1:
            yield f"task {task_id} was ended by a worker {times} times"
    for task_id, event in latest.items():
        if event.move is Move.PURGE:
            if task_id in shard.tasks:
                yield f"task {task_id} was purged and is still there"
        elif task_id not in shard.tasks:
            yield f"task {task_id} is lost: its last event is {event.version} ({event.move}) and there is no record"


def _link(before: Task | None, event: Task, first: int) -> Iterator[str]:
    """Yields what is wrong with an event, compared with the previous one of the same task."""
    froms, tos = _LEGAL[event.move]
    if event.status_before not in froms or event.status not in tos:
        yield f"may not lead from {event.status_before} to {event.status}"
    if event.attempts > event.max_attempts:
        yield f"{event.attempts} attempts of at most {event.max_attempts}"
    if before is not None:
        yield from _follows(before, event)
        yield from _counts_on(before, event)
    elif event.previous >= first or (event.previous == 0) != (event.move is Move.ENQUEUE):
        yield f"its previous event is said to be {event.previous}"


def _follows(before: Task, event: Task) -> Iterator[str]:
    if event.previous != before.version:
        yield f"its previous event is {before.version}, not {event.previous}"
    if event.status_before is not before.status:
        yield f"was {before.status}, not {event.status_before}"
    if before.move is Move.PURGE:
        yield "it was purged before"
    if event.move is Move.CLAIM and lifecycle.position(before) is not Index.PENDING:
        yield "it was not ready"
    if event.move is Move.EXPIRE and event.updated_ms < before.lease_until_ms:
        yield f"its lease was to last {before.lease_until_ms - event.updated_ms} ms more"
    if event.move is Move.PROMOTE and not 0 < before.visible_ms <= event.updated_ms:
        yield "it was not due"
    if _fixed(event) != _fixed(before):
        yield f"{_fixed(before)} became {_fixed(event)}"


def _counts_on(before: Task, event: Task) -> Iterator[str]:
    is_claim, is_replay = event.move is Move.CLAIM, event.move is Move.REPLAY
    if event.lease_token != before.lease_token + is_claim:
        yield f"the lease token went from {before.lease_token} to {event.lease_token}"
    if event.attempts != (0 if is_replay else before.attempts + (event.move in (Move.NACK, Move.EXPIRE))):
        yield f"attempts went from {before.attempts} to {event.attempts}"
    if event.deliveries != (0 if is_replay else before.deliveries + is_claim):
        yield f"deliveries went from {before.deliveries} to {event.deliveries}"


def _fixed(task: Task) -> tuple[object, ...]:
    return (task.tenant, task.command, task.priority, task.created_ms, task.max_attempts, task.payload_bytes)


def _records(shard: ShardKeys) -> Iterator[str]:
    latest = {shard.events[number].id: shard.events[number] for number in sorted(shard.events)}
    for task_id, stored in shard.tasks.items():
        event = latest.get(task_id)
        if event is None:
            if stored.task.version >= shard.first:
                yield f"task {task_id} has no event {stored.task.version}"
        elif stored.task.lease_until_ms < event.lease_until_ms:
            yield f"the lease of task {task_id} is shorter than when it was given"
        elif msgspec.structs.replace(stored.task, lease_until_ms=event.lease_until_ms) != event:
            yield f"task {task_id} is {stored.task}, but its last event is {event}"
        if stored.task.payload_bytes != len(stored.body.payload):
            yield f"task {task_id} has {len(stored.body.payload)} bytes of payload, not {stored.task.payload_bytes}"
        if stored.task.status is Status.COMPLETED and stored.result is None:
            yield f"task {task_id} is completed and has no result"
    for key in (shard.of[b"t/"].keys() | shard.of[b"l/"].keys() | shard.of[b"r/"].keys()) - shard.of[b"b/"].keys():
        yield f"the record t/{key!r} has no body"


def _indexes(shard: ShardKeys) -> Iterator[str]:
    expected: dict[bytes, dict[bytes, str]] = {b"p/": {}, b"w/": {}, b"q/": {}}
    for task_id, stored in shard.tasks.items():
        prefix, key = _place(stored.task)
        if prefix in expected:
            expected[prefix][key] = task_id
    for prefix, wanted in expected.items():
        have = shard.of[prefix]
        for key in wanted.keys() - have.keys():
            task = shard.tasks[wanted[key]].task
            yield f"task {task.id} ({task.status}, last move {task.move}) is missing from {prefix.decode()}"
        for key in have.keys() - wanted.keys():
            yield f"{prefix.decode()} has an entry that no task stands behind: {have[key][:60]!r}"
        for key in have.keys() & wanted.keys():
            task = shard.tasks[wanted[key]].task
            if have[key] != task.id.encode() if prefix == b"q/" else codec.decode_task(have[key]) != task:
                yield f"{prefix.decode()} has something else in the place of task {task.id}"


def _place(task: Task) -> tuple[bytes, bytes]:
    """Returns the key, in two parts, at which an index must have the task."""
    queue = _name(task.tenant) + _name(task.command)
    number = task.version.to_bytes(8, "big")
    match lifecycle.position(task):
        case Index.PENDING:
            return b"p/", queue + bytes([9 - task.priority]) + number
        case Index.DELAYED:
            return b"w/", queue + task.visible_ms.to_bytes(8, "big") + number
        case Index.DEAD:
            return b"q/", queue + number
    return b"", b""


def _leases(shard: ShardKeys) -> Iterator[str]:
    holding: defaultdict[str, list[int]] = defaultdict(list)
    for key, value in shard.of[b"h/"].items():
        tasks = codec.decode_tasks(codec.split_claim(value)[0])
        number = int.from_bytes(key, "big")
        if not tasks or tasks[0].version != number:
            yield f"claim batch {number} does not begin with its own number"
        live = [task for task in tasks if _is_live(shard, task)]
        if not live:
            yield f"claim batch {number} is kept although none of its tasks is leased under it"
        for task in live:
            holding[task.id].append(number)
    for task_id, stored in shard.tasks.items():
        held = holding.get(task_id, [])
        if len(held) > 1:
            yield f"task {task_id} is in the claim batchs {held}"
        if lifecycle.position(stored.task) is Index.IN_PROGRESS and not held:
            yield f"task {task_id} is in progress and in no claim batch"


def _is_live(shard: ShardKeys, claimed: Task) -> bool:
    stored = shard.tasks.get(claimed.id)
    return stored is not None and stored.task.status is Status.IN_PROGRESS and stored.task.version == claimed.version


def _retention(shard: ShardKeys) -> Iterator[str]:
    waiting = {
        (tenant, task_id, int.from_bytes(key[:8], "big"))
        for key, value in shard.of[b"x/"].items()
        for tenant, task_id in codec.decode_pairs(value)
    }
    for task_id, stored in shard.tasks.items():
        task = stored.task
        if task.status.is_final and (task.tenant, task_id, task.purge_ms) not in waiting:
            yield f"task {task_id} has ended and will never be purged"


def _idempotency(shard: ShardKeys) -> Iterator[str]:
    expected = {
        _name(stored.task.tenant) + _name(stored.body.idempotency_key): task_id
        for task_id, stored in shard.tasks.items()
        if stored.body.idempotency_key is not None
    }
    keyed = sum(stored.body.idempotency_key is not None for stored in shard.tasks.values())
    if keyed != len(expected):
        yield f"{keyed} tasks share {len(expected)} idempotency keys"
    have = {key: value.decode() for key, value in shard.of[b"i/"].items()}
    for key in expected.keys() | have.keys():
        if have.get(key) != expected.get(key):
            yield f"idempotency key {key!r} names {have.get(key)}, and is that of {expected.get(key)}"


def _counts(shard: ShardKeys) -> Iterator[str]:
    """Compares the counts on disk with the walk: per index, and per priority the pending tasks and their first."""
    walked: defaultdict[QueueKey, Counter[Index]] = defaultdict(Counter)
    pending: defaultdict[QueueKey, dict[int, list[int]]] = defaultdict(dict)
    for stored in shard.tasks.values():
        task, place = stored.task, lifecycle.position(stored.task)
        if place is Index.NONE:
            continue
        walked[QueueKey(task.tenant, task.command)][place] += 1
        if place is Index.PENDING:
            pending[QueueKey(task.tenant, task.command)].setdefault(task.priority, []).append(task.version)
    saved: dict[QueueKey, Any] = {
        QueueKey(*keys.split_names(key)): msgspec.msgpack.decode(codec.without_checksum(keys.COUNTS + key, value))
        for key, value in shard.of[b"c/"].items()
    }
    for queue in saved.keys() | walked.keys():
        count = walked[queue]
        if queue not in saved:
            yield f"{queue} has {dict(count)} and no counts"
            continue
        *others, heads = saved[queue][:4]  # then since when a delayed task may be due
        if others != [count[Index.DELAYED], count[Index.IN_PROGRESS], count[Index.DEAD]]:
            yield f"{queue} counts {others} delayed, in progress and dead, and has {dict(count)}"
        by_priority = {priority: (number, head) for priority, number, head in heads}
        for priority in by_priority.keys() | pending[queue].keys():
            versions = pending[queue].get(priority, [])
            number, head = by_priority.get(priority, (0, 0))
            if number != len(versions):
                yield f"{queue} counts {number} pending at priority {priority}, and has {len(versions)}"
            elif head > min(versions):
                yield f"{queue} says that priority {priority} begins at {head}, but {min(versions)} is pending"


def _name(text: str) -> bytes:
    """Written out here as in the layout, so that a mistake in `keys` shows."""
    return text.encode().replace(b"\0", b"\0\xff") + b"\0\x01"
