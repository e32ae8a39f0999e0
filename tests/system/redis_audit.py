"""Whether what is stored in a Redis is consistent, read with plain commands and without codeQ's store."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.system.audit import ShardKeys as Shard
from tests.system.audit import Stored, log_faults_of

from codeq.domain import lifecycle
from codeq.domain.queue import Index, QueueKey
from codeq.domain.task import Move, Task
from codeq.store import codec
from codeq.store.redis import records
from codeq.store.redis.keys import ShardKeys, id_bytes, task_id, version_bytes

COUNTED = {Index.DELAYED: "d", Index.IN_PROGRESS: "r", Index.DEAD: "x"}


def read_shard(client: Any, number: int, prefix: str = "codeq") -> Shard:
    """Returns the events and tasks of a shard. `client` is a redis-py client, of a node or a cluster."""
    keys, shard = ShardKeys(prefix, number), Shard(number)
    for entry_id, fields in client.xrange(keys.events):
        events = records.decode_events(value for pair in fields.items() for value in pair)
        if int(entry_id.partition(b"-")[0]) != events[0].version:
            shard.faults.append(f"entry {entry_id!r} of the events begins with number {events[0].version}")
        shard.events |= {event.version: event for event in events}
    bodies, results = client.hgetall(keys.bodies), client.hgetall(keys.results)
    for raw_id, record in client.hgetall(keys.records).items():
        body = codec.decode_body(bodies.pop(raw_id))
        shard.tasks[task_id(raw_id)] = Stored(records.decode(record), body, results.get(raw_id))
    shard.faults += [f"there is a body without its task: {task_id(raw_id)}" for raw_id in bodies]
    if int(client.get(keys.number) or 0) != len(shard.events):
        shard.faults.append(f"the last number is {client.get(keys.number)}, and there are {len(shard.events)} events")
    return shard


def faults_of(client: Any, shards: int = 1, prefix: str = "codeq") -> list[str]:
    found = []
    for number in range(shards):
        shard = read_shard(client, number, prefix)
        indexes = _indexes(client, ShardKeys(prefix, number), [stored.task for stored in shard.tasks.values()])
        found += [f"shard {number}: {text}" for text in [*shard.faults, *log_faults_of(shard), *indexes]]
    return found


def _indexes(client: Any, keys: ShardKeys, tasks: list[Task]) -> Iterator[str]:
    """Yields tasks that are missing from their index, and counts that are not those of the tasks."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        queue, raw_id = QueueKey(task.tenant, task.command), id_bytes(task.id)
        of_queue, place = keys.queue(queue), lifecycle.position(task)
        if place is Index.PENDING:
            entry = version_bytes(task.version) + raw_id + task.payload_bytes.to_bytes(4, "big")
            is_there = client.lpos(of_queue.pending[task.priority], entry) is not None
            counts[task.tenant][f"{task.priority}{task.command}"] += 1
        elif place is Index.DELAYED:
            is_there = client.zscore(of_queue.delayed, raw_id) == task.visible_ms
        elif place is Index.IN_PROGRESS:
            is_there = client.zscore(of_queue.leased, raw_id) == task.lease_until_ms
        else:
            is_there = client.zscore(keys.ended(task.tenant), raw_id) == task.purge_ms
        if place in COUNTED:
            counts[task.tenant][COUNTED[place] + task.command] += 1
        if place is not Index.NONE:
            counts[task.tenant]["#q"] += f"t{task.command}" not in counts[task.tenant]
            counts[task.tenant][f"t{task.command}"] += 1
        counts[task.tenant]["#t"] += not task.status.is_final
        counts[task.tenant]["#b"] += task.payload_bytes
        if not is_there:
            yield f"task {task.id} ({task.status}, last move {task.move}) is missing from its index"
    for tenant in {task.tenant for task in tasks}:
        stored = {field.decode(): int(value) for field, value in client.hgetall(keys.counts(tenant)).items()}
        if stored != +counts[tenant]:
            yield f"{tenant} counts {stored}, and has {dict(+counts[tenant])}"


def completed(client: Any, shards: int = 1, prefix: str = "codeq") -> Counter[str]:
    """Returns how often each task was completed, by the event log."""
    events = [event for number in range(shards) for event in read_shard(client, number, prefix).events.values()]
    return Counter(event.id for event in events if event.move is Move.COMPLETE)
