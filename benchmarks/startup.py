"""How long opening takes and how much memory it needs, whatever the backlog. Run as a program, it fills or opens once.

Every opening happens in a process of its own: memory that a process has once used says nothing about the next opening.
"""

import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]

import codeq
from codeq import NewTask

COMMAND = "bench"
OPEN_GOAL_S, RSS_GOAL_MB = 5.0, 300.0
_BATCH = 1000
_OPENINGS = 3


class Opening(msgspec.Struct, frozen=True):
    pending: int
    after: str
    """How the last process left the directory: 'kill' leaves a log to be replayed, 'close' does not."""
    open_s: float
    first_claim_ms: float
    """One claim of 16, from the disk."""
    rss_before_mb: float
    """With everything imported and nothing opened."""
    rss_open_mb: float
    rss_claimed_mb: float
    rss_peak_mb: float


def measure(home: Path, tasks: int) -> list[Opening]:
    """Fill a directory and kill its process; then open it after that, and a few times after it was closed in order."""
    _child("fill", str(home), str(tasks))
    after_kill = _opened(home, "kill")
    return [after_kill, _median([_opened(home, "close") for _ in range(_OPENINGS)])]


def _median(runs: list[Opening]) -> Opening:
    """The median of the times, and the most of the memory."""
    return Opening(
        pending=runs[0].pending,
        after=runs[0].after,
        open_s=statistics.median(run.open_s for run in runs),
        first_claim_ms=statistics.median(run.first_claim_ms for run in runs),
        rss_before_mb=max(run.rss_before_mb for run in runs),
        rss_open_mb=max(run.rss_open_mb for run in runs),
        rss_claimed_mb=max(run.rss_claimed_mb for run in runs),
        rss_peak_mb=max(run.rss_peak_mb for run in runs),
    )


def _opened(home: Path, after: str) -> Opening:
    return msgspec.json.decode(_child("open", str(home), after), type=Opening)


def _child(*arguments: str) -> bytes:
    return subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE).stdout


async def _fill(home: Path, tasks: int) -> None:
    queue = await codeq.open_async(home, durability="process")
    dice = random.Random(tasks)
    for _ in range(0, tasks, _BATCH):
        payloads = [f'"{dice.getrandbits(792):0198x}"'.encode() for _ in range(_BATCH)]
        await queue.enqueue_many([NewTask(command=COMMAND, payload=payload) for payload in payloads])
    os._exit(0)  # as good as kill -9: nothing is closed, flushed or tidied up


async def _open(home: Path, after: str) -> Opening:
    rss_before_mb = _rss_mb()
    started_s = time.perf_counter()
    queue = await codeq.open_async(home)
    open_s = time.perf_counter() - started_s
    rss_open_mb = _rss_mb()
    counts = (await queue.queues()).get(COMMAND)
    started_s = time.perf_counter()
    jobs = await queue.claim(COMMAND, limit=16)
    first_claim_ms = (time.perf_counter() - started_s) * 1000
    rss_claimed_mb = _rss_mb()
    for job in jobs:  # so that the next opening finds the same backlog
        await queue.abandon(job)
    await queue.close()
    return Opening(
        pending=counts.pending if counts else 0,
        after=after,
        open_s=open_s,
        first_claim_ms=first_claim_ms,
        rss_before_mb=rss_before_mb,
        rss_open_mb=rss_open_mb,
        rss_claimed_mb=rss_claimed_mb,
        rss_peak_mb=_peak_mb(),
    )


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def _peak_mb() -> float:
    """The most that was ever resident. Not from getrusage, whose figure is inherited from the parent process."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return _rss_mb()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    verb, directory, argument = sys.argv[1:]
    if verb == "fill":
        asyncio.run(_fill(Path(directory), int(argument)))
    else:
        sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(_open(Path(directory), argument))))
