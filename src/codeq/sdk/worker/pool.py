"""The seam between the runner and what executes handlers: threads, child processes, or the event loop."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from codeq.sdk.jobs import Job
from codeq.sdk.worker.execution import JobOutcome
from codeq.sdk.worker.handler import Handler


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
    progress: str = ""


Ended = Callable[[InFlightJob, JobOutcome], None]
"""Called by a pool when a handler has ended, from any thread."""
Report = Callable[[str, str], None]
"""Called by a pool with the key of a job and the progress text of its handler, from any thread."""


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
