"""The embedded queue as `compare.py` measures it: reads one round per line, and writes its CPU time per task.

Runs with the Python of the measured checkout, so it uses nothing but what every version has.
"""

import asyncio
import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide Python's own `http` behind ours

import msgspec
from benchmarks.cycles import COMMAND, payloads

import codeq
from codeq import AsyncQueue, NewTask


class EngineRound(msgspec.Struct, frozen=True):
    tasks: int
    batch: int
    callers: int
    payload_bytes: int


async def cpu_us(queue: AsyncQueue, job: EngineRound) -> float:
    """Returns the CPU time of this process per full cycle, in microseconds."""
    tasks = [NewTask(command=COMMAND, payload=payload) for payload in payloads(job.payload_bytes, job.batch)]
    turns = iter(range(job.tasks // job.batch))

    async def go_round() -> None:
        for _ in turns:
            await queue.enqueue_many(tasks)
            await queue.complete_many(await queue.claim(COMMAND, limit=job.batch))

    gc.collect()
    before_s = time.process_time()
    await asyncio.gather(*(go_round() for _ in range(job.callers)))
    return 1e6 * (time.process_time() - before_s) / job.tasks


async def main(home: Path, durability: str) -> None:
    async with await codeq.open_async(home, durability=durability) as queue:
        while line := sys.stdin.buffer.readline():
            us = await cpu_us(queue, msgspec.json.decode(line, type=EngineRound))
            sys.stdout.write(f"{us}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
