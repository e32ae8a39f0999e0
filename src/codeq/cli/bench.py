"""`codeq bench`: measures calls to a server from this machine. A first impression, not a comparison of products."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import Json, ProfileName, TokenFile, TokenText, Url, examples, resolve_endpoint
from codeq.cli.errors import UsageError
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
    tasks: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of tasks per measurement.")] = 2000,
    payload_bytes: Annotated[int, typer.Option(min=2, max=1_000_000, help="Size of a payload.")] = 200,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Tasks per call, in batches.")] = 100,
    is_mine: Annotated[
        bool, typer.Option("--yes-this-is-my-server", help="Required if the server is not on this machine.")
    ] = False,
    url: Url = None,
    token: TokenText = None,
    token_file: TokenFile = None,
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Measure a server: enqueue one by one, enqueue in batches, claim and complete in batches.

    One caller on one connection: this measures the latency of calls, not what the server can do at most. The tasks
    have a command of their own and are completed; with an admin's token they are deleted at once.
    """
    endpoint, out = resolve_endpoint(url=url, token=token, token_file=token_file, profile=profile), Output(is_json=json)
    if not endpoint.is_loopback and not is_mine:
        raise UsageError(f"{endpoint.url} is not this machine; if it is yours, add --yes-this-is-my-server")
    command = f"bench-{random.randrange(16**8):08x}"
    payload = "x" * (payload_bytes - 2)
    with endpoint.client() as client, _cleanup(client, command) as is_deleted:
        runs = [
            _Measurement("enqueue one by one", 1),
            _Measurement("enqueue in batches", batch),
            _Measurement("claim and complete in batches", batch),
        ]
        runs[0].repeat(tasks, lambda _: bool(client.enqueue(command, payload)))
        runs[1].repeat(tasks, lambda size: _enqueue(client, command, payload, size))
        runs[2].repeat(2 * tasks, lambda size: _claim_and_complete(client, command, size))
    if out.is_json:
        out.document(
            {
                "url": endpoint.url,
                "command": command,
                "payloadBytes": payload_bytes,
                "batch": batch,
                "runs": [run.fields() for run in runs],
                "forgotten": bool(is_deleted),
            }
        )
        return
    out.rows(COLUMNS, [run.row() for run in runs])
    if not is_deleted:
        out.note(f"the tasks of {command} are completed; the server deletes them after their retention")


class _Measurement:
    """One kind of call, and how long each call took."""

    def __init__(self, name: str, batch: int) -> None:
        self.name = name
        self.batch = batch
        self.tasks = 0
        self.took_s: list[float] = []

    def repeat(self, tasks: int, call: Callable[[int], Any]) -> None:
        """Calls until that many tasks are done; `call` returns how many it did, or True for one."""
        while self.tasks < tasks:
            started_s = time.perf_counter()
            done = int(call(min(self.batch, tasks - self.tasks)))
            self.took_s.append(time.perf_counter() - started_s)
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
        fields = self.fields()
        rate, p50, p99 = fields["tasksPerSecond"], fields["p50Ms"], fields["p99Ms"]
        return (self.name, self.tasks, f"{rate:,.0f}", len(self.took_s), f"{p50:.2f}", f"{p99:.2f}")


def _enqueue(client: "Client", command: str, payload: str, size: int) -> int:
    from codeq.sdk.new_tasks import new_tasks

    for result in client.enqueue_many(new_tasks(command, [payload] * size)):
        if isinstance(result, CodeqError):
            raise result
    return size


def _claim_and_complete(client: "Client", command: str, size: int) -> int:
    jobs = client.claim(command, worker="bench", limit=size, lease=LEASE_S)
    if jobs:
        client.complete_many(jobs)
    return len(jobs)


@contextmanager
def _cleanup(client: "Client", command: str) -> "Iterator[list[bool]]":
    """Completes the remaining tasks at the end, and deletes them if the token is an admin's. Yields whether it is."""
    from codeq import QueuePolicy

    is_deleted: list[bool] = []
    try:
        client.set_policy(command, QueuePolicy(retention=0, dead_retention=0))
        is_deleted.append(True)
    except CodeqError as fault:
        if fault.code != "forbidden":
            raise
    try:
        yield is_deleted
    finally:
        while _claim_and_complete(client, command, 1000):
            pass
        for status in ("IN_PROGRESS", "PENDING"):  # claimed by an interrupted call, or released after it
            for task in client.list(command=command, status=status, limit=1000).tasks:
                client.cancel(task.id)
        if is_deleted:
            client.set_policy(command, None)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
