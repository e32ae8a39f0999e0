"""The seam under the verbs: what both a server and a store inside the process can do for one tenant.

Nothing is answered before it is on disk. Every call may be repeated: an order with an idempotency key is taken once, an
outcome is accepted once, and a lease that was handed back cannot be handed back again.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from codeq.domain.errors import CodeqError
from codeq.domain.queue import QueuePolicy
from codeq.domain.requests import BulkResult, Claim, Filter, NewTask, Outcome, Page
from codeq.domain.task import Task
from codeq.sdk.jobs import Job, QueueInfo, ReleaseResult
from codeq.wire.events import Event, EventPage


class Backend(Protocol):
    def prepare_enqueue(
        self, orders: Sequence[NewTask]
    ) -> Callable[[], Coroutine[Any, Any, Sequence[Task | CodeqError]]]:
        """Make ready to enqueue. The call that it answers does so: per order, of up to 1000, the task, or why it was
        refused."""

    async def claim(self, wanted: Claim) -> list[Job]: ...

    async def heartbeat(self, job: Job, extend_ms: int | None, progress: str | None = None) -> int:
        """Until when the job is ours now, in Unix milliseconds."""

    async def submit(self, outcomes: Sequence[Outcome]) -> list[CodeqError | None]:
        """Per outcome, of up to 1000: None if it was accepted, or why not."""

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> ReleaseResult: ...

    async def abandon(self, job: Job) -> ReleaseResult: ...

    async def cancel(self, task_id: str) -> Task: ...

    async def replay(self, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> BulkResult:
        """Put dead tasks back: those named, or without names those that match."""

    async def purge(self, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> BulkResult:
        """Forget dead tasks: those named, or without names those that match."""

    async def cleanup(self, before_ms: int | None, limit: int) -> int:
        """Forget ended tasks whose retention passes before then (by now, for None). Answers how many."""

    async def get(self, task_id: str, wait_ms: int) -> tuple[Task, str, bytes | None]:
        """The task, its payload and its result, both as JSON."""

    async def history(self, task_id: str) -> list[Event]: ...

    async def find(self, wanted: Filter, cursor: str | None, limit: int) -> Page: ...

    async def queues(self) -> dict[str, QueueInfo]: ...

    async def policy(self, command: str) -> QueuePolicy | None:
        """The queue's own policy; None where the defaults hold."""

    async def set_policy(self, command: str, policy: QueuePolicy | None) -> None: ...

    async def set_paused(self, command: str, paused: bool) -> None: ...

    async def events(self, shard: int, offset: int, limit: int, wait_ms: int) -> EventPage: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
