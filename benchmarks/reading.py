"""Measures how long claims take while the event log is read in bulk: `python benchmarks/reading.py [--events N]`.

Readers are processes of their own, so that this program does not slow the claims down.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

sys.path.pop(0)  # http.py lies beside this file, and would hide Python's own
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import event_log, machine

import codeq
from codeq.pipeline.client import EventFilter, PipelineClient, ServerOptions
from codeq.sdk.new_tasks import new_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--readers", type=int, default=2, help="as many as Spark has tasks")
    parser.add_argument("--page", type=int, default=25_000, help="events in one call")
    parser.add_argument("--payload", action="store_true", help="with payloads")
    asked = parser.parse_args()
    os.environ["CODEQ_TOKEN"] = "dev-token"
    print(f"calibration {machine.calibrate():.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        total = event_log.make_log(home / "data", asked.events)
        with event_log.serving(home) as (url, pid):
            quiet = claim_ms(url, until=lambda turn: turn >= 1000)
            with ProcessPoolExecutor(asked.readers, get_context("spawn")) as pool:
                for warming in [pool.submit(read, url, 1, 2, page=1, payload=False) for _ in range(asked.readers)]:
                    warming.result()
                spent_s, started_s = event_log.cpu_s(pid), time.perf_counter()
                step = -(-total // asked.readers)
                how = {"page": asked.page, "payload": asked.payload}
                firsts = range(1, total + 1, step)
                reads = [pool.submit(read, url, first, min(first + step, total + 1), **how) for first in firsts]
                busy = claim_ms(url, until=lambda _: all(reading.done() for reading in reads))
                took_s = time.perf_counter() - started_s
                size = sum(reading.result() for reading in reads)
            spent_s = event_log.cpu_s(pid) - spent_s
    print(f"{total} events, {size / total:.0f} bytes each, by {asked.readers} readers in {took_s:.1f} s: "
          f"{total / took_s / 1000:.0f} k/s, {total / spent_s / 1000:.0f} k per second of its CPU")  # fmt: skip
    for name, took_ms in (("quiet", quiet), ("while events are read", busy)):
        p50, p99 = machine.percentile(took_ms, 0.5), machine.percentile(took_ms, 0.99)
        print(f"claim {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(took_ms):.1f} ms, {len(took_ms)} claims")


def read(url: str, first: int, end: int, *, page: int, payload: bool) -> int:
    size = 0
    client = PipelineClient(ServerOptions(endpoint=url))
    while first < end:
        body, bounds = client.events(0, first, min(page, end - first), EventFilter(with_payload=payload))
        size += len(body)
        first = bounds.next
    client.close()
    return size


def claim_ms(url: str, *, until: Callable[[int], bool]) -> list[float]:
    """Returns the durations of claims of one task each, one after the other."""
    took_ms: list[float] = []
    with codeq.Client(url, "dev-token") as client:
        client.enqueue_many(new_tasks("live", range(1000)))
        for turn in count():
            if until(turn):
                return took_ms
            started_s = time.perf_counter()
            jobs = client.claim("live", wait=0)
            took_ms.append((time.perf_counter() - started_s) * 1000)
            if not jobs:
                client.enqueue_many(new_tasks("live", range(1000)))
    return took_ms


if __name__ == "__main__":
    main()
