"""Every verb of the queue as a coroutine: the same calls for a server and for a store in the same process."""

import builtins
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from codeq.domain import validation
from codeq.domain.artifacts import Artifact
from codeq.domain.backoff import Backoff
from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.domain.limits import (
    BACKOFF_MS_MAX,
    CLAIM_WAIT_MS_MAX,
    ERROR_CHARS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    RESULT_WAIT_MS_MAX,
)
from codeq.domain.queue import EffectivePolicy, Index, QueuePolicy
from codeq.domain.requests import BulkResult, Claim, Filter, NewTask, Outcome, Page, Selection
from codeq.domain.task import Status, Task
from codeq.domain.workers import WorkerStatus
from codeq.sdk import artifacts as transfer
from codeq.sdk.artifacts import Source
from codeq.sdk.backend import Backend
from codeq.sdk.batcher import AsyncBatcher
from codeq.sdk.durations import Seconds, milliseconds, milliseconds_from, unix_ms
from codeq.sdk.jobs import Job, QueueInfo, ReleaseResult, TaskDetails, TaskFailed, WaitTimeout, encode_json
from codeq.sdk.tracing import current_trace
from codeq.sdk.worker_info import claimer_info
from codeq.wire.errors import error_of
from codeq.wire.events import Event, EventPage

EARLY_S = 0.05
"""A wait for the end of a task that returns sooner than this was cut short by the server: the next one is delayed."""
BULK_MAX = 100_000
READ_BYTES_MAX = 64 << 20
"""Bytes of an artifact that `read_artifact` holds in memory, unless it is told otherwise."""
_COMPLETED = Status.COMPLETED


