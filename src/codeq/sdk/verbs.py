"""Every verb of the queue as a coroutine: the same calls for a server and for a store in the same process."""

import builtins
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import replace

from codeq.domain import validation
from codeq.domain.artifacts import Artifact
from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.domain.limits import (
    BACKOFF_MS_MAX,
    CLAIM_WAIT_MS_MAX,
    RESULT_WAIT_MS_MAX,
)
from codeq.domain.queue import Index
from codeq.domain.requests import BulkResult, Claim, Filter, LeaseExtension, NewTask, Outcome
from codeq.domain.task import Status
from codeq.domain.task import Task as Record
from codeq.sdk import artifacts as transfer
from codeq.sdk.arguments import BULK_MAX, check_changed, lease_ms, reason_text, selection, wait_ms
from codeq.sdk.artifacts import Source
from codeq.sdk.backend import Backend
from codeq.sdk.batcher import AsyncBatcher
from codeq.sdk.definitions import TaskDefinition
from codeq.sdk.durations import Seconds, milliseconds, milliseconds_from, unix_ms
from codeq.sdk.jobs import (
    EnqueueRefused,
    Job,
    QueueInfo,
    ReleaseResult,
    TaskDetails,
    TaskFailed,
    WaitTimeout,
)
from codeq.sdk.json_encoding import encode_json
from codeq.sdk.new_tasks import EnqueueOptions, new_task
from codeq.sdk.queue_policies import EffectivePolicy, QueuePolicy, effective_of, policy_of, stored_policy
from codeq.sdk.tasks import Page, Task, TypedTask, answers_of, moment, task_id_of, task_of, typed
from codeq.sdk.tracing import current_trace
from codeq.sdk.worker_info import WorkerStatus, claimer_info, worker_status
from codeq.wire.events import Event, EventPage

EARLY_S = 0.05
"""A wait for the end of a task that returns sooner than this was cut short by the server: the next one is delayed."""
READ_BYTES_MAX = 64 << 20
"""Bytes of an artifact that `read_artifact` holds in memory, unless it is told otherwise."""
_COMPLETED = Status.COMPLETED
P = ParamSpec("P")
R = TypeVar("R")


