"""The seam between the runner and what executes handlers: threads, child processes, or the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from msgspec import Struct

from codeq.sdk.jobs import Job
from codeq.sdk.worker.handler import Handler
from codeq.sdk.worker.outcomes import JobOutcome
from codeq.sdk.worker.running_job import AttachedFile


class InFlightJob(Struct, gc=False, eq=False):
    """The worker's record of a job, from its claim until its handler has ended or was discarded."""

    job: Job
    handler: Handler
    key: str
    """`job.key`."""
    started_s: float = 0.0
    """When a pool started the handler; 0 before."""
    decided_s: float = 0.0
    """When the runner decided the outcome without the handler (a timeout, a lost lease, a shutdown); 0 before. A
    handler that has not started by then is not started any more."""
    is_ended: bool = False
    """Its pool has called `Ended`."""
    ended_s: float = 0.0
    progress: str = ""


class InFlightJobs:
    """The jobs that the worker holds, by key; and how many each pool holds and has ended."""

    def __init__(self) -> None:
        self.by_key: dict[str, InFlightJob] = {}
        self.held: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def add(self, entry: InFlightJob) -> None:
        self.by_key[entry.key] = entry
        self.held[entry.handler.pool_name] += 1

    def remove(self, key: str) -> None:
        """Forgets the job, if it is there."""
        entry = self.by_key.pop(key, None)
        if entry is not None:
            pool_name = entry.handler.pool_name
            self.held[pool_name] -= 1
            self.ended[pool_name] += 1

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)


Ended = Callable[[InFlightJob, JobOutcome], None]
"""Called by a pool when a handler has ended, from any thread."""
Attach = Callable[[InFlightJob, AttachedFile], Coroutine[Any, Any, None]]
"""Uploads a file for the result of the job, on the event loop of the worker. Raises CodeqError."""
Report = Callable[[str, str], None]
"""Called by a pool with the key of a job and the progress text of its handler, from any thread."""


INTERRUPTED_S = 0.1
"""How late a thread that waits for an upload notices that its job was interrupted."""


def attach_blocking(loop: asyncio.AbstractEventLoop, attach: Attach, entry: InFlightJob, file: AttachedFile) -> None:
    """Uploads a file for a handler in a thread, and waits for it."""
    upload = asyncio.run_coroutine_threadsafe(attach(entry, file), loop)
    try:
        while True:
            try:
                return upload.result(INTERRUPTED_S)
            except TimeoutError:
                if upload.done():
                    raise
    finally:
        upload.cancel()


class Pool(Protocol):
    """Executes handlers, a bounded number at once.

    Every method is called on the event loop of the worker, does not block, and raises nothing. For each submitted job
    that is neither drained nor discarded the pool calls `Ended` exactly once: with the outcome of the handler, or with
    DROPPED if the handler was interrupted, or was not started because the outcome had been decided before.
    """

    def submit(self, entry: InFlightJob) -> None:
        """Starts the handler as soon as a slot is free, in the order of submission, and sets `started_s`."""

    def drain(self) -> list[InFlightJob]:
        """Removes and returns the jobs whose handlers have not started."""

    def interrupt(self, entry: InFlightJob) -> None:
        """Stops the handler of a job whose outcome has been decided: by an exception in a thread or coroutine, by
        SIGKILL in a process. The handler may ignore the exception. No effect if it is not running."""

    def discard(self, entry: InFlightJob) -> None:
        """Gives up on a handler that ignored `interrupt`, and replaces its slot: up to `size` slots are replaced, after
        which the pool has a fault."""

    @property
    def fault(self) -> str | None:
        """Why this pool will execute nothing more; None while it works."""

    def close(self) -> None:
        """Ends the pool without waiting for running handlers: processes are killed, coroutines cancelled, threads end
        with their handlers."""