class Verbs:
    """The queues of one tenant. Times are seconds, or `timedelta`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def enqueue(
        self,
        command: str,
        payload: Any = None,
        *,
        priority: int = 0,
        delay: Seconds = 0,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        idempotency_key: str | None = None,
        webhook: str | None = None,
        backoff: Backoff | None = None,
    ) -> Task:
        """Enqueues one task. It is on disk when this returns."""
        trace_parent, trace_state = current_trace()
        new_task = NewTask(
            command=command,
            payload=encode_json(payload),
            priority=priority,
            delay_ms=milliseconds(delay) if delay else 0,
            run_at_ms=unix_ms(run_at) if run_at is not None else None,
            max_attempts=max_attempts,
            idempotency_key=idempotency_key,
            webhook=webhook,
            backoff=backoff,
            trace_parent=trace_parent,
            trace_state=trace_state,
        )
        [answer] = await self.backend.prepare_enqueue([new_task])()
        if isinstance(answer, CodeqError):
            raise answer
        return answer

    async def enqueue_many(self, tasks: Sequence[NewTask]) -> list[Task | CodeqError]:
        """Enqueues up to 1000 tasks in one call. Answers per task: the task, or why it was refused."""
        parent, state = current_trace()
        if parent is not None:
            trace = {"trace_parent": parent, "trace_state": state}
            tasks = [each if each.trace_parent is not None else replace(each, **trace) for each in tasks]
        return list(await self.backend.prepare_enqueue(tasks)())

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
            lease_ms=None if lease is None else _lease_ms(lease),
            wait_ms=_wait_ms(wait, CLAIM_WAIT_MS_MAX),
            info=claimer_info(),
        )
        return await self.backend.claim(wanted)

    async def heartbeat(self, job: Job, extend: Seconds | None = None, *, progress: str | None = None) -> datetime:
        """Extends the lease of the job and reports its progress; answers until when the lease lasts.

        Raises NotOwner if the lease was lost, Cancelled if the task was cancelled: stop working on it.
        """
        until_ms = await self.backend.heartbeat(job, None if extend is None else _lease_ms(extend), progress)
        return datetime.fromtimestamp(until_ms / 1000, UTC)

    async def complete(self, job: Job, result: Any = None) -> None:
        """Ends the job with success. The files that were attached to it become visible with the result."""
        await self._end(_completed(job, result))

    async def fail(self, job: Job, error: str, result: Any = None) -> None:
        """Ends the job as failed, without a retry. The files that were attached to it become visible all the same."""
        encoded, reason, files = encode_json(result), _reason(error), job.named_artifacts()
        failed = Status.FAILED
        await self._end(
            Outcome(task_id=job.id, holder=job.holder, status=failed, error=reason, result=encoded, artifacts=files)
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

    async def artifacts(self, task_id: str) -> builtins.list[Artifact]:
        """The files of the task's result: none before it has ended."""
        return await self.backend.artifacts(task_id)

    async def read_artifact(self, task_id: str, name: str, *, most: int = READ_BYTES_MAX) -> bytes:
        """The content of a file of the task's result, if it has at most `most` bytes."""
        return await transfer.read(self.backend, task_id, await self._artifact(task_id, name), most)

    async def download_artifact(self, task_id: str, name: str, target: str | os.PathLike[str]) -> Path:
        """Writes a file of the task's result to `target`, a file or a directory. It appears there once it is complete
        and its SHA-256 is right."""
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
        return await self.backend.nack(job, delay_ms, _reason(reason), dead=dead)

    async def abandon(self, job: Job) -> ReleaseResult:
        """Releases the job without counting an attempt; another worker may claim it at once."""
        return await self.backend.abandon(job)

    async def cancel(self, task_id: str) -> Task:
        """Cancels a task. The worker of a task in progress learns of it at its next heartbeat."""
        return await self.backend.cancel(task_id)

    async def wait(self, task_id: str, timeout: Seconds = 60) -> Any:  # noqa: ASYNC109 - the server does the waiting
        """Waits until the task has ended, and returns its result.

        Raises TaskFailed if the task ended without success, WaitTimeout if it has not ended in time.
        """
        details = await self._details(task_id, milliseconds(timeout))
        if not details.task.status.is_final:
            raise WaitTimeout(f"task {task_id} is {details.task.status} after {timeout} seconds")
        if details.task.status is not _COMPLETED:
            raise TaskFailed(details)
        return details.result

    async def get(self, task_id: str, *, wait: Seconds = 0) -> TaskDetails:
        """The task with its payload and result. With `wait`, waits that long for the task to end."""
        return await self._details(task_id, milliseconds(wait))

    async def history(self, task_id: str) -> list[Event]:
        """Every move of the task, oldest first."""
        return await self.backend.history(task_id)

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
        return await self.backend.find(wanted, cursor, limit)

    async def queues(self) -> dict[str, QueueInfo]:
        """The counts of the queue of each command."""
        return await self.backend.queues()

    async def workers(self) -> builtins.list[WorkerStatus]:
        """The workers that were heard from lately or hold tasks, with what each holds. For admins."""
        return await self.backend.workers()

    async def replay(self, task_id: str) -> None:
        """Puts a dead task back into its queue, with its attempts reset."""
        _check_changed(task_id, await self.backend.replay([task_id], limit=1, dry_run=False))

    async def purge(self, task_id: str) -> None:
        """Deletes a dead task now."""
        _check_changed(task_id, await self.backend.purge([task_id], limit=1, dry_run=False))

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
        selection = _selection(command, ids, error, limit)
        return await self.backend.replay(selection, limit=limit, dry_run=dry_run) if selection else BulkResult(0, 0, [])

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
        selection = _selection(command, ids, error, limit)
        return await self.backend.purge(selection, limit=limit, dry_run=dry_run) if selection else BulkResult(0, 0, [])

    async def cleanup(self, *, before: datetime | None = None, limit: int = 1000) -> int:
        """Deletes up to `limit` ended tasks whose retention passes before `before` (before now, by default)."""
        if not 1 <= limit <= BULK_MAX:
            raise InvalidRequest(f"limit must be from 1 to {BULK_MAX}, not {limit}")
        return await self.backend.cleanup(unix_ms(before) if before is not None else None, limit)

    async def policy(self, command: str) -> QueuePolicy | None:
        """The rules that were set for one command; None where none were, and the server's settings apply."""
        return await self.backend.policy(command)

    async def effective_policy(self, command: str) -> EffectivePolicy:
        """All rules that apply to one command: those of its policy, and the server's settings for the others."""
        return await self.backend.effective_policy(command)

    async def set_policy(
        self, command: str, policy: QueuePolicy | None, *, if_match: str | int | None = None
    ) -> QueuePolicy | None:
        """Replaces the rules that were set for one command; None deletes them. Answers the stored policy.

        `if_match`: the `etag` or `version` of the policy that this one was made from (0: there was none). Raises
        `PolicyChanged`, and changes nothing, if the command has another one by now.
        """
        etag = None if if_match is None else validation.etag(str(if_match))
        return await self.backend.set_policy(command, policy, etag)

    async def pause(self, command: str) -> None:
        """Stops the delivery of tasks of this command until `resume`. New tasks are still accepted."""
        await self.backend.set_paused(command, True)

    async def resume(self, command: str) -> None:
        """Delivers tasks of this command again."""
        await self.backend.set_paused(command, False)

    async def events(self, *, shard: int = 0, offset: int = 1, limit: int = 1000, wait: Seconds = 0) -> EventPage:
        """The events of a shard from `offset` on. With `wait`, waits that long for the first, 30 s at most."""
        return await self.backend.events(shard, offset, limit, _wait_ms(wait, CLAIM_WAIT_MS_MAX))

    def as_async(self) -> "Verbs":
        """The same queue with coroutines as verbs: this object."""
        return self

    async def close(self) -> None:
        """Closes the connections, or the data directory. Leaving `async with` does so too."""
        await self.backend.close()

    async def _details(self, task_id: str, wait_ms: int) -> TaskDetails:
        deadline_s = monotonic() + wait_ms / 1000
        while True:
            asked_s = monotonic()
            left_ms = max(0, round((deadline_s - asked_s) * 1000))
            task, payload, result = await self.backend.get(task_id, min(left_ms, RESULT_WAIT_MS_MAX))
            if not left_ms or task.status.is_final:
                decode = msgspec.json.decode
                return TaskDetails(task, decode(payload), decode(result) if result is not None else None)
            if monotonic() - asked_s < EARLY_S:
                await self.backend.sleep(EARLY_S)

    async def _end(self, outcome: Outcome) -> None:
        [refusal] = await self.backend.submit([outcome])
        if refusal is not None:
            raise refusal


