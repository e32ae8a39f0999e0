"""Killing the process at any moment loses nothing that it acknowledged, and leaves nothing half done."""

import asyncio
import os
import random
import shutil
import time
from pathlib import Path

import pytest
from tests.system.audit import audit, faults_of, read_shards
from tests.system.ledger import Child, Ledger, live_and_die

import codeq
from codeq.domain.errors import NotOwner
from codeq.domain.task import Holder
from codeq.testing import ClockForTests

CYCLES = {1: 55, 3: 15}


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_acknowledged_survives_kill_9_again_and_again(shards: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("CODEQ_SEED", time.time_ns() % 1_000_000))
    print(f"CODEQ_SEED={seed}")  # noqa: T201 - to run it again
    dice = random.Random(seed)
    ledger = Ledger()
    data = tmp_path / "data"
    asyncio.run(_make(data, shards))
    for cycle in range(CYCLES[shards]):
        ledger.add(live_and_die(data, dice, "--shards", str(shards)))
        # The copy is checked, so that the next child recovers what the kill left.
        copy = tmp_path / f"copy-{cycle}"
        shutil.copytree(data, copy)
        found = read_shards(copy)
        assert faults_of(found) == [], f"after kill {cycle + 1}, seed {seed}"
        assert ledger.broken(found) == [], f"after kill {cycle + 1}, seed {seed}"
        shutil.rmtree(copy)
    print(f"{CYCLES[shards]} kills, acknowledged: {ledger.verbs}")  # noqa: T201 - a figure to quote
    assert set(ledger.verbs) >= {"enqueue", "claim", "heartbeat", "complete", "nack", "abandon", "cancel", "fail"}
    asyncio.run(_drain(data))
    found = read_shards(data)
    assert faults_of(found) == []
    assert ledger.broken(found) == []
    assert all(stored.task.status.is_final for shard in found for stored in shard.tasks.values())


async def _make(path: Path, shards: int) -> None:
    async with await codeq.open_async(path, shards=shards):
        pass


async def _drain(path: Path) -> None:
    """Every task that has not ended can be claimed once its delay or lost lease is over, and completed."""
    clock = ClockForTests()
    async with await codeq.open_async(path, clock=clock, sweeping=False, grace=0) as queue:
        await queue.set_policy("brief", codeq.QueuePolicy())
        for _ in range(1000):
            clock.now_ms += 60_000
            while jobs := await queue.claim(limit=1000, lease=30):
                assert not any(await queue.complete_many(jobs))
            if not any(c.pending or c.delayed or c.in_progress for c in (await queue.queues()).values()):
                return
    pytest.fail("tasks are left that no claim gets")


def test_a_task_in_progress_when_killed_is_claimable_again_after_the_grace(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Child(data, "--seed", "1") as child:
        child.wait_until_ready()
        assert child.read_for(20, lambda line: line.get("verb") == "claim")
        child.kill()
    asyncio.run(_claim_after_grace(data))
    assert audit(data) == []


async def _claim_after_grace(data: Path) -> None:
    clock = ClockForTests()
    start_ms = clock.now_ms
    async with await codeq.open_async(data, clock=clock, sweeping=False, grace=10) as queue:
        leased = [task for task in (await queue.list(limit=1000)).tasks if task.status is codeq.Status.IN_PROGRESS]
        assert leased
        clock.now_ms = start_ms + 9_999
        early = await queue.claim(limit=1000, worker="thief")
        assert not {job.id for job in early} & {task.id for task in leased}
        clock.now_ms = start_ms + 10_000
        await queue.claim(worker="thief")  # expires the leases; the tasks now wait for their backoff
        clock.now_ms += 3_600_000
        again = {job.id: job for job in await queue.claim(limit=1000, worker="thief")}
        for task in leased:
            kept = await queue.get(task.id)
            assert kept.task.id in again or kept.task.status is codeq.Status.FAILED
            if kept.task.id in again:
                assert kept.task.lease_token == task.lease_token + 1
                with pytest.raises(NotOwner):
                    await queue.complete(
                        codeq.Job(task.id, task.command, b"null", Holder(task.worker or "", task.lease_token))
                    )
