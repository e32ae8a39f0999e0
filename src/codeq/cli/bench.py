"""`codeq bench`: how fast is this server, from here? A first look, not a benchmark to compare products with."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import Json, ProfileName, TokenFile, TokenText, Url, choose, examples
from codeq.cli.errors import Misuse
from codeq.cli.output import Output
from codeq.domain.errors import CodeqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from codeq import Client

LEASE_S = 60.0
COLUMNS = ("", ">tasks", ">tasks/s", ">calls", ">p50 ms", ">p99 ms")


def add_to(app: typer.Typer) -> None:
    example = "codeq bench --tasks 10000 --payload-bytes 500 --batch 200"
    app.command("bench", epilog=examples(example))(bench)


def bench(
    tasks: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many, in each of the ways.")] = 2000,
    payload_bytes: Annotated[int, typer.Option(min=2, max=1_000_000, help="Size of each payload.")] = 200,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Tasks in one call, where calls take many.")] = 100,
    is_mine: Annotated[
        bool, typer.Option("--yes-this-is-my-server", help="Needed when the server is not on this machine.")
    ] = False,
    url: Url = None,
    token: TokenText = None,
    token_file: TokenFile = None,
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Measure a server: enqueue one by one, enqueue in batches, claim and complete in batches.

    One caller on one connection, so these are times of calls more than what the server can do. All of it happens
    under a command of its own, whose tasks are completed and, if the token is an admin's, forgotten at once.
    """
    server, out = choose(url=url, token=token, token_file=token_file, profile=profile), Output(is_json=json)
    if not server.is_loopback and not is_mine:
        raise Misuse(f"{server.url} is not this machine; if it is yours, say --yes-this-is-my-server")
    command = f"bench-{random.randrange(16**8):08x}"
    payload = "x" * (payload_bytes - 2)
    with server.client() as client, _swept_up(client, command) as is_clean:
        runs = [
            _Run("enqueue one by one", 1),
            _Run("enqueue in batches", batch),
            _Run("claim and complete in batches", batch),
        ]
        runs[0].repeat(tasks, lambda _: bool(client.enqueue(command, payload)))
        runs[1].repeat(tasks, lambda size: _enqueue(client, command, payload, size))
        runs[2].repeat(2 * tasks, lambda size: _work(client, command, size))
    if out.is_json:
        out.document(
            {
                "url": server.url,
                "command": command,
                "payloadBytes": payload_bytes,
                "batch": batch,
                "runs": [run.fields() for run in runs],
                "forgotten": bool(is_clean),
            }
        )
        return
    out.rows(COLUMNS, [run.row() for run in runs])
    if not is_clean:
        out.note(f"the tasks of {command} are completed; they go when the retention of the server is over")


class _Run:
    """One way of doing it, and how long each call took."""

    def __init__(self, name: str, batch: int) -> None:
        self.name = name
        self.batch = batch
        self.tasks = 0
        self.took_s: list[float] = []

    def repeat(self, tasks: int, call: Callable[[int], Any]) -> None:
        """Call until that many tasks are done; `call` answers how many it did, or True for one."""
        while self.tasks < tasks:
            began_s = time.perf_counter()
            done = int(call(min(self.batch, tasks - self.tasks)))
            self.took_s.append(time.perf_counter() - began_s)
            self.tasks += done
            if not done:
                return

    def fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tasks": self.tasks,
            "tasksPerSecond": round(self.tasks / sum(self.took_s), 1),
            "calls": len(self.took_s),
            "p50Ms": round(_percentile(self.took_s, 50) * 1000, 3),
            "p99Ms": round(_percentile(self.took_s, 99) * 1000, 3),
        }

    def row(self) -> tuple[Any, ...]:
        seen = self.fields()
        rate, p50, p99 = seen["tasksPerSecond"], seen["p50Ms"], seen["p99Ms"]
        return (self.name, self.tasks, f"{rate:,.0f}", len(self.took_s), f"{p50:.2f}", f"{p99:.2f}")


def _enqueue(client: "Client", command: str, payload: str, size: int) -> int:
    from codeq.sdk.new_tasks import new_tasks

    for answer in client.enqueue_many(new_tasks(command, [payload] * size)):
        if isinstance(answer, CodeqError):
            raise answer
    return size


def _work(client: "Client", command: str, size: int) -> int:
    jobs = client.claim(command, worker="bench", limit=size, lease=LEASE_S)
    if jobs:
        client.complete_many(jobs)
    return len(jobs)


@contextmanager
def _swept_up(client: "Client", command: str) -> "Iterator[list[bool]]":
    """Leave as little behind as we may: what is left over is completed, whatever happened in between."""
    from codeq.domain.queue import QueuePolicy

    is_clean: list[bool] = []
    try:
        client.set_policy(command, QueuePolicy(retention_ms=0, dead_retention_ms=0))
        is_clean.append(True)
    except CodeqError as fault:
        if fault.code != "forbidden":
            raise
    try:
        yield is_clean
    finally:
        while _work(client, command, 1000):
            pass
        for status in ("IN_PROGRESS", "PENDING"):  # claimed by a call that was interrupted, or back after that
            for task in client.list(command=command, status=status, limit=1000).tasks:
                client.cancel(task.id)
        if is_clean:
            client.set_policy(command, None)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
