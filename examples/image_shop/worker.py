"""The shop's worker, with handlers of all three kinds.

make serve                                                                     # one terminal
CODEQ_TOKEN=dev-token .venv/bin/python -m examples.image_shop.worker           # another; Ctrl-C stops it

Some images and addresses stand for what goes wrong in real life: a native library that crashes, a handler that holds
the interpreter lock, a host that is slow once, an order that nobody can ever work on.
"""

import asyncio
import ctypes
import os
import time

from examples.image_shop.tasks import Bill, Order, Thumbnail, bill, fetch, resize

import codeq

CENTS_PER_IMAGE = 250

worker = codeq.Worker(os.environ.get("CODEQ_URL", "http://127.0.0.1:8080"), threads=4, child_processes=2, coroutines=50)


@worker.task(resize)
def resize_in_a_process(image: str, width: int = 640) -> Thumbnail:
    """In a child process: what it does to itself costs one attempt of one task."""
    job = codeq.current_job()
    if image == "crash.png" and job.attempt == 1:
        ctypes.string_at(0)  # a segmentation fault
    if image == "poison.png":
        raise ValueError("this image cannot be read")
    for step in range(10):
        job.progress(step / 10, f"{image}: step {step}")
        time.sleep(0.5 if image == "slow.png" else 0.01)
    return Thumbnail(image, width, os.getpid())


@worker.task(fetch)
async def fetch_on_the_loop(url: str) -> int:
    """On the event loop, beside many others."""
    if url.endswith("/gone"):
        raise FileNotFoundError(url)
    if url.endswith("/slow") and codeq.current_job().attempt == 1:
        raise TimeoutError(url)
    await asyncio.sleep(0.01)
    return len(url)


@worker.task(bill)
def bill_in_a_thread(order: Order) -> Bill:
    """In a thread. One that holds the interpreter lock for longer than its lease keeps its task all the same."""
    if order.customer == "locked":
        ctypes.PyDLL(None).usleep(5_000_000)
    if order.customer == "unknown":
        raise ValueError("there is no such customer")
    return Bill(customer=order.customer, cents=CENTS_PER_IMAGE * len(order.images))


@worker.on_death
def tell_somebody(failure: codeq.Failure) -> None:
    print(f"dead: {failure.command} {failure.task_id}: {failure.error}", flush=True)


if __name__ == "__main__":  # child processes import this file, and must not become workers themselves
    worker.run()
