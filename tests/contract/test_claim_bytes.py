"""A claim ends where the payloads of its tasks reach a limit, and the next one continues there."""

from tests.contract.world import World, by_shard, ids

from codeq.domain.limits import CLAIM_BYTES_MAX, PAYLOAD_BYTES_MAX

LARGE = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
FITTING = CLAIM_BYTES_MAX // PAYLOAD_BYTES_MAX


async def claims(world: World, *commands: str) -> list[str]:
    """Claims until there is nothing left; returns the ids in order."""
    claimed: list[str] = []
    while tasks := await world.claim(*commands, limit=1000):
        assert sum(task.payload_bytes for task in tasks) < CLAIM_BYTES_MAX + PAYLOAD_BYTES_MAX
        claimed += ids(tasks)
    return claimed


async def test_a_claim_is_bounded_by_bytes(world: World) -> None:
    """(13.17)"""
    tasks = [await world.enqueue(payload=LARGE) for _ in range(2 * FITTING + 3)]
    first = await world.claim("work", limit=1000)
    assert len(first) == FITTING
    rest = await claims(world, "work")
    assert by_shard(tasks) == {n: [i for i in ids(first) + rest if i in known] for n, known in by_shard(tasks).items()}


async def test_the_order_of_a_queue_survives_a_claim_that_was_cut(world: World) -> None:
    """What was read ahead and not taken goes back to its place, also from disk. (13.17)"""
    tasks = [await world.enqueue(payload=LARGE if i % 3 else b"1") for i in range(4 * FITTING)]
    await world.reopen()
    claimed = await claims(world, "work")
    assert by_shard(tasks) == {n: [i for i in claimed if i in known] for n, known in by_shard(tasks).items()}
    assert await world.counts() == (0, 0, len(tasks), 0)


async def test_a_claim_of_several_queues_is_bounded_by_bytes(world: World) -> None:
    """(13.17)"""
    tasks = [await world.enqueue(f"work-{i % 5}", payload=LARGE) for i in range(2 * FITTING)]
    claimed = await claims(world, *[f"work-{i}" for i in range(5)])
    assert sorted(claimed) == sorted(ids(tasks))


async def test_small_tasks_fill_a_claim(world: World) -> None:
    """(13.17)"""
    await world.enqueue_many(1500)
    assert len(await world.claim("work", limit=1000)) == 1000
