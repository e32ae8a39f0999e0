"""A child process that works on a data directory with every verb at once, and says over its pipe what was acknowledged.

Each line on its standard output is a JSON object: {"verb", "task", ...} once a verb has returned a task, and
{"ready": true} once the directory is open, each with the time at which it was said. It runs until it is killed; with
--until-failed, until the store fails, and then says how every verb answers after that.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import codeq
from codeq.domain.errors import CodeqError, StoreError, StoreFull
from codeq.domain.requests import Delivery
from codeq.store.interface import ClaimOrder

COMMANDS = ("alpha", "beta", "brief")
BRIEF = codeq.QueuePolicy(
    max_attempts=2, retention_ms=100, dead_retention_ms=200, backoff=codeq.Backoff(codeq.BackoffKind.FIXED, 20, 20)
)
DEFAULTS = codeq.QueuePolicy(max_attempts=3, lease_ms=200, backoff=codeq.Backoff(codeq.BackoffKind.FIXED, 30, 30))

_out = sys.stdout.fileno()


def say(**line: Any) -> None:
    # Not `write`: that is what the fault injection fails.
    os.writev(_out, [json.dumps({**line, "at_ns": time.monotonic_ns()}).encode() + b"\n"])


def acknowledge(verb: str, task: codeq.Task, **more: Any) -> None:
    say(verb=verb, task=[getattr(task, name) for name in SHOWN], **more)


SHOWN = ("id", "version", "move", "status", "lease_token", "attempts", "deliveries", "command", "updated_ms")


class Actor:
    def __init__(self, queue: codeq.AsyncQueue, dice: random.Random, number: int, *, reads: bool) -> None:
        self.queue = queue
        self.dice = dice
        self.number = number
        self.known: list[str] = []
        self.verbs: list[Callable[[], Awaitable[None]]] = [
            self.enqueue, self.enqueue, self.work, self.work, self.work, self.cancel, self.operate,
        ]  # fmt: skip
        if reads:
            self.verbs.append(self.look)

    async def run(self) -> None:
        while True:
            try:
                await self.dice.choice(self.verbs)()
            except StoreFull:
                await asyncio.sleep(0)
            except StoreError:
                raise
            except CodeqError:
                pass  # a refusal promises nothing
            await asyncio.sleep(0)

    async def enqueue(self) -> None:
        dice = self.dice
        orders = []
        for _ in range(dice.randint(1, 4)):
            key = f"key-{dice.randrange(400)}" if dice.random() < 0.3 else None
            command = COMMANDS[sum(key.encode()) % 2] if key else dice.choice(COMMANDS)
            payload = {"for": key or dice.getrandbits(64), "pad": "x" * (100 if key else dice.randrange(300))}
            orders.append(
                codeq.NewTask(
                    command=command, payload=json.dumps(payload).encode(), priority=dice.choice((0, 0, 3, 9)),
                    delay_ms=dice.choice((0, 0, 0, 40, 200)), idempotency_key=key,
                )
            )  # fmt: skip
        for order, task in zip(orders, await self.queue.enqueue_many(orders), strict=True):
            if isinstance(task, codeq.Task):
                self.known = [*self.known[-100:], task.id]
                acknowledge("enqueue", task, key=order.idempotency_key, payload=order.payload.decode())
            else:
                say(refused=task.code)

    async def work(self) -> None:
        dice = self.dice
        jobs = await self.queue.claim(
            worker=f"worker-{self.number}", limit=dice.randint(1, 5), lease=dice.choice((0.1, 0.2, 0.4)),
            wait=dice.choice((0, 0, 0.01)),
        )  # fmt: skip
        for job in jobs:
            acknowledge("claim", job.task)
        if len(jobs) > 2 and dice.random() < 0.5:
            results = [dice.getrandbits(32) for _ in jobs]
            for task, result in zip(await self.queue.complete_many(jobs, results), results, strict=True):
                if isinstance(task, codeq.Task):
                    acknowledge("complete", task, result=json.dumps(result))
            return
        for job in jobs:
            try:
                await self.end(job)
            except StoreError:
                raise
            except CodeqError:
                pass  # its lease ran out, or another actor cancelled it

    async def end(self, job: codeq.Job) -> None:
        dice = self.dice
        if dice.random() < 0.3:
            acknowledge("heartbeat", await self.queue.heartbeat(job, 0.3))
        fate = dice.random()
        if fate < 0.45:
            result = dice.getrandbits(32)
            acknowledge("complete", await self.queue.complete(job, result), result=json.dumps(result))
        elif fate < 0.65:
            acknowledge("nack", await self.queue.nack(job, "not today", delay=dice.choice((None, 0, 0.05))))
        elif fate < 0.75:
            acknowledge("abandon", await self.queue.abandon(job))
        elif fate < 0.8:
            acknowledge("fail", await self.queue.fail(job, "broken"))
        elif fate < 0.85:
            acknowledge("cancel", await self.queue.cancel(job.id))

    async def cancel(self) -> None:
        if self.known:
            acknowledge("cancel", await self.queue.cancel(self.dice.choice(self.known)))

    async def operate(self) -> None:
        roll = self.dice.random()
        if roll < 0.3:
            await self.queue.replay_dead(limit=3)
        elif roll < 0.4:
            await self.queue.purge_dead("brief", limit=5)
        elif roll < 0.5:
            await self.queue.core.store.trim(before_ms=0, keep_max=3000)
            await self.queue.core.store.settle()
        elif roll < 0.6:
            await self.queue.set_policy("brief", BRIEF)

    async def look(self) -> None:
        roll = self.dice.random()
        if roll < 0.4 and self.known:
            acknowledge("look", (await self.queue.get(self.dice.choice(self.known))).task)
        elif roll < 0.7:
            for task in (await self.queue.list(limit=5)).tasks:
                acknowledge("look", task)
        elif self.known:
            for task in await self.queue.history(self.dice.choice(self.known)):
                acknowledge("look", task)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--durability", default="fsync")
    parser.add_argument("--actors", type=int, default=6)
    parser.add_argument("--no-reads", action="store_true")
    parser.add_argument("--until-failed", action="store_true")
    given = parser.parse_args()
    try:
        queue = await codeq.open_async(
            given.path, shards=given.shards, durability=given.durability, defaults=DEFAULTS, grace=0
        )
    except StoreError as fault:
        if not given.until_failed:
            raise
        say(unopened=fault.code, text=str(fault))
        return
    say(ready=True)
    actors = [
        Actor(queue, random.Random(f"{given.seed}/{number}"), number, reads=not given.no_reads)
        for number in range(given.actors)
    ]
    running = [asyncio.create_task(actor.run()) for actor in actors]
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    if not given.until_failed:
        done.pop().result()
    await asyncio.wait(running)  # each meets the failure at its next call: none hangs, none goes on
    for actor in running:
        ended_by = actor.exception()
        say(ended=ended_by.code if isinstance(ended_by, CodeqError) else repr(ended_by))
    await say_how_it_answers(queue)


async def say_how_it_answers(queue: codeq.AsyncQueue) -> None:
    """Call every verb, and say what each answered."""
    task = codeq.Task(
        "00000000-0000-7000-8000-000000000000", "default", "alpha", 0, codeq.Status.IN_PROGRESS, 1, 0,
        codeq.Move.CLAIM, None, 0, 0, 0, 0, 5, 1, 100, 1, "w", 1, None, None, 0, 0, 0, None, None, False,
    )  # fmt: skip
    job = codeq.Job(task, b"null")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "enqueue": lambda: queue.enqueue("alpha", 1),
        "claim": lambda: queue.claim("alpha"),
        "heartbeat": lambda: queue.heartbeat(job),
        "complete": lambda: queue.complete(job),
        "nack": lambda: queue.nack(job),
        "abandon": lambda: queue.abandon(job),
        "cancel": lambda: queue.cancel(task.id),
        "replay_dead": queue.replay_dead,
        "get": lambda: queue.get(task.id),
        "list": queue.list,
        "queues": queue.queues,
        "history": lambda: queue.history(task.id),
        "set_policy": lambda: queue.set_policy("alpha", None),
        "take": lambda: _take(queue),
    }
    for verb, call in calls.items():
        say(after=verb, code=await _answer(call))
    say(after="close", code=await _answer(queue.close))


async def _answer(call: Callable[[], Awaitable[object]]) -> str:
    try:
        await call()
    except CodeqError as fault:
        return fault.code
    except Exception as fault:  # noqa: BLE001 - any other is a defect, which the parent is told of
        return repr(fault)
    return "accepted"


async def _take(queue: codeq.AsyncQueue) -> list[Delivery]:
    return await queue.core.store.take(ClaimOrder(queues=[], worker="w", lease_ms=1000, limit=1))


if __name__ == "__main__":
    asyncio.run(main())
