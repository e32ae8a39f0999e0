"""The worker program of the demo: what each command does, and how it goes wrong.

Started as `python -m codeq.demo.die_with_parent codeq.demo.handlers:main NAME`, with the server and the token in
CODEQ_URL and CODEQ_TOKEN. `--slow` makes it a slow one, `--release 2` the one in which the bug of `file_report` is
mended.
"""

import argparse
import asyncio
import logging
import os
import time
from typing import Any

from codeq.sdk.worker import Fail, Retry, RunningJob, Worker

LEASE_S = 3.0
"""How long the tasks of a killed worker wait: short, because people are watching."""
SLOW_S = 0.5

Payload = dict[str, Any]


def make_worker(*, slow: bool = False, release: int = 1) -> Worker:
    worker = Worker(concurrency=2 if slow else 8, lease=LEASE_S, grace=5)
    _shop(worker)
    _studio(worker, slow=slow)
    _office(worker, release=release)
    return worker


def _shop(worker: Worker) -> None:
    @worker.task("charge_card")
    def charge_card(payload: Payload, job: RunningJob) -> Payload:
        """A bank that is busy now and then, cards that are stolen, and one number that no bank can read."""
        time.sleep(payload["work_s"])
        if payload["card"] == "stolen":
            raise Fail("the card was reported stolen")
        if payload["card"] == "unreadable":
            raise ValueError("the card number has a letter in it")
        if job.attempt <= payload["busy"]:
            raise Retry(0.2, "the bank is busy")
        return {"receipt": 2 * payload["n"]}

    @worker.task("send_receipt")
    async def send_receipt(payload: Payload) -> Payload:
        await asyncio.sleep(payload["work_s"])
        return {"receipt": 2 * payload["n"]}


def _studio(worker: Worker, *, slow: bool) -> None:
    @worker.task("render_video")
    def render_video(payload: Payload, job: RunningJob) -> Payload:
        """In steps, so that it can be stopped when nobody wants it any more."""
        steps = max(1, round((payload["work_s"] + SLOW_S * slow) / 0.05))
        for step in range(steps):
            job.progress(step / steps, "frames")
            time.sleep(0.05)
        return {"receipt": 2 * payload["n"]}

    @worker.task("make_thumbnail")
    async def make_thumbnail(payload: Payload) -> Payload:
        if slow:
            await asyncio.sleep(SLOW_S)
        return {"receipt": 2 * payload["n"]}


def _office(worker: Worker, *, release: int) -> None:
    @worker.task("import_row")
    async def import_row(payload: Payload) -> Payload:
        return {"receipt": 2 * payload["n"]}

    @worker.task("file_report")
    async def file_report(payload: Payload) -> Payload:
        if release < 2:
            raise KeyError("the form has changed")
        return {"receipt": 2 * payload["n"]}


def result_of(payload: Payload) -> Payload:
    """What a task with this payload must have as its result."""
    return {"receipt": 2 * payload["n"]}


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("name")
    given.add_argument("--slow", action="store_true")
    given.add_argument("--release", type=int, default=1)
    asked = given.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("codeq.worker").info("%s starts", asked.name)
    make_worker(slow=asked.slow, release=asked.release).run(os.environ["CODEQ_URL"])
