"""The seam under the verbs: what a server and a store in the same process both do for one tenant.

A call returns when its effect is on disk. Every call may be repeated: a new task with an idempotency key is enqueued
once, a claim with a request id leases once, a result is accepted once, and a lease is released once. Times are
milliseconds.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

from codeq.domain.artifacts import Artifact
from codeq.domain.errors import CodeqError
from codeq.domain.queue import EffectivePolicy, QueuePolicy
from codeq.domain.requests import BulkResult, Claim, Filter, LeaseExtension, NewTask, Outcome, Page, Selection
from codeq.domain.task import Task
from codeq.domain.workers import WorkerStatus
from codeq.sdk.artifacts import ArtifactPart
from codeq.sdk.durations import Seconds
from codeq.sdk.jobs import Job, QueueInfo, ReleaseResult
from codeq.wire.events import Event, EventPage

T = TypeVar("T")
Token = str | Callable[[], str]


class ClientOptions(TypedDict):
    """The arguments of `Client` and `AsyncClient`, with the defaults filled in."""

    url: str
    token: Token
    timeout: Seconds
    retry_for: Seconds
    ca_file: str | None


class Send(Protocol):
    """Sends tasks that were encoded."""

    def __call__(self, *, retry: bool = True) -> Coroutine[Any, Any, Sequence[Task | CodeqError]]:
        """Answers per new task: the task, or why it was refused. Without `retry` a server that cannot be reached is
        tried once."""


class Backend(Protocol):
    @property
    def client_options(self) -> ClientOptions | None:
        """How another process connects to the same queue; None if only this process can."""

    def prepare_enqueue(self, new_tasks: Sequence[NewTask]) -> "Send":
        """Encodes up to 1000 new tasks. The returned function sends them."""

    async def claim(self, wanted: Claim) -> list[Job]: ...

    async def heartbeat(self, job: Job, extend_ms: int | None, progress: str | None = None) -> int:
        """Extends the lease, and answers until when, in Unix milliseconds."""

    async def heartbeat_many(self, beats: Sequence[LeaseExtension]) -> list[int | CodeqError]:
        """Extends up to 1000 leases. Answers per lease: until when it lasts, or why it was refused."""

    async def watch_leases(self, jobs: Sequence[Job], wait_ms: int) -> list[tuple[str, str]]:
        """Returns the ids of those tasks whose lease is lost, and the code of why. Waits for one of them to end."""

    async def submit(self, outcomes: Sequence[Outcome]) -> list[CodeqError | None]:
        """Answers per outcome, of up to 1000: None if it was accepted, or why not."""

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> ReleaseResult: ...

    async def abandon(self, job: Job, delay_ms: int = 0) -> ReleaseResult: ...

    async def cancel(self, task_id: str) -> Task: ...

    async def replay(self, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        """Puts dead tasks back into their queues."""

    async def purge(self, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        """Deletes dead tasks."""

    async def cleanup(self, before_ms: int | None, limit: int) -> int:
        """Deletes ended tasks whose retention passes before then (before now, for None). Answers how many."""

    async def get(self, task_id: str, wait_ms: int) -> tuple[Task, str, bytes | None]:
        """The task, its payload and its result, both as JSON. Waits until the task has ended, up to `wait_ms`."""

    async def history(self, task_id: str) -> list[Event]: ...

    async def find(self, wanted: Filter, cursor: str | None, limit: int) -> Page: ...

    async def queues(self) -> dict[str, QueueInfo]: ...

    async def workers(self) -> list[WorkerStatus]: ...

    async def leave(self, worker: str, name: str) -> None:
        """Removes a worker that stops from the list of workers; `worker` is its name for a queue in this process."""

    async def policy(self, command: str) -> QueuePolicy | None:
        """The queue's own policy; None where the defaults apply."""

    async def effective_policy(self, command: str) -> EffectivePolicy: ...

    async def set_policy(
        self, command: str, policy: QueuePolicy | None, if_match: str | None = None
    ) -> QueuePolicy | None:
        """Replaces the queue's own policy, or deletes it. Answers the stored one."""

    async def set_paused(self, command: str, paused: bool) -> None: ...

    async def events(self, shard: int, offset: int, limit: int, wait_ms: int) -> EventPage: ...

    async def put_artifact_part(self, job: Job, part: ArtifactPart) -> Artifact | None:
        """Stores bytes of an artifact under the lease of the job. Answers the artifact after the last part.

        Raises UploadOffset if the upload continues elsewhere."""

    async def artifact_upload(self, job: Job, name: str) -> tuple[int, Artifact | None]:
        """How many bytes of an upload are stored, and the artifact if it is complete."""

    async def artifacts(self, task_id: str) -> list[Artifact]: ...

    async def read_artifact(self, task_id: str, artifact: Artifact, start: int, end: int) -> bytes: ...

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function that blocks, without blocking others."""

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
