"""A program that uses the SDK, as `compare.py` and `instructions.py` measure it: reads one round per line, and writes
its CPU time per task.

Runs with the Python of the measured checkout. What a version does not have yet is answered with NaN.
"""

import asyncio
import gc
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide Python's own `http` behind ours

import msgspec

import codeq

SLOTS, AHEAD = 16, 256
"""Of the worker. What it claims ahead would otherwise follow from how fast it is, which is what is measured."""
LINGER_S = 600
"""Batches are sent when they are full, however slow this process is."""


class SdkRound(msgspec.Struct, frozen=True):
    call: str
    tasks: int
    is_preparation: bool = False
    """Makes ready what the round needs; its cost does not count."""


class Program:
    def __init__(self, url: str) -> None:
        self.url = url
        self.client = codeq.Client(url, "dev-token")
        self.rounds: dict[str, Callable[[int], Any]] = {
            "enqueue": self.one_by_one,
            "batcher": self.batched,
            "async batcher": lambda tasks: asyncio.run(self.batched_async(tasks)),
            "threads": lambda _: worker(with_payload, "threads").run(self.client, until_idle=True),
            "async": lambda _: worker(with_payload_async, "async").run(self.client, until_idle=True),
        }
        if hasattr(codeq, "task"):
            self.typed = codeq.task("typed-enqueue")(typed)
            self.rounds |= {
                "typed enqueue": lambda tasks: [self.client.enqueue(self.typed, n, "cat.png") for n in range(tasks)],
                "typed batcher": self.batched_typed,
                "typed threads": lambda _: worker(typed, "typed threads").run(self.client, until_idle=True),
            }

    def one_by_one(self, tasks: int) -> None:
        for number in range(tasks):
            self.client.enqueue("enqueue", {"number": number, "image": "cat.png"})

    def batched(self, tasks: int) -> None:
        with self.client.batcher(linger=LINGER_S) as batcher:
            for number in range(tasks):
                batcher.enqueue("batcher", {"number": number, "image": "cat.png"})

    async def batched_async(self, tasks: int) -> None:
        async with codeq.AsyncClient(self.url, "dev-token") as client, client.batcher(linger=LINGER_S) as batcher:
            for number in range(tasks):
                await batcher.enqueue("async-batcher", {"number": number, "image": "cat.png"})

    def batched_typed(self, tasks: int) -> None:
        with self.client.batcher(linger=LINGER_S) as batcher:
            for number in range(tasks):
                batcher.enqueue(self.typed, number, "cat.png")

    def prepare(self, one: SdkRound) -> None:
        """Enqueues what a worker is to do."""
        if one.call in ("threads", "async", "typed threads"):
            payloads = [{"number": number, "image": "cat.png"} for number in range(500)]
            for _ in range(one.tasks // 500):
                self.client.enqueue_many(codeq.new_tasks(one.call.replace(" ", "-"), payloads))

    def cpu_us(self, one: SdkRound) -> float:
        """Returns the CPU time of this process per task, in microseconds."""
        if one.call not in self.rounds:
            return math.nan
        if one.is_preparation:
            self.prepare(one)
            return 0
        gc.collect()
        before_s = time.process_time()
        self.rounds[one.call](one.tasks)
        return 1e6 * (time.process_time() - before_s) / one.tasks


def worker(function: Callable[..., Any], name: str) -> codeq.Worker:
    made = codeq.Worker(concurrency=SLOTS, prefetch=AHEAD)
    made.task(name.replace(" ", "-"))(function)
    return made


def with_payload(payload):  # type: ignore[no-untyped-def]
    return payload["number"]


async def with_payload_async(payload):  # type: ignore[no-untyped-def]
    return payload["number"]


def typed(number: int, image: str) -> int:
    return number + len(image)


def main(url: str, slower: int) -> None:
    """`slower` is how many times slower this process runs than usual: its timers do, too."""
    sleep = asyncio.sleep
    asyncio.sleep = lambda seconds, *rest: sleep(seconds * slower, *rest)  # type: ignore[assignment]
    program = Program(url)
    while line := sys.stdin.buffer.readline():
        sys.stdout.write(f"{program.cpu_us(msgspec.json.decode(line, type=SdkRound))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
