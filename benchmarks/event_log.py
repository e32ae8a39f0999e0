"""A data directory with a long event log, made quickly in process, and a real server on it."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import codeq
from codeq.sdk.new_tasks import new_tasks

BATCH = 1000
DEV_TENANT = "dev"
_BANNER = re.compile(r"at (http://[^ ]*:\d+), data in")


def make_log(data: Path, events: int, *, tenants: int = 4, shards: int = 1) -> int:
    """Tasks that were enqueued, claimed and completed, three events each. Answers how many events there are."""
    return asyncio.run(_make_log(data, events, tenants=tenants, shards=shards))


async def _make_log(data: Path, events: int, *, tenants: int, shards: int) -> int:
    made = 0
    async with await codeq.open_async(data, tenant="t0", durability="process", shards=shards, sweeping=False) as first:
        queues = [first, *(first.for_tenant(f"t{n}") for n in range(1, tenants))]
        while made < events:
            queue = queues[made // (3 * BATCH) % tenants]
            tasks = new_tasks(f"job-{made // (3 * BATCH) % 7}", ({"n": made + n, "to": "x" * 40} for n in range(BATCH)))
            await queue.enqueue_many(tasks)
            jobs = await queue.claim(worker="bench", limit=BATCH, lease=600)
            await queue.complete_many(jobs, [{"ok": True}] * len(jobs))
            made += 2 * len(jobs) + BATCH
    return made


def add_events(url: str, events: int) -> None:
    """So many more, on a server that runs."""
    with codeq.Client(url, "dev-token") as client:
        for _ in range(-(-events // (3 * BATCH))):
            client.enqueue_many(new_tasks("more", ({"n": n, "to": "x" * 40} for n in range(BATCH))))
            jobs = client.claim("more", limit=BATCH, lease=600)
            client.complete_many(jobs, [{"ok": True}] * len(jobs))


def enqueue_waiting(data: Path, tasks: int) -> None:
    """The same without a server, which must not run: so many tasks that wait in the queue of `add_events`."""
    asyncio.run(_enqueue_waiting(data, tasks))


async def _enqueue_waiting(data: Path, tasks: int) -> None:
    async with await codeq.open_async(data, tenant=DEV_TENANT, durability="process", sweeping=False) as queue:
        for start in range(0, tasks, BATCH):
            await queue.enqueue_many(new_tasks("more", ({"n": start + n, "to": "x" * 40} for n in range(BATCH))))


def add_waiting(url: str, tasks: int) -> None:
    """So many tasks that wait in the queue from which `add_events` claims, the oldest first."""
    with codeq.Client(url, "dev-token") as client:
        for start in range(0, tasks, BATCH):
            client.enqueue_many(new_tasks("more", ({"n": start + n, "to": "x" * 40} for n in range(BATCH))))


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, int]]:
    """A server in development mode on `home/data`: its address and process id. Its token is `dev-token`."""
    out = home / "server.out"
    command = [sys.executable, "-c", "from codeq.cli.main import app; app()", "serve", "--dev", "--port", "0"]
    with out.open("wb") as file:
        process = subprocess.Popen([*command, "--data", str(home / "data")], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield _address(process, out), process.pid
    finally:
        process.terminate()
        process.wait(30)


def cpu_s(pid: int) -> float:
    """Processor time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int, *, without: int) -> float:
    """Processor time that a process and its descendants have used, without one of them and those below it."""
    parents, used_s = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(folder.name)] = int(fields[1])
            used_s[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, found = 0.0, [root]
    while found:
        pid = found.pop()
        total += used_s.get(pid, 0)
        found += [child for child, parent in parents.items() if parent == pid and child != without]
    return total


def _address(process: "subprocess.Popen[bytes]", out: Path) -> str:
    for _ in range(600):
        found = _BANNER.search(out.read_text())
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {out.read_text()[-2000:]}")