class Verbs:
    """The queues of one tenant. Times are seconds, or `timedelta`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def enqueue(self, task: TaskDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TypedTask[R]: ...
    @overload
    async def enqueue(self, command: str, /, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Task: ...
    async def enqueue(self, command: Any, /, *args: Any, **kwargs: Any) -> Task:
        """Enqueues one task: a call of a declared function, or a command with any payload and with options. It is on
        disk when this returns."""
        if isinstance(command, TaskDefinition):
            return typed(await self._enqueue(command.new_task(*args, **kwargs)), command)
        return task_of(await self._enqueue(new_task(command, *args, **kwargs)))

    async def _enqueue(self, new_task: NewTask) -> Record:
        [answer] = await self.backend.prepare_enqueue([new_task])()
        if isinstance(answer, CodeqError):
            raise answer
        return answer

    @overload
    async def enqueue_many(self, tasks: Iterable[NewTask], *, refusals: Literal["raise"] = "raise") -> list[Task]: ...
    @overload
    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, refusals: Literal["return"]
    ) -> list[Task | CodeqError]: ...
    async def enqueue_many(self, tasks: Iterable[NewTask], *, refusals: str = "raise") -> Any:
        """Enqueues up to 1000 tasks in one call, and returns them. If some are refused, raises EnqueueRefused, which
        has the answer to each; the others are enqueued. With `refusals="return"` the refusals are in the list."""
        if refusals not in ("raise", "return"):
            raise InvalidRequest(f"refusals is 'raise' or 'return', not {refusals!r:.80}")
        tasks = list(tasks)  # which may be a generator
        for kind in set(map(type, tasks)):
            if kind is not NewTask and not issubclass(kind, NewTask):
                raise InvalidRequest(f"enqueue_many takes tasks of codeq.new_task(s), not {kind.__name__}")
        parent, state = current_trace()
        if parent is not None:
            trace = {"trace_parent": parent, "trace_state": state}
            tasks = [each if each.trace_parent is not None else replace(each, **trace) for each in tasks]
        answers, has_refusals = answers_of(await self.backend.prepare_enqueue(tasks)())
        if has_refusals and refusals == "raise":
            raise EnqueueRefused(answers)
        return answers

    def batcher(self, *, size: int = 500, linger: Seconds = 0.005) -> AsyncBatcher:
        """Collects tasks that are enqueued one by one, and sends them as a batch once there are `size` of them, or once
        the first has waited for `linger`."""
        return AsyncBatcher(self.backend.prepare_enqueue, size=size, linger_s=milliseconds(linger) / 1000)

    async def claim(
        self,
        *commands: str,
        worker: str = "worker",
        limit: int = 1,
        lease: Seconds | None = None,
        wait: Seconds = 0,
    ) -> list[Job]:
        """Leases up to `limit` tasks of these commands (of all commands, if none is given). Waits up to `wait` for the
        first, and 30 seconds at most.

        A server takes the name of the worker from the token, and ignores `worker`.
        """
        wanted = Claim(
            worker=worker,
            commands=tuple(dict.fromkeys(commands)) or None,
            limit=limit,
            lease_ms=None if lease is None else lease_ms(lease),
            wait_ms=wait_ms(wait, CLAIM_WAIT_MS_MAX),
            info=claimer_info(),
        )
        return await self.backend.claim(wanted)

    async def heartbeat(self, job: Job, extend: Seconds | None = None, *, progress: str | None = None) -> datetime:
        """Extends the lease of the job and reports its progress; answers until when the lease lasts.

        Raises NotOwner if the lease was lost, Cancelled if the task was cancelled: stop working on it.
        """
        until_ms = await self.backend.heartbeat(job, None if extend is None else lease_ms(extend), progress)
        return moment(until_ms)

    async def heartbeat_many(
        self, jobs: Sequence[Job], extend: Seconds | None = None
    ) -> Sequence[datetime | CodeqError]:
        """Extends up to 1000 leases in one call. Answers per job: until when its lease lasts, or why it was refused."""
        extend_ms = None if extend is None else lease_ms(extend)
        beats = [LeaseExtension(task_id=job.id, holder=job.holder, extend_ms=extend_ms) for job in jobs]
        answers = await self.backend.heartbeat_many(beats)
        return [each if isinstance(each, CodeqError) else moment(each) for each in answers]

    async def complete(self, job: Job, result: Any = None) -> None:
        """Ends the job with success. The files that were attached to it become visible with the result."""
        await self._end(_completed(job, result))

    async def fail(self, job: Job, error: str, result: Any = None) -> None:
        """Ends the job as failed, without a retry. The files that were attached to it become visible all the same."""
        encoded, text, files = encode_json(result), reason_text(error), job.named_artifacts()
        failed = Status.FAILED
        await self._end(
            Outcome(task_id=job.id, holder=job.holder, status=failed, error=text, result=encoded, artifacts=files)
        )

    async def complete_many(self, jobs: Sequence[Job], results: Sequence[Any] | None = None) -> list[CodeqError | None]:
        """Ends up to 1000 jobs with success in one call. Answers per job: None, or why it was refused."""
        results = [None] * len(jobs) if results is None else results
        if len(results) != len(jobs):
            raise InvalidRequest(f"there are {len(results)} results for {len(jobs)} job(s)")
        return await self.backend.submit([_completed(job, result) for job, result in zip(jobs, results, strict=True)])

    async def attach(
        self, job: Job, name: str, content: Source, *, content_type: str | None = None, resume: bool = False
    ) -> Artifact:
        """Uploads a file for the result of the job: bytes, or the path of a file. `complete` and `fail` make it
        visible. The type of the content is guessed from the name. With `resume`, continues what an earlier call left.
        """
        return await transfer.upload(self.backend, job, name, content, content_type=content_type, resume=resume)

    async def artifacts(self, task: Task | str) -> builtins.list[Artifact]:
        """The files of the task's result: none before it has ended."""
        return await self.backend.artifacts(task_id_of(task))

    async def read_artifact(self, task: Task | str, name: str, *, most: int = READ_BYTES_MAX) -> bytes:
        """The content of a file of the task's result, if it has at most `most` bytes."""
        task_id = task_id_of(task)
        return await transfer.read(self.backend, task_id, await self._artifact(task_id, name), most)

    async def download_artifact(self, task: Task | str, name: str, target: str | os.PathLike[str]) -> Path:
        """Writes a file of the task's result to `target`, a file or a directory. It appears there once it is complete
        and its SHA-256 is right."""
        task_id = task_id_of(task)
        return await transfer.download(self.backend, task_id, await self._artifact(task_id, name), target)

    async def _artifact(self, task_id: str, name: str) -> Artifact:
        for artifact in await self.backend.artifacts(task_id):
            if artifact.name == name:
                return artifact
        raise NotFound(f"task {task_id} has no artifact {name!a}")

    async def nack(
        self, job: Job, reason: str = "", *, delay: Seconds | None = None, dead: bool = False
    ) -> ReleaseResult:
        """Reports a failed try. The task is delivered again after its backoff, or after `delay`. With `dead`, or if it
        was the last attempt, the task goes to the dead-letter queue."""
        delay_ms = None if delay is None else milliseconds_from(delay, "a delay", 0, BACKOFF_MS_MAX)
        return await self.backend.nack(job, delay_ms, reason_text(reason), dead=dead)

    async def abandon(self, job: Job, *, delay: Seconds = 0) -> ReleaseResult:
        """Releases the job without counting an attempt; another worker may claim it at once, or after `delay`."""
        return await self.backend.abandon(job, milliseconds_from(delay, "a delay", 0, BACKOFF_MS_MAX))

    async def cancel(self, task: Task | str) -> Task:
        """Cancels a task. The worker of a task in progress learns of it within about a second."""
        return task_of(await self.backend.cancel(task_id_of(task)))

    @overload
    async def wait(self, task: TypedTask[R], timeout: Seconds = 60) -> R: ...  # noqa: ASYNC109 - the server waits
    @overload
    async def wait(
        self,
        task: Task | str,
        timeout: Seconds = 60,  # noqa: ASYNC109 - the server waits
        *,
        of: TaskDefinition[Any, R],
    ) -> R: ...
    @overload
    async def wait(self, task: Task | str, timeout: Seconds = 60) -> Any: ...  # noqa: ASYNC109
    async def wait(
        self,
        task: Task | str,
        timeout: Seconds = 60,  # noqa: ASYNC109 - the server waits
        *,
        of: TaskDefinition[Any, Any] | None = None,
    ) -> Any:
        """Waits until the task has ended, and returns its result: as the type that its function returns, if the task
        was enqueued by a declared function or `of` is one.

        Raises TaskFailed if the task ended without success, WaitTimeout if it has not ended in time.
        """
        task_id = task_id_of(task)
        found, payload, result = await self._ended(task_id, milliseconds(timeout))
        if not found.status.is_final:
            raise WaitTimeout(f"task {task_id} is {found.status} after {timeout} seconds")
        if found.status is not _COMPLETED:
            raise TaskFailed(_details(found, payload, result))
        definition = of if of is not None or not isinstance(task, TypedTask) else task.definition
        return _decode(result) if definition is None else definition.signature.decode_result(result)

    async def get(self, task: Task | str, *, wait: Seconds = 0) -> TaskDetails:
        """The task in its current state, with its payload and its result as JSON values. With `wait`, waits that long
        for the task to end."""
        return _details(*await self._ended(task_id_of(task), milliseconds(wait)))

    async def history(self, task: Task | str) -> list[Event]:
        """Every move of the task, oldest first."""
        return await self.backend.history(task_id_of(task))

    async def list(
        self,
        *,
        command: str | None = None,
        status: Status | str | None = None,
        dead: bool = False,
        error: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of tasks, newest first. A page may be short and still have a cursor: continue until there is none."""
        try:
            known = None if status is None else Status(status)
        except ValueError:
            raise InvalidRequest(f"status is one of {', '.join(Status)}, not {status!r}") from None
        wanted = Filter(command=command, status=known, error=error, index=Index.DEAD if dead else None)
        page = await self.backend.find(wanted, cursor, limit)
        return Page([task_of(record) for record in page.tasks], page.cursor)

    async def queues(self) -> dict[str, QueueInfo]:
        """The counts of the queue of each command."""
        return await self.backend.queues()

    async def workers(self) -> builtins.list[WorkerStatus]:
        """The workers that were heard from lately or hold tasks, with what each holds. For admins."""
        return [worker_status(found) for found in await self.backend.workers()]

    async def replay(self, task: Task | str) -> None:
        """Puts a dead task back into its queue, with its attempts reset."""
        task_id = task_id_of(task)
        check_changed(task_id, await self.backend.replay([task_id], limit=1, dry_run=False))

    async def purge(self, task: Task | str) -> None:
        """Deletes a dead task now."""
        task_id = task_id_of(task)
        check_changed(task_id, await self.backend.purge([task_id], limit=1, dry_run=False))

    async def replay_dead(
        self,
        command: str | None = None,
        *,
        ids: Sequence[str] | None = None,
        error: str | None = None,
        limit: int = 10_000,
        dry_run: bool = False,
    ) -> BulkResult:
        """Puts dead tasks back into their queues: those of `ids`, or all that match `command` and `error`."""
        chosen = selection(command, ids, error, limit)
        return await self.backend.replay(chosen, limit=limit, dry_run=dry_run) if chosen else BulkResult(0, 0, [])

    async def purge_dead(
        self,
        command: str | None = None,
        *,
        ids: Sequence[str] | None = None,
        error: str | None = None,
        limit: int = 10_000,
        dry_run: bool = False,
    ) -> BulkResult:
        """Deletes dead tasks: those of `ids`, or all that match `command` and `error`."""
        chosen = selection(command, ids, error, limit)
        return await self.backend.purge(chosen, limit=limit, dry_run=dry_run) if chosen else BulkResult(0, 0, [])

    async def cleanup(self, *, before: datetime | None = None, limit: int = 1000) -> int:
        """Deletes up to `limit` ended tasks whose retention passes before `before` (before now, by default)."""
        if not 1 <= limit <= BULK_MAX:
            raise InvalidRequest(f"limit must be from 1 to {BULK_MAX}, not {limit}")
        return await self.backend.cleanup(unix_ms(before) if before is not None else None, limit)

    async def policy(self, command: str) -> QueuePolicy | None:
        """The rules that were set for one command; None where none were, and the server's settings apply."""
        found = await self.backend.policy(command)
        return None if found is None else policy_of(found)

    async def effective_policy(self, command: str) -> EffectivePolicy:
        """All rules that apply to one command: those of its policy, and the server's settings for the others."""
        return effective_of(await self.backend.effective_policy(command))

    async def set_policy(
        self, command: str, policy: QueuePolicy | None, *, if_match: str | int | None = None
    ) -> QueuePolicy | None:
        """Replaces the rules that were set for one command; None deletes them. Answers the stored policy.

        `if_match`: the `etag` or `version` of the policy that this one was made from (0: there was none). Raises
        `PolicyChanged`, and changes nothing, if the command has another one by now.
        """
        etag = None if if_match is None else validation.etag(str(if_match))
        found = await self.backend.set_policy(command, None if policy is None else stored_policy(policy), etag)
        return None if found is None else policy_of(found)

    async def pause(self, command: str) -> None:
        """Stops the delivery of tasks of this command until `resume`. New tasks are still accepted."""
        await self.backend.set_paused(command, True)

    async def resume(self, command: str) -> None:
        """Delivers tasks of this command again."""
        await self.backend.set_paused(command, False)

    async def events(self, *, shard: int = 0, offset: int = 1, limit: int = 1000, wait: Seconds = 0) -> EventPage:
        """The events of a shard from `offset` on. With `wait`, waits that long for the first, 30 s at most."""
        return await self.backend.events(shard, offset, limit, wait_ms(wait, CLAIM_WAIT_MS_MAX))

    def as_async(self) -> "Verbs":
        """The same queue with coroutines as verbs: this object."""
        return self

    async def close(self) -> None:
        """Closes the connections, or the data directory. Leaving `async with` does so too."""
        await self.backend.close()

    async def _ended(self, task_id: str, wait_ms: int) -> tuple[Record, str, bytes | None]:
        deadline_s = monotonic() + wait_ms / 1000
        while True:
            asked_s = monotonic()
            left_ms = max(0, round((deadline_s - asked_s) * 1000))
            found = await self.backend.get(task_id, min(left_ms, RESULT_WAIT_MS_MAX))
            if not left_ms or found[0].status.is_final:
                return found
            if monotonic() - asked_s < EARLY_S:
                await self.backend.sleep(EARLY_S)

    async def _end(self, outcome: Outcome) -> None:
        [refusal] = await self.backend.submit([outcome])
        if refusal is not None:
            raise refusal


def _details(record: Record, payload: str, result: bytes | None) -> TaskDetails:
    return TaskDetails(task_of(record), _decode(payload), _decode(result))


def _completed(job: Job, result: Any) -> Outcome:
    files = job.named_artifacts() if job.attached else ()
    return Outcome(task_id=job.id, holder=job.holder, status=_COMPLETED, result=encode_json(result), artifacts=files)


def _decode(text: str | bytes | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