def _completed(job: Job, result: Any) -> Outcome:
    files = job.named_artifacts() if job.attached else ()
    return Outcome(task_id=job.id, holder=job.holder, status=_COMPLETED, result=encode_json(result), artifacts=files)


def _lease_ms(lease: Seconds) -> int:
    return milliseconds_from(lease, "a lease", LEASE_MS_MIN, LEASE_MS_MAX)


def _wait_ms(wait: Seconds, most_ms: int) -> int:
    wait_ms = milliseconds(wait)
    if wait_ms < 0:
        raise InvalidRequest(f"a wait is not negative: {wait}")
    return min(wait_ms, most_ms)


def _reason(text: str) -> str:
    """Cuts a long text and escapes broken characters, rather than refusing them: no report is lost for its message."""
    if not isinstance(text, str):
        raise InvalidRequest(f"a reason is text, not {text!r:.80}")
    return text[:ERROR_CHARS_MAX].encode("utf-8", "backslashreplace").decode()[:ERROR_CHARS_MAX]


def _selection(command: str | None, ids: Sequence[str] | None, error: str | None, limit: int) -> Selection:
    if ids is not None and not ids:
        return ids
    if ids is not None and (command is not None or error is not None):
        raise InvalidRequest("dead tasks are chosen by ids, or by command and error; not by both")
    if not 1 <= limit <= BULK_MAX:
        raise InvalidRequest(f"limit must be from 1 to {BULK_MAX}, not {limit}")
    return Filter(command=command, error=error) if ids is None else ids


def _check_changed(task_id: str, result: BulkResult) -> None:
    if not result.changed:
        code = result.refused.get(task_id, NotFound.code)
        raise error_of(code, f"task {task_id} is not in the dead-letter queue")
