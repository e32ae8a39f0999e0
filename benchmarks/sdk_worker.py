"""The worker that benchmarks/sdk.py measures: a process of its own, default settings, handlers that do nothing."""

import os
import sys
import time

import codeq

worker = codeq.Worker(concurrency=int(os.environ.get("CONCURRENCY", "16")))


@worker.task("noop")
def noop(payload: object) -> None:
    """What the burn-down counts."""


@worker.task("anoop")
async def anoop(payload: object) -> None:
    """The same on the event loop."""


@worker.task("stamp")
def stamp(payload: int) -> int:
    """Answers how many nanoseconds ago the task was sent: the payload is when."""
    return time.time_ns() - payload


if __name__ == "__main__":
    worker.run(codeq.Client(sys.argv[1], "dev-token"))
