"""A worker for CPU-bound tasks: each runs in a process of its own, on a core of its own, and says how far it is.

    make serve                                                                     # one terminal
    CODEQ_TOKEN=dev-token .venv/bin/python examples/cpu_worker.py                  # another; Ctrl-C stops it

A handler that crashes its process costs its task one try, and not the worker.
"""

import os
from typing import Any

import codeq

worker = codeq.Worker(
    os.environ.get("CODEQ_URL", "http://127.0.0.1:8080"),
    processes=True,
    concurrency=os.cpu_count() or 1,
    lease=30,  # when this machine dies, others get its tasks after so many seconds; heartbeats keep them until then
)


@worker.task("count_primes", timeout=600)
def count_primes(payload: dict[str, Any], job: codeq.RunningJob) -> dict[str, int]:
    below = payload["below"]
    if below < 2:
        raise codeq.Fail(f"there are no primes below {below}")  # trying again would not help
    is_prime = bytearray([1]) * below
    is_prime[:2] = b"\0" * min(2, below)
    for number in range(2, int(below**0.5) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = bytes(len(range(number * number, below, number)))
        job.progress(number / below**0.5, f"crossed out the multiples of {number}")
    return {"below": below, "primes": sum(is_prime)}


if __name__ == "__main__":  # child processes import this file, and must not become workers themselves
    worker.run()
