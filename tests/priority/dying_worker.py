"""A worker that enqueues, works and retries, and kills itself at a given moment: `before`, `sent` or `after` a step.

python -m tests.priority.dying_worker redis://127.0.0.1:6379/0 dequeue sent
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio.connection import Connection

from codeq.priority import PriorityQueue

STEPS = ("enqueue", "dequeue", "renew", "requeue", "dequeue-again", "release", "dequeue-last", "complete")
MOMENTS = ("before", "sent", "after")
LOCK_TTL_S = 0.3


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, fatal_step: str, moment: str) -> None:
    queue = PriorityQueue(url, lock_ttl_s=LOCK_TTL_S)
    await queue.queue_size()  # connected
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "enqueue": lambda: queue.enqueue("task"),
        "dequeue": queue.dequeue,
        "renew": lambda: queue.renew("task"),
        "requeue": lambda: queue.requeue_with_delay("task", 0.05),
        "dequeue-again": lambda: queue.dequeue(wait=5),
        "release": lambda: queue.release_lock("task"),
        "dequeue-last": queue.dequeue,
        "complete": lambda: queue.complete("task"),
    }
    for step, call in steps.items():
        if step == fatal_step:
            if moment == "before":
                die()
            if moment == "sent":
                Connection.read_response = die  # type: ignore[assignment,method-assign]
        await call()
        if step == fatal_step:
            die()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
