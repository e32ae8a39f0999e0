"""A child process that runs every verb at once on a data directory, and reports on its pipe what was acknowledged.

Each line on its standard output is a JSON object: {"verb", "task", ...} once a verb has returned a task, and
{"ready": true} once the directory is open, each with the time of the report. It runs until it is killed; with
--until-failed, until the store fails, and then reports what every verb returns after that.
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
from codeq.domain.requests import Claim, Delivery, Outcome
from codeq.domain.task import Holder, Task
from codeq.sdk.tasks import record_of
from codeq.store.interface import ClaimRequest
from codeq.usecases import abandon, nack, queries
from codeq.usecases.claim import claim
from codeq.usecases.heartbeat import heartbeat
from codeq.usecases.submit import submit

TENANT = "default"

COMMANDS = ("alpha", "beta", "brief")
BRIEF = codeq.QueuePolicy(max_attempts=2, retention=0.1, dead_retention=0.2, backoff=codeq.fixed(0.02))
DEFAULTS = codeq.QueuePolicy(max_attempts=3, lease=0.2, backoff=codeq.fixed(0.03))

_out = sys.stdout.fileno()


def report(**line: Any) -> None:
    # Not `write`: that is what the fault injection fails.
    os.writev(_out, [json.dumps({**line, "at_ns": time.monotonic_ns()}).encode() + b"\n"])


def acknowledge(verb: str, task: codeq.Task | Task, **more: Any) -> None:
    record = record_of(task) if isinstance(task, codeq.Task) else task
    report(verb=verb, task=[getattr(record, name) for name in SHOWN], **more)


def holder_of(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token)


SHOWN = ("id", "version", "move", "status", "lease_token", "attempts", "deliveries", "command", "updated_ms")


class Actor:
    def __init__(self, queue: codeq.AsyncQueue, dice: random.Random, number: int, *, reads: bool) -> None:
        self.queue = queue
        self.core = queue.core
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
                pass  # a refusal acknowledges nothing
            await asyncio.sleep(0)

    async def enqueue(self) -> None:
        dice = self.dice
        new_tasks = []
        for _ in range(dice.randint(1, 4)):
            key = f"key-{dice.randrange(400)}" if dice.random() < 0.3 else None
            command = COMMANDS[sum(key.encode()) % 2] if key else dice.choice(COMMANDS)
            payload = {"for": key or dice.getrandbits(64), "pad": "x" * (100 if key else dice.randrange(300))}
            new_tasks.append(
                codeq.NewTask(
                    command=command, payload=json.dumps(payload).encode(), priority=dice.choice((0, 0, 3, 9)),
                    delay_ms=dice.choice((0, 0, 0, 40, 200)), idempotency_key=key,
                )
            )  # fmt: skip
        for new_task, task in zip(new_tasks, await self.queue.enqueue_many(new_tasks, refusals="return"), strict=True):
            if isinstance(task, codeq.Task):
                self.known = [*self.known[-100:], task.id]
                acknowledge("enqueue", task, key=new_task.idempotency_key, payload=new_task.payload.decode())
            else:
                report(refused=task.code)

    async def work(self) -> None:
        dice = self.dice
        wanted = Claim(
            worker=f"worker-{self.number}", limit=dice.randint(1, 5), lease_ms=dice.choice((100, 200, 400)),
            wait_ms=dice.choice((0, 0, 10)),
        )  # fmt: skip
        held = [delivery.task for delivery in await claim(self.core, TENANT, wanted)]
        for task in held:
            acknowledge("claim", task)
        if len(held) > 2 and dice.random() < 0.5:
            await self.submit(held, codeq.Status.COMPLETED)
            return
        for task in held:
            try:
                await self.end(task)
            except StoreError:
                raise
            except CodeqError:
                pass  # its lease ran out, or another actor cancelled it

    async def end(self, task: Task) -> None:
        dice, core, holder = self.dice, self.core, holder_of(task)
        if dice.random() < 0.3:
            acknowledge("heartbeat", await heartbeat(core, TENANT, task.id, holder, extend_ms=300))
        fate = dice.random()
        if fate < 0.45:
            await self.submit([task], codeq.Status.COMPLETED)
        elif fate < 0.65:
            delay_ms = dice.choice((None, 0, 50))
            acknowledge("nack", await nack.nack(core, TENANT, task.id, holder, delay_ms=delay_ms, reason="no"))
        elif fate < 0.75:
            acknowledge("abandon", await abandon.abandon(core, TENANT, task.id, holder))
        elif fate < 0.8:
            await self.submit([task], codeq.Status.FAILED)
        elif fate < 0.85:
            acknowledge("cancel", await self.queue.cancel(task.id))

    async def submit(self, held: list[Task], status: codeq.Status) -> None:
        verb, error = ("complete", None) if status is codeq.Status.COMPLETED else ("fail", "broken")
        outcomes = [
            Outcome(task_id=task.id, holder=holder_of(task), status=status, error=error,
                    result=str(self.dice.getrandbits(32)).encode())
            for task in held
        ]  # fmt: skip
        for answer, outcome in zip(await submit(self.core, TENANT, outcomes), outcomes, strict=True):
            if not isinstance(answer, CodeqError) and outcome.result is not None:
                acknowledge(verb, answer.task, result=outcome.result.decode())

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
            await self.queue.core.store.flush()
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
            for record in await queries.history(self.core, TENANT, self.dice.choice(self.known)):
                acknowledge("look", record)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--durability", default="fsync")
    parser.add_argument("--actors", type=int, default=6)
    parser.add_argument("--no-reads", action="store_true")
    parser.add_argument("--until-failed", action="store_true")
    options = parser.parse_args()
    try:
        queue = await codeq.open_async(
            options.path, shards=options.shards, durability=options.durability, defaults=DEFAULTS, grace=0
        )
    except StoreError as fault:
        if not options.until_failed:
            raise
        report(unopened=fault.code, text=str(fault))
        return
    report(ready=True)
    actors = [
        Actor(queue, random.Random(f"{options.seed}/{number}"), number, reads=not options.no_reads)
        for number in range(options.actors)
    ]
    running = [asyncio.create_task(actor.run()) for actor in actors]
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    if not options.until_failed:
        done.pop().result()
    await asyncio.wait(running)  # each gets the failure at its next call: none hangs, none continues
    for actor in running:
        ended_by = actor.exception()
        report(ended=ended_by.code if isinstance(ended_by, CodeqError) else repr(ended_by))
    await report_after_failure(queue)


async def report_after_failure(queue: codeq.AsyncQueue) -> None:
    """Calls every verb, and reports what each returned."""
    job = codeq.Job("00000000-0000-7000-8000-000000000000", "alpha", b"null", Holder("w", 1))
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "enqueue": lambda: queue.enqueue("alpha", 1),
        "claim": lambda: queue.claim("alpha"),
        "heartbeat": lambda: queue.heartbeat(job),
        "complete": lambda: queue.complete(job),
        "nack": lambda: queue.nack(job),
        "abandon": lambda: queue.abandon(job),
        "cancel": lambda: queue.cancel(job.id),
        "replay_dead": queue.replay_dead,
        "get": lambda: queue.get(job.id),
        "list": queue.list,
        "queues": queue.queues,
        "history": lambda: queue.history(job.id),
        "set_policy": lambda: queue.set_policy("alpha", None),
        "take": lambda: _take(queue),
    }
    for verb, call in calls.items():
        report(after=verb, code=await _answer(call))
    report(after="close", code=await _answer(queue.close))


async def _answer(call: Callable[[], Awaitable[object]]) -> str:
    try:
        await call()
    except CodeqError as fault:
        return fault.code
    except Exception as fault:  # noqa: BLE001 - any other is a defect, which is reported to the parent
        return repr(fault)
    return "accepted"


async def _take(queue: codeq.AsyncQueue) -> list[Delivery]:
    return await queue.core.store.take(
        ClaimRequest(tenant="t", commands=[], worker="w", lease_ms=1000, limit=1, policy_of=queue.core.policy_of)
    )


if __name__ == "__main__":
    asyncio.run(main())
