"""The backend of a store in the same process: each verb calls a use case."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from codeq.domain import validation
from codeq.domain.artifacts import Artifact
from codeq.domain.errors import CodeqError, NotFound
from codeq.domain.limits import CLAIM_WAIT_MS_MAX
from codeq.domain.queue import EffectivePolicy, QueueKey, QueuePolicy
from codeq.domain.requests import BulkResult, Claim, Filter, LeaseExtension, NewTask, Outcome, Page, Selection
from codeq.domain.task import Holder, Task
from codeq.domain.workers import WorkerStatus
from codeq.sdk.artifacts import ArtifactPart
from codeq.sdk.backend import Send
from codeq.sdk.jobs import Job, QueueInfo, ReleaseResult
from codeq.sdk.tasks import replayed
from codeq.usecases import (
    abandon,
    artifact_upload,
    artifacts,
    cancel,
    nack,
    policies,
    purge,
    queries,
    replay,
    submit,
    watch_leases,
    workers,
)
from codeq.usecases import claim as claiming
from codeq.usecases import enqueue as enqueuing
from codeq.usecases import events as event_log
from codeq.usecases.core import Core
from codeq.usecases.heartbeat import heartbeat, heartbeat_many
from codeq.wire.events import Event, EventPage, event, scope

T = TypeVar("T")


class CoreBackend:
    """The queues of one tenant in `core`."""

    client_options = None

    def __init__(self, core: Core, tenant: str) -> None:
        self.core = core
        self.tenant = tenant

    def prepare_enqueue(self, new_tasks: Sequence[NewTask]) -> Send:
        return partial(self._enqueue, new_tasks)

    async def _enqueue(self, new_tasks: Sequence[NewTask], *, retry: bool = True) -> list[Task | CodeqError]:  # noqa: ARG002 - it is always reached
        answers = await enqueuing.enqueue(self.core, self.tenant, new_tasks)
        return [
            answer if isinstance(answer, CodeqError)
            else replayed(answer.task, is_mismatch=answer.is_mismatch) if answer.is_replay
            else answer.task
            for answer in answers
        ]  # fmt: skip

    async def claim(self, wanted: Claim) -> list[Job]:
        deliveries = await claiming.claim(self.core, self.tenant, wanted)
        return [
            Job(task.id, task.command, body.payload, Holder(task.worker or "", task.lease_token), task.priority,
                task.attempts, task.max_attempts, task.deliveries, task.lease_until_ms, body.trace_parent,
                body.trace_state)
            for task, body in [(delivery.task, delivery.body) for delivery in deliveries]
        ]  # fmt: skip

    async def heartbeat(self, job: Job, extend_ms: int | None, progress: str | None = None) -> int:
        task = await heartbeat(self.core, self.tenant, job.id, job.holder, extend_ms=extend_ms, progress=progress)
        return task.lease_until_ms

    async def heartbeat_many(self, beats: Sequence[LeaseExtension]) -> list[int | CodeqError]:
        answers = await heartbeat_many(self.core, self.tenant, beats)
        return [answer if isinstance(answer, CodeqError) else answer.lease_until_ms for answer in answers]

    async def watch_leases(self, jobs: Sequence[Job], wait_ms: int) -> list[tuple[str, str]]:
        leases = [(job.id, job.holder) for job in jobs]
        return await watch_leases.watch_leases(self.core, self.tenant, leases, wait_ms=wait_ms)

    async def submit(self, outcomes: Sequence[Outcome]) -> list[CodeqError | None]:
        answers = await submit.submit(self.core, self.tenant, outcomes)
        return [answer if isinstance(answer, CodeqError) else None for answer in answers]

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> ReleaseResult:
        return _released(
            await nack.nack(self.core, self.tenant, job.id, job.holder, delay_ms=delay_ms, reason=reason, is_last=dead)
        )

    async def abandon(self, job: Job, delay_ms: int = 0) -> ReleaseResult:
        return _released(await abandon.abandon(self.core, self.tenant, job.id, job.holder, delay_ms=delay_ms))

    async def cancel(self, task_id: str) -> Task:
        [answer] = await cancel.cancel(self.core, self.tenant, [task_id])
        if isinstance(answer, CodeqError):
            raise answer
        return answer

    async def replay(self, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        return await replay.replay(self.core, self.tenant, selection, limit=limit, dry_run=dry_run)

    async def purge(self, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        return await purge.purge(self.core, self.tenant, selection, limit=limit, dry_run=dry_run)

    async def cleanup(self, before_ms: int | None, limit: int) -> int:
        before = self.core.now_ms() if before_ms is None else before_ms
        return await purge.purge_before(self.core, self.tenant, before, limit=limit)

    async def get(self, task_id: str, wait_ms: int) -> tuple[Task, str, bytes | None]:
        record = await queries.get(self.core, self.tenant, task_id, wait_ms=wait_ms)
        return record.task, record.body.payload.decode(), record.result

    async def history(self, task_id: str) -> list[Event]:
        return [event(task) for task in await queries.history(self.core, self.tenant, task_id)]

    async def find(self, wanted: Filter, cursor: str | None, limit: int) -> Page:
        return await queries.find(self.core, self.tenant, wanted, cursor=cursor, limit=limit)

    async def queues(self) -> dict[str, QueueInfo]:
        return {
            found.key.command: QueueInfo(
                pending=found.counts.pending,
                delayed=found.counts.delayed,
                in_progress=found.counts.in_progress,
                dead=found.counts.dead,
                oldest_seconds=found.oldest_age_ms / 1000,
                paused=found.paused,
                workers=found.workers,
            )
            for found in await queries.queues(self.core, self.tenant)
        }

    async def workers(self) -> list[WorkerStatus]:
        return (await workers.list_workers(self.core, self.tenant)).workers

    async def leave(self, worker: str, name: str) -> None:
        await workers.leave(self.core, self.tenant, worker, name)

    async def policy(self, command: str) -> QueuePolicy | None:
        return policies.get_policy(self.core, QueueKey(self.tenant, command))

    async def effective_policy(self, command: str) -> EffectivePolicy:
        return policies.get_effective(self.core, QueueKey(self.tenant, command))

    async def set_policy(
        self, command: str, policy: QueuePolicy | None, if_match: str | None = None
    ) -> QueuePolicy | None:
        queue = QueueKey(self.tenant, command)
        if policy is None:
            await policies.delete_policy(self.core, queue, if_match=if_match)
            return None
        return (await policies.put_policy(self.core, queue, policy, if_match=if_match))[0]

    async def set_paused(self, command: str, paused: bool) -> None:
        key = QueueKey(self.tenant, validation.queue_name(command, "command"))
        await policies.set_paused(self.core, key, paused=paused)

    async def events(self, shard: int, offset: int, limit: int, wait_ms: int) -> EventPage:
        found = await event_log.read(self.core, shard, offset, limit, wait_ms=min(wait_ms, CLAIM_WAIT_MS_MAX))
        return EventPage(
            shard=shard,
            events=[event(task) for task in found.events if task.tenant == self.tenant],
            next_offset=found.start + len(found.records),
            first_offset=found.first,
            end_offset=found.next,
            shards=self.core.shards,
            log_id=self.core.log_id,
            scope=scope(self.tenant),
        )

    async def put_artifact_part(self, job: Job, part: ArtifactPart) -> Artifact | None:
        upload = await artifact_upload.begin_upload(
            self.core,
            self.tenant,
            job.id,
            job.holder,
            name=part.name,
            content_type=part.content_type,
            offset=part.offset,
            length=part.length,
        )
        try:
            await upload.write(part.content)
            return await upload.finish(length=part.length) if part.is_last else None
        finally:
            upload.close()

    async def artifact_upload(self, job: Job, name: str) -> tuple[int, Artifact | None]:
        try:
            progress = await artifact_upload.upload_progress(self.core, self.tenant, job.id, job.holder, name=name)
        except NotFound:
            return 0, None
        return progress.offset, progress.complete

    async def artifacts(self, task_id: str) -> list[Artifact]:
        return list((await queries.get(self.core, self.tenant, task_id)).artifacts)

    async def read_artifact(self, task_id: str, artifact: Artifact, start: int, end: int) -> bytes:
        record = await queries.get(self.core, self.tenant, task_id)
        found = artifacts.find(record, artifact.name)
        content = await artifacts.parts_of(self.core, record.task, found)
        return b"".join([piece async for piece in content.read(start, end)])

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(function, *args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self.core.close()


def _released(task: Task) -> ReleaseResult:
    waits_ms = task.visible_ms - task.updated_ms if task.visible_ms else 0
    return ReleaseResult(task.is_dead, waits_ms / 1000)
