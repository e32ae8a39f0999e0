"""The verbs over HTTP. What may be repeated is repeated: a lost connection is not the caller's problem."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.domain.queue import QueuePolicy
from codeq.domain.requests import BulkResult, Claim, Filter, NewTask, Outcome, Page
from codeq.domain.task import Holder, Task
from codeq.sdk.encoding import Packed, TaskEncoder, pack, written
from codeq.sdk.enqueue_results import enqueue_results
from codeq.sdk.http_client import HttpClient, decoded, encoded, path_of
from codeq.sdk.jobs import Job, QueueInfo, ReleaseResult
from codeq.sdk.tracing import NO_TRACE, header_lines
from codeq.wire import paths, queues, tasks, times, to_domain
from codeq.wire.client import ClaimedTaskList, SubmitVerdicts, TaskAndRawResult
from codeq.wire.errors import error_of
from codeq.wire.events import Event, EventPage, History

_held = msgspec.msgpack.Decoder(ClaimedTaskList).decode
_task = msgspec.msgpack.Decoder(tasks.TaskView).decode
_verdicts = msgspec.msgpack.Decoder(SubmitVerdicts).decode


class HttpBackend:
    """One server, as one tenant: the one the token is for."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http
        self._encoder = TaskEncoder()

    def prepare_enqueue(
        self, orders: Sequence[NewTask]
    ) -> Callable[[], Coroutine[Any, Any, Sequence[Task | CodeqError]]]:
        _check_batch([order.payload for order in orders], "tasks")
        parent, state = _trace_of(orders)
        packed, body = written(self._encoder.pack(orders, trace_of_call=parent))
        return lambda: self._enqueue(packed, body, header_lines(parent, state))

    async def _enqueue(self, packed: Sequence[Packed], body: bytes, headers: str) -> Sequence[Task | CodeqError]:
        answers: Sequence[Task | CodeqError] = []
        sent = sum(isinstance(order, tasks.PackedTask) for order in packed)
        if sent == 1:
            answers = await self._enqueue_one(body, headers)
        elif sent:
            answer = await self.http.send("POST", paths.TASKS_BATCH, body, packed=True, headers=headers)
            answers = decoded(answer, enqueue_results)
        if sent == len(packed):
            return answers
        left = iter(answers)
        return [next(left) if isinstance(order, tasks.PackedTask) else order for order in packed]

    async def _enqueue_one(self, body: bytes, headers: str) -> list[Task | CodeqError]:
        try:
            answer = await self.http.send("POST", paths.TASKS, body, packed=True, headers=headers)
        except InvalidRequest as refusal:  # what else goes wrong is not about the order
            return [refusal]
        return [decoded(answer, lambda body: _task_of(_task(body)))]

    async def claim(self, wanted: Claim) -> list[Job]:
        asked = tasks.ClaimBatch(
            commands=list(wanted.commands) if wanted.commands else None,
            lease_seconds=(wanted.lease_ms or 0) / 1000,
            wait_seconds=wanted.wait_ms / 1000,
            count=wanted.limit,
        )
        answer = await self.http.send(
            "POST", paths.CLAIM_BATCH, encoded(pack, asked), packed=True, wait_ms=wanted.wait_ms
        )
        return [] if answer.status == 204 else decoded(answer, _jobs)

    async def heartbeat(self, job: Job, extend_ms: int | None, progress: str | None = None) -> int:
        extend_s = (extend_ms or 0) / 1000
        asked = tasks.Heartbeat(lease_token=job.holder.token, extend_seconds=extend_s, progress=progress)
        answer = await self.http.call("POST", paths.HEARTBEAT, asked, tasks.HeartbeatAnswer, id=job.id)
        return to_domain.moment_ms(answer.lease_until)

    async def submit(self, outcomes: Sequence[Outcome]) -> list[CodeqError | None]:
        asked = [
            tasks.PackedSubmitOf(
                task_id=outcome.task_id,
                lease_token=outcome.holder.token,
                status=outcome.status.value,
                result=outcome.result,
                error=outcome.error,
            )
            for outcome in outcomes
        ]
        if not asked:
            return []
        _check_batch([outcome.result or b"" for outcome in outcomes], "results")
        answer = await self.http.send("POST", paths.RESULTS_BATCH, encoded(pack, {"results": asked}), packed=True)
        return decoded(answer, _faults)

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> ReleaseResult:
        delay_s = None if delay_ms is None else delay_ms / 1000
        asked = tasks.Nack(lease_token=job.holder.token, delay_seconds=delay_s, reason=reason, dead=dead)
        return _given_back(await self.http.call("POST", paths.NACK, asked, tasks.GiveBackAnswer, id=job.id))

    async def abandon(self, job: Job) -> ReleaseResult:
        asked = tasks.LeaseCall(lease_token=job.holder.token)
        return _given_back(await self.http.call("POST", paths.ABANDON, asked, tasks.GiveBackAnswer, id=job.id))

    async def cancel(self, task_id: str) -> Task:
        return _task_of(await self.http.call("POST", paths.CANCEL, None, tasks.TaskView, id=task_id))

    async def replay(self, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> BulkResult:
        return await self._sweep(paths.DLQ_REPLAY, ids, wanted, limit=limit, dry_run=dry_run)

    async def purge(self, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> BulkResult:
        return await self._sweep(paths.DLQ_PURGE, ids, wanted, limit=limit, dry_run=dry_run)

    async def cleanup(self, before_ms: int | None, limit: int) -> int:
        asked = queues.Cleanup(limit=limit, before=times.text(before_ms) if before_ms is not None else None)
        return (await self.http.call("POST", paths.CLEANUP, asked, queues.Cleaned)).deleted

    async def get(self, task_id: str, wait_ms: int) -> tuple[Task, str, bytes | None]:
        if wait_ms:
            # The wire counts whole seconds. A wait that ends early is asked again by who still has time.
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
        given = {
            "command": wanted.command,
            "status": wanted.status,
            "queue": wanted.index,
            "error": wanted.error,
            "cursor": cursor,
            "limit": limit,
        }
        query = {name: value for name, value in given.items() if value is not None}
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
            )
            for view in found.queues
        }

    async def policy(self, command: str) -> QueuePolicy | None:
        try:
            return to_domain.topic_policy(await self.http.call("GET", paths.TOPIC, None, queues.Topic, topic=command))
        except NotFound:
            return None

    async def set_policy(self, command: str, policy: QueuePolicy | None) -> None:
        if policy is None:
            await self.http.send("DELETE", path_of(paths.TOPIC, {"topic": command}))
            return
        asked = queues.PutTopic(policy=queues.policy_fields(policy))
        await self.http.call("PUT", paths.TOPIC, asked, queues.Topic, topic=command)

    async def set_paused(self, command: str, paused: bool) -> None:
        await self.http.call("POST", paths.PAUSE if paused else paths.RESUME, None, queues.QueueView, command=command)

    async def events(self, shard: int, offset: int, limit: int, wait_ms: int) -> EventPage:
        query = {"shard": shard, "offset": offset, "limit": limit, "waitSeconds": -(-wait_ms // 1000)}
        return await self.http.call("GET", paths.EVENTS, None, EventPage, query=query, wait_ms=wait_ms)

    async def sleep(self, seconds: float) -> None:
        await self.http.sleep(seconds)

    async def close(self) -> None:
        await self.http.close()

    async def _result(self, task_id: str, query: dict[str, Any], wait_ms: int) -> tuple[Task, str, bytes | None]:
        found = await self.http.call(
            "GET", paths.RESULT, None, TaskAndRawResult, query=query, wait_ms=wait_ms, id=task_id
        )
        return _task_of(found.task), found.task.payload, bytes(found.result.result) or None

    async def _sweep(
        self, path: str, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool
    ) -> BulkResult:
        asked = queues.Selection(
            ids=list(ids) if ids is not None else None,
            command=wanted.command,
            error=wanted.error,
            all=ids is None and wanted.command is None and wanted.error is None,
            limit=limit,
            dry_run=dry_run,
        )
        done = await self.http.call("POST", path, asked, queues.Selected)
        return BulkResult(done.matched, done.changed, done.ids, done.refused)


def _check_batch(bodies: list[bytes], what: str) -> None:
    """A server does not read a body far past its limit: it hangs up, and the client cannot tell why."""
    if len(bodies) > BATCH_TASKS_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_TASKS_MAX} {what}, not {len(bodies)}")
    size = sum([len(body) for body in bodies])
    if size > BATCH_BYTES_MAX:
        raise InvalidRequest(f"a batch has at most {BATCH_BYTES_MAX} bytes of {what}, not {size}")


def _trace_of(orders: Sequence[NewTask]) -> tuple[str | None, str | None]:
    """The trace that all of them share, which can go with the call itself; else none, and each names its own."""
    traces = {(order.trace_parent, order.trace_state) for order in orders}
    return traces.pop() if len(traces) == 1 else NO_TRACE


def _task_of(view: tasks.TaskView) -> Task:
    try:
        return to_domain.task_of(view)
    except ValueError as fault:
        raise error_of("unreadable", f"the server's answer cannot be read: {fault}") from None


def _jobs(body: bytes) -> list[Job]:
    return [
        Job(
            held.id,
            held.command,
            held.payload.encode(),
            Holder(held.worker_id, held.lease_token),
            held.priority,
            held.attempts,
            held.max_attempts,
            held.deliveries,
            to_domain.moment_ms(held.lease_until),
            held.trace_parent,
            held.trace_state,
        )
        for held in _held(body).tasks
    ]


def _faults(body: bytes) -> list[CodeqError | None]:
    return [error_of(one.code, one.error or "") if one.code else None for one in _verdicts(body).results]


def _given_back(answer: tasks.GiveBackAnswer) -> ReleaseResult:
    return ReleaseResult(answer.status == "dlq", answer.delay_seconds or 0.0)
