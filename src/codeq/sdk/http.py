"""The backend of a server: each verb is one HTTP request, which is repeated when the connection is lost."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from codeq.domain import validation
from codeq.domain.artifacts import OCTET_STREAM, Artifact
from codeq.domain.errors import CodeqError, InvalidRequest, NotFound, QuotaExceeded
from codeq.domain.queue import EffectivePolicy, QueuePolicy
from codeq.domain.requests import BulkResult, Claim, Filter, LeaseExtension, NewTask, Outcome, Page, Selection
from codeq.domain.task import Holder, Task
from codeq.domain.workers import WorkerStatus
from codeq.sdk.artifacts import ArtifactPart
from codeq.sdk.backend import ClientOptions, Send
from codeq.sdk.encoding import EncodedTasks, TaskEncoder, new_request_id, pack
from codeq.sdk.enqueue_results import enqueue_results
from codeq.sdk.http_client import HttpClient, decoded, encoded, path_of
from codeq.sdk.jobs import Job, QueueInfo, ReleaseResult
from codeq.sdk.tasks import replayed
from codeq.sdk.tracing import NO_TRACE, header_lines
from codeq.wire import paths, queues, system, tasks, times, to_domain
from codeq.wire.artifacts import ArtifactViews, SubmittedArtifact, UploadView, artifact_of
from codeq.wire.client import ClaimedTaskList, ItemVerdicts, TaskAndRawResult
from codeq.wire.errors import error_of
from codeq.wire.events import Event, EventPage, History
from codeq.wire.workers import WorkerViews, worker_fields

T = TypeVar("T")

BACKUP_MS_MAX = 3_600_000
"""How long a backup may take: files are copied if it is on another file system than the data."""

PART_S_MAX = 60.0
"""How long 8 MB of an artifact may take on their way."""
FINISH_S_MAX = 300.0
"""How long the last of them may take: a server that did not receive the others reads them all to compute the hash."""
_JSON = "application/json"

_decode_upload = msgspec.json.Decoder(UploadView).decode
_decode_claimed = msgspec.msgpack.Decoder(ClaimedTaskList).decode
_decode_task = msgspec.msgpack.Decoder(tasks.TaskView).decode
_decode_verdicts = msgspec.msgpack.Decoder(ItemVerdicts).decode


class HttpBackend:
    """One server, as the tenant of the token."""

    def __init__(self, http: HttpClient, client_options: ClientOptions | None = None) -> None:
        self.http = http
        self.client_options = client_options
        self._encoder = TaskEncoder()

    def prepare_enqueue(self, new_tasks: Sequence[NewTask]) -> Send:
        validation.batch([task.payload for task in new_tasks], "tasks", "payload")
        parent, state = _common_trace(new_tasks)
        encoded_tasks = self._encoder.encode(new_tasks, trace_of_call=parent)
        return partial(self._enqueue, encoded_tasks, header_lines(parent, state))

    async def _enqueue(
        self, encoded_tasks: EncodedTasks, headers: str, *, retry: bool = True
    ) -> Sequence[Task | CodeqError]:
        body, sent, refusals = encoded_tasks
        answers: Sequence[Task | CodeqError] = []
        if sent == 1:
            answers = await self._enqueue_one(body, headers, retry=retry)
        elif sent:
            response = await self.http.send("POST", paths.TASKS_BATCH, body, packed=True, headers=headers, retry=retry)
            answers = decoded(response, enqueue_results)
        if not refusals:
            return answers
        left = iter(answers)
        return [refusals.get(index) or next(left) for index in range(sent + len(refusals))]

    async def _enqueue_one(self, body: bytes, headers: str, *, retry: bool) -> list[Task | CodeqError]:
        try:
            response = await self.http.send("POST", paths.TASKS, body, packed=True, headers=headers, retry=retry)
        except (InvalidRequest, QuotaExceeded) as refusal:  # every other error is about the call, not about the task
            return [refusal]
        task = decoded(response, lambda body: _task_of(_decode_task(body)))
        if b"idempotent-replay" in response.headers:
            return [replayed(task, is_mismatch=b"idempotent-mismatch" in response.headers)]
        return [task]

    async def claim(self, wanted: Claim) -> list[Job]:
        request = tasks.ClaimBatch(
            commands=list(wanted.commands) if wanted.commands else None,
            lease_seconds=(wanted.lease_ms or 0) / 1000,
            wait_seconds=wanted.wait_ms / 1000,
            count=wanted.limit,
            request_id=wanted.request_id or new_request_id(),
            worker=None if wanted.info is None else worker_fields(wanted.info),
        )
        body = encoded(pack, request)
        response = await self.http.send("POST", paths.CLAIM_BATCH, body, packed=True, wait_ms=wanted.wait_ms)
        return [] if response.status == 204 else decoded(response, _jobs)

    async def heartbeat(self, job: Job, extend_ms: int | None, progress: str | None = None) -> int:
        extend_s = (extend_ms or 0) / 1000
        request = tasks.Heartbeat(lease_token=job.holder.token, extend_seconds=extend_s, progress=progress)
        answer = await self.http.call("POST", paths.HEARTBEAT, request, tasks.HeartbeatAnswer, id=job.id)
        return to_domain.moment_ms(answer.lease_until)

    async def heartbeat_many(self, beats: Sequence[LeaseExtension]) -> list[int | CodeqError]:
        if not beats:
            return []
        request = tasks.HeartbeatBatch(
            heartbeats=[
                tasks.HeartbeatOf(
                    task_id=beat.task_id,
                    lease_token=beat.holder.token,
                    extend_seconds=(beat.extend_ms or 0) / 1000,
                    progress=beat.progress,
                )
                for beat in beats
            ]
        )
        answer = await self.http.call("POST", paths.HEARTBEATS_BATCH, request, tasks.HeartbeatResults)
        return [
            error_of(one.code, one.error or "") if one.code else to_domain.moment_ms(one.lease_until or "")
            for one in answer.results
        ]

    async def watch_leases(self, jobs: Sequence[Job], wait_ms: int) -> list[tuple[str, str]]:
        leases = [tasks.WatchedLease(task_id=job.id, lease_token=job.holder.token) for job in jobs]
        request = tasks.WatchLeases(leases=leases, wait_seconds=wait_ms / 1000)
        answer = await self.http.call("POST", paths.LEASES_WATCH, request, tasks.LeaseEnds, wait_ms=wait_ms)
        return [(end.task_id, end.code) for end in answer.ended]

    async def submit(self, outcomes: Sequence[Outcome]) -> list[CodeqError | None]:
        request = [
            tasks.PackedSubmitOf(
                task_id=outcome.task_id,
                lease_token=outcome.holder.token,
                status=outcome.status.value,
                result=outcome.result,
                error=outcome.error,
                artifacts=[SubmittedArtifact(name=each.name, sha256=each.sha256) for each in outcome.artifacts] or None,
            )
            for outcome in outcomes
        ]
        if not request:
            return []
        validation.batch([outcome.result or b"" for outcome in outcomes], "results", "results")
        response = await self.http.send("POST", paths.RESULTS_BATCH, encoded(pack, {"results": request}), packed=True)
        return decoded(response, _refusals)

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> ReleaseResult:
        delay_s = None if delay_ms is None else delay_ms / 1000
        request = tasks.Nack(lease_token=job.holder.token, delay_seconds=delay_s, reason=reason, dead=dead)
        return _released(await self.http.call("POST", paths.NACK, request, tasks.GiveBackAnswer, id=job.id))

    async def abandon(self, job: Job, delay_ms: int = 0) -> ReleaseResult:
        request = tasks.Abandon(lease_token=job.holder.token, delay_seconds=delay_ms / 1000)
        return _released(await self.http.call("POST", paths.ABANDON, request, tasks.GiveBackAnswer, id=job.id))

    async def cancel(self, task_id: str) -> Task:
        return _task_of(await self.http.call("POST", paths.CANCEL, None, tasks.TaskView, id=task_id))

    async def replay(self, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        return await self._move_dead(paths.DLQ_REPLAY, selection, limit=limit, dry_run=dry_run)

    async def purge(self, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        return await self._move_dead(paths.DLQ_PURGE, selection, limit=limit, dry_run=dry_run)

    async def cleanup(self, before_ms: int | None, limit: int) -> int:
        request = queues.Cleanup(limit=limit, before=times.text(before_ms) if before_ms is not None else None)
        return (await self.http.call("POST", paths.CLEANUP, request, queues.Cleaned)).deleted

    async def backup(self, name: str) -> system.Backup:
        return await self.http.call(
            "POST", paths.BACKUP, system.BackUp(name=name), system.Backup, wait_ms=BACKUP_MS_MAX
        )

    async def get(self, task_id: str, wait_ms: int) -> tuple[Task, str, bytes | None]:
        if wait_ms:
            # The wire counts whole seconds. A wait that ends early is repeated by the caller.
            query = {"waitSeconds": max(1, wait_ms // 1000)}
            try:
                return await self._result(task_id, query, wait_ms)
            except NotFound:  # it has not ended, or there is no such task
                pass
        view = await self.http.call("GET", paths.TASK, None, tasks.TaskView, id=task_id)
        if _task_of(view).status.is_final:
            return await self._result(task_id, {}, 0)
        return _task_of(view), view.payload, None

    async def history(self, task_id: str) -> list[Event]:
        return (await self.http.call("GET", paths.HISTORY, None, History, id=task_id)).events

    async def find(self, wanted: Filter, cursor: str | None, limit: int) -> Page:
        filters = {
            "command": wanted.command,
            "status": wanted.status,
            "queue": wanted.index,
            "error": wanted.error,
            "cursor": cursor,
            "limit": limit,
        }
        query = {name: value for name, value in filters.items() if value is not None}
        page = await self.http.call("GET", paths.TASKS, None, tasks.TaskPage, query=query)
        return Page([_task_of(view) for view in page.tasks], page.cursor)

    async def queues(self) -> dict[str, QueueInfo]:
        found = await self.http.call("GET", paths.QUEUES, None, queues.QueueViews)
        return {
            view.command: QueueInfo(
                pending=view.ready,
                delayed=view.delayed,
                in_progress=view.in_progress,
                dead=view.dlq,
                oldest_seconds=view.oldest_age_seconds,
                paused=view.paused,
                workers=view.workers,
            )
            for view in found.queues
        }

    async def workers(self) -> list[WorkerStatus]:
        found = await self.http.call("GET", paths.WORKERS, None, WorkerViews)
        return [to_domain.worker_status(view) for view in found.workers]

    async def leave(self, worker: str, name: str) -> None:  # noqa: ARG002 - the token's subject decides
        await self.http.send("DELETE", path_of(paths.WORKER, {"name": name}))

    async def policy(self, command: str) -> QueuePolicy | None:
        try:
            return to_domain.topic_policy(await self.http.call("GET", paths.TOPIC, None, queues.Topic, topic=command))
        except NotFound:
            return None

    async def effective_policy(self, command: str) -> EffectivePolicy:
        found = await self.http.call("GET", paths.ADMIN_QUEUE, None, queues.QueueDetails, command=command)
        return to_domain.effective_of(found.effective_policy)

    async def set_policy(
        self, command: str, policy: QueuePolicy | None, if_match: str | None = None
    ) -> QueuePolicy | None:
        target = path_of(paths.TOPIC, {"topic": command})
        headers = _if_match_line(if_match)
        if policy is None:
            await self.http.send("DELETE", target, headers=headers)
            return None
        validation.policy(policy, command)
        body = encoded(msgspec.json.encode, queues.PutTopic(policy=queues.policy_fields(policy)))
        response = await self.http.send("PUT", target, body, headers=headers)
        return to_domain.topic_policy(decoded(response, lambda body: msgspec.json.decode(body, type=queues.Topic)))

    async def set_paused(self, command: str, paused: bool) -> None:
        await self.http.call("POST", paths.PAUSE if paused else paths.RESUME, None, queues.QueueView, command=command)

    async def events(self, shard: int, offset: int, limit: int, wait_ms: int) -> EventPage:
        query = {"shard": shard, "offset": offset, "limit": limit, "waitSeconds": -(-wait_ms // 1000)}
        return await self.http.call("GET", paths.EVENTS, None, EventPage, query=query, wait_ms=wait_ms)

    async def put_artifact_part(self, job: Job, part: ArtifactPart) -> Artifact | None:
        target = _artifact_path(job.id, part.name) + _lease_query(job)
        headers = f"upload-offset: {part.offset}\r\nupload-length: {part.length}\r\n"
        headers += f"upload-complete: {'?1' if part.is_last else '?0'}\r\n"
        response = await self.http.send(
            "PUT",
            target,
            part.content,
            headers=headers,
            media=part.content_type,
            accept=_JSON,
            transfer_s=FINISH_S_MAX if part.is_last else PART_S_MAX,
        )
        return _uploaded(decoded(response, _decode_upload))

    async def artifact_upload(self, job: Job, name: str) -> tuple[int, Artifact | None]:
        try:
            response = await self.http.send("GET", _artifact_path(job.id, name) + _lease_query(job))
        except NotFound:
            return 0, None
        view = decoded(response, _decode_upload)
        return view.offset, _uploaded(view)

    async def artifacts(self, task_id: str) -> list[Artifact]:
        found = await self.http.call("GET", paths.ARTIFACTS, None, ArtifactViews, id=task_id)
        return [artifact_of(view) for view in found.artifacts]

    async def read_artifact(self, task_id: str, artifact: Artifact, start: int, end: int) -> bytes:
        headers = f'range: bytes={start}-{end - 1}\r\nif-range: "{artifact.sha256}"\r\n'
        target = _artifact_path(task_id, artifact.name)
        response = await self.http.send("GET", target, headers=headers, accept="*/*", transfer_s=PART_S_MAX)
        if response.status != 206 or len(response.body) != end - start:
            raise error_of("unreadable", f"the server sent {len(response.body)} bytes, not {end - start}")
        return response.body

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await self.http.run(function, *args)

    async def sleep(self, seconds: float) -> None:
        await self.http.sleep(seconds)

    async def close(self) -> None:
        await self.http.close()

    async def _result(self, task_id: str, query: dict[str, Any], wait_ms: int) -> tuple[Task, str, bytes | None]:
        found = await self.http.call(
            "GET", paths.RESULT, None, TaskAndRawResult, query=query, wait_ms=wait_ms, id=task_id
        )
        return _task_of(found.task), found.task.payload, bytes(found.result.result) or None

    async def _move_dead(self, path: str, selection: Selection, *, limit: int, dry_run: bool) -> BulkResult:
        if isinstance(selection, Filter):
            command, error = selection.command, selection.error
            is_all = command is None and error is None
            request = queues.Selection(command=command, error=error, all=is_all, limit=limit, dry_run=dry_run)
        else:
            request = queues.Selection(ids=list(selection), limit=limit, dry_run=dry_run)
        done = await self.http.call("POST", path, request, queues.Selected)
        return BulkResult(done.matched, done.changed, done.ids, done.refused)


def _common_trace(new_tasks: Sequence[NewTask]) -> tuple[str | None, str | None]:
    """The trace that all of them share, which is sent once with the call; else none, and each task carries its own."""
    if {task.trace_parent for task in new_tasks} == {None}:  # as in most programs, and found out at half the cost
        return NO_TRACE
    traces = {(task.trace_parent, task.trace_state) for task in new_tasks}
    return traces.pop() if len(traces) == 1 else NO_TRACE


def _task_of(view: tasks.TaskView) -> Task:
    try:
        return to_domain.task_of(view)
    except ValueError as fault:
        raise error_of("unreadable", f"the server's answer cannot be read: {fault}") from None


def _jobs(body: bytes) -> list[Job]:
    return [
        Job(task.id, task.command, task.payload.encode(), Holder(task.worker_id, task.lease_token), task.priority,
            task.attempts, task.max_attempts, task.deliveries, to_domain.moment_ms(task.lease_until),
            task.trace_parent, task.trace_state)
        for task in _decode_claimed(body).tasks
    ]  # fmt: skip


def _refusals(body: bytes) -> list[CodeqError | None]:
    return [error_of(one.code, one.error or "") if one.code else None for one in _decode_verdicts(body).results]


def _released(answer: tasks.GiveBackAnswer) -> ReleaseResult:
    return ReleaseResult(answer.status == "dlq", answer.delay_seconds or 0.0)


def _if_match_line(if_match: str | None) -> str:
    if if_match is None:
        return ""
    if if_match == "0":
        return "if-none-match: *\r\n"
    return "if-match: *\r\n" if if_match == "*" else f'if-match: "{if_match}"\r\n'


def _artifact_path(task_id: str, name: str) -> str:
    return path_of(paths.ARTIFACT, {"id": task_id, "name": name})


def _lease_query(job: Job) -> str:
    return "" if job.holder.token is None else f"?leaseToken={job.holder.token}"


def _uploaded(view: UploadView) -> Artifact | None:
    if not view.complete:
        return None
    return Artifact(view.name, view.content_type or OCTET_STREAM, view.offset, view.sha256 or "")
