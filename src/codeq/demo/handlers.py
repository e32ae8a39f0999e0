"""The worker program of the demo: the handlers, and the ways in which they fail.

Started as `python -m codeq.demo.die_with_parent codeq.demo.handlers:main NAME`, with the server and the token in
CODEQ_URL and CODEQ_TOKEN. `--slow` slows it down; `--release 2` has the bug of `file_report` fixed.
"""

import argparse
import asyncio
import logging
import os
import time
from typing import Any

from codeq.sdk.worker import Fail, Retry, RunningJob, Worker

LEASE_S = 3.0
"""Short, because people watch the tasks of a killed worker wait for it."""
SLOW_S = 0.5
REPORT = "report.csv"

Payload = dict[str, Any]


def make_worker(*, slow: bool = False, release: int = 1) -> Worker:
    worker = Worker(concurrency=2 if slow else 8, lease=LEASE_S, grace=5)
    _acme(worker)
    _globex(worker, slow=slow)
    _initech(worker, release=release)
    return worker


def _acme(worker: Worker) -> None:
    @worker.task("charge_card")
    def charge_card(payload: Payload, job: RunningJob) -> Payload:
        """Retries while the bank is busy, fails stolen cards, and crashes on an unreadable number."""
        time.sleep(payload["work_s"])
        if payload["card"] == "stolen":
            raise Fail("the card was reported stolen")
        if payload["card"] == "unreadable":
            raise ValueError("the card number has a letter in it")
        if job.attempt <= payload["busy"]:
            raise Retry(0.2, "the bank is busy")
        return result_of(payload)

    @worker.task("send_receipt")
    async def send_receipt(payload: Payload) -> Payload:
        await asyncio.sleep(payload["work_s"])
        return result_of(payload)


def _globex(worker: Worker, *, slow: bool) -> None:
    @worker.task("render_video")
    def render_video(payload: Payload, job: RunningJob) -> Payload:
        """Reports progress in steps, so that a cancelled task stops soon."""
        steps = max(1, round((payload["work_s"] + SLOW_S * slow) / 0.05))
        for step in range(steps):
            job.progress(step / steps, "frames")
            time.sleep(0.05)
        return result_of(payload)

    @worker.task("make_thumbnail")
    async def make_thumbnail(payload: Payload) -> Payload:
        if slow:
            await asyncio.sleep(SLOW_S)
        return result_of(payload)


def _initech(worker: Worker, *, release: int) -> None:
    @worker.task("import_row")
    async def import_row(payload: Payload) -> Payload:
        return result_of(payload)

    @worker.task("file_report")
    async def file_report(payload: Payload, job: RunningJob) -> Payload:
        """Attaches the report to its result, as a file."""
        if release < 2:
            raise KeyError("the form has changed")
        await job.attach_async(REPORT, report_of(payload))
        return result_of(payload)


def result_of(payload: Payload) -> Payload:
    """The result that a task with this payload must have."""
    return {"receipt": 2 * payload["n"]}


def report_of(payload: Payload) -> bytes:
    """The file that a report with this payload must have."""
    return b"number,receipt\n" + b"".join(b"%d,%d\n" % (payload["n"], row) for row in range(5000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--release", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("codeq.worker").info("%s starts", options.name)
    make_worker(slow=options.slow, release=options.release).run(os.environ["CODEQ_URL"])
