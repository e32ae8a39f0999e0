"""What 100 subscriptions cost producers: rates of creates with and without them, in turn, on one server.

    python benchmarks/notifications.py [--store redis] [--rounds 6] [--seconds 6] [--tasks N]

Prints the ratio of the rates, and of the tasks per second of the server's CPU, which says more on a machine with other
work; the goal is 0.95 or more. Where a round would create few tasks because the machine is busy, `--tasks` makes a
round of as many as a free machine creates: 6000 one by one, 50000 in batches. The queue is emptied in every round, so
that each announces it to everybody: with the default interval of 5 s, that is as often as can be. Receivers are in a
process of their own.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: it would hide Python's own `http` behind http.py

import argparse
import multiprocessing
import statistics
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
from tests.redis_servers import start_node
from tests.server.server_process import Tenant, answered, start_server
from tests.webhooks.notified import receiving

from codeq.wire import paths

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized

SUBSCRIPTIONS = 100
BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--batch", type=int, choices=(1, BATCH))
    parser.add_argument("--store", choices=("rocksdb", "redis"), default="rocksdb")
    wanted = parser.parse_args()
    settings: dict[str, Any] = {"webhooks": {"allow": "127.0.0.1"}, "log": {"level": "error"}}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if wanted.store == "redis":
            node = stack.enter_context(start_node(Path(folder) / "redis", appendonly="yes", appendfsync="everysec"))
            settings["store"] = {"url": node.url}
        server = stack.enter_context(start_server(Path(folder) / "server", settings=settings))
        base, received = _start_receiver()
        quiet, subscribed = Tenant(server, "quiet"), Tenant(server, "subscribed")
        for number in range(SUBSCRIPTIONS):
            body = {"callbackUrl": f"{base}/{number}", "eventTypes": ["work"]}
            answered(subscribed.worker.post(paths.SUBSCRIPTIONS, body), 200)
        for size in (wanted.batch,) if wanted.batch else (1, BATCH):
            rates: dict[str, list[float]] = {"without": [], "with": []}
            by_cpu: dict[str, list[float]] = {"without": [], "with": []}
            for number in range(wanted.rounds):
                turn = [("without", quiet), ("with", subscribed)]
                for name, tenant in turn if number % 2 else reversed(turn):
                    rate, of_cpu = _rate(tenant, wanted.seconds, size, wanted.tasks)
                    rates[name].append(rate)
                    by_cpu[name].append(of_cpu)
                    _empty(tenant)
            for unit, found in (("/s", rates), ("/s of CPU", by_cpu)):
                medians = {name: statistics.median(each) for name, each in found.items()}
                ratio = statistics.median([a / b for a, b in zip(found["with"], found["without"], strict=True)])
                print(
                    f"creates in batches of {size:>3}: {medians['without']:>8,.0f}{unit} without, "
                    f"{medians['with']:>8,.0f}{unit} with {SUBSCRIPTIONS} subscriptions: {ratio:.2f} "
                    f"(median of {wanted.rounds} pairs)"
                )
        print(f"notifications received: {received.value}")


def _start_receiver() -> "tuple[str, Synchronized[int]]":
    context = multiprocessing.get_context("spawn")
    received = context.Value("i", 0)
    ours, theirs = context.Pipe()
    context.Process(target=_receive, args=(theirs, received), daemon=True).start()
    return ours.recv(), received


def _receive(pipe: "Connection", received: "Synchronized[int]") -> None:
    with receiving() as receiver:
        pipe.send(receiver.base)
        while True:
            time.sleep(0.2)
            received.value = sum(receiver.counts().values())


def _rate(tenant: Tenant, seconds: float, size: int, most: int) -> tuple[float, float]:
    """Returns tasks per second, and per second of the server's CPU."""
    one = {"command": "work", "payload": {"text": "x" * 200}}
    server = psutil.Process(tenant.server.pid)
    began_s, used_s = time.perf_counter(), sum(server.cpu_times()[:2])
    tasks = 0
    while tasks < most if most else time.perf_counter() - began_s < seconds:
        tasks += size
        if size == 1:
            answered(tenant.producer.post(paths.TASKS, one), 202)
        else:
            answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [one] * size}), 200)
    return tasks / (time.perf_counter() - began_s), tasks / (sum(server.cpu_times()[:2]) - used_s)


def _empty(tenant: Tenant) -> None:
    while True:
        claimed = tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 1000})
        if claimed.status_code != 200:
            return
        results = [{"taskId": task["id"], "status": "COMPLETED", "result": {}} for task in claimed.json()["tasks"]]
        answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": results}), 200)


if __name__ == "__main__":
    main()
