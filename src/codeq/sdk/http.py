"""The verbs over HTTP. What may be repeated is repeated: a lost connection is not the caller's problem."""

import os
import random
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.domain.queue import Index, QueuePolicy
from codeq.domain.requests import Claim, Filter, NewTask, Outcome, Page, Swept
from codeq.domain.task import Holder, Task
from codeq.sdk.jobs import GivenBack, Job, QueueInfo
from codeq.sdk.tracing import current_context
from codeq.sdk.transport import Address, Answer, Transport
from codeq.wire import paths, queues, reading, tasks, times
from codeq.wire.errors import Unreachable, error_of
from codeq.wire.events import Event, EventPage, History

Token = str | Callable[[], str]
Message = TypeVar("Message")

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
RETRIED = frozenset({429, 502, 503, 504})
_TEXT, _PACKED = "application/json", "application/msgpack"


class Held(tasks.Wire, frozen=True, kw_only=True, gc=False):
    """What a worker needs of a claimed task; the rest of the answer is passed over."""

    id: str
    command: str
    payload: str
    priority: int
    attempts: int
    max_attempts: int
    deliveries: int
    worker_id: str = ""
    lease_until: str | None = None
    lease_token: int | None = None
    trace_parent: str | None = None
    trace_state: str | None = None


class HeldTasks(tasks.Wire, frozen=True, kw_only=True, gc=False):
    tasks: list[Held]


class Verdict(tasks.Wire, frozen=True, kw_only=True, gc=False):
    """What became of one result; that it was accepted is all there is to know if it was."""

    error: str | None = None
    code: str | None = None


class Verdicts(tasks.Wire, frozen=True, kw_only=True, gc=False):
    results: list[Verdict]


class Left(tasks.Wire, frozen=True, kw_only=True, gc=False):
    """What a worker left behind; absent where it left nothing."""

    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class TaskAndLeft(tasks.Wire, frozen=True, kw_only=True, gc=False):
    task: tasks.TaskView
    result: Left


_pack = msgspec.msgpack.Encoder().encode
_held = msgspec.msgpack.Decoder(HeldTasks).decode
_taken = msgspec.msgpack.Decoder(tasks.TaskAnswers).decode
_verdicts = msgspec.msgpack.Decoder(Verdicts).decode


class HttpBackend:
    """One server, as one tenant: the one the token is for."""

    def __init__(self, transport: Transport, address: Address, token: Token, *, timeout_s: float, retry_s: float):
        self._transport = transport
        self._address = address
        self._token = token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._key_prefix = os.urandom(9).hex()
        self._numbers = count(1)
        self._head = ""
        self._authorize()

    async def enqueue(self, orders: Sequence[NewTask]) -> list[Task | CodeqError]:
        wanted = [self._new_task(order) for order in orders]
        context = current_context()
        if len(wanted) == 1:
            try:
                answer = await self._ask("POST", paths.TASKS, _pack(wanted[0]), packed=True, headers=context)
            except CodeqError as refusal:
                if isinstance(refusal, Unreachable):
                    raise
                return [refusal]
            return [reading.task_of(msgspec.msgpack.decode(answer.body, type=tasks.TaskView))]
        answer = await self._ask("POST", paths.TASKS_BATCH, _pack({"tasks": wanted}), packed=True, headers=context)
        return [_taken_or_not(item) for item in _taken(answer.body).results]

    async def claim(self, wanted: Claim) -> list[Job]:
        asked = tasks.ClaimBatch(
            commands=list(wanted.commands) if wanted.commands else None,
            lease_seconds=(wanted.lease_ms or 0) / 1000,
            wait_seconds=wanted.wait_ms / 1000,
            count=wanted.limit,
        )
        answer = await self._ask("POST", paths.CLAIM_BATCH, _pack(asked), packed=True, wait_ms=wanted.wait_ms)
        if answer.status == 204:
            return []
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
                reading.moment_ms(held.lease_until),
                held.trace_parent,
                held.trace_state,
            )
            for held in _held(answer.body).tasks
        ]

    async def heartbeat(self, job: Job, extend_ms: int | None, progress: str | None = None) -> int:
        extend_s = (extend_ms or 0) / 1000
        asked = tasks.Heartbeat(lease_token=job.holder.token, extend_seconds=extend_s, progress=progress)
        answer = await self._call("POST", paths.HEARTBEAT, asked, tasks.HeartbeatAnswer, id=job.id)
        return reading.moment_ms(answer.lease_until)

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
        answer = await self._ask("POST", paths.RESULTS_BATCH, _pack({"results": asked}), packed=True)
        return [
            error_of(verdict.code, verdict.error or "") if verdict.code else None
            for verdict in _verdicts(answer.body).results
        ]

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> GivenBack:
        delay_s = None if delay_ms is None else delay_ms / 1000
        asked = tasks.Nack(lease_token=job.holder.token, delay_seconds=delay_s, reason=reason, dead=dead)
        return _given_back(await self._call("POST", paths.NACK, asked, tasks.GiveBackAnswer, id=job.id))

    async def abandon(self, job: Job) -> GivenBack:
        asked = tasks.LeaseCall(lease_token=job.holder.token)
        return _given_back(await self._call("POST", paths.ABANDON, asked, tasks.GiveBackAnswer, id=job.id))

    async def cancel(self, task_id: str) -> Task:
        return reading.task_of(await self._call("POST", paths.CANCEL, None, tasks.TaskView, id=task_id))

    async def replay(self, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> Swept:
        return await self._sweep(paths.DLQ_REPLAY, ids, wanted, limit=limit, dry_run=dry_run)

    async def purge(self, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> Swept:
        return await self._sweep(paths.DLQ_PURGE, ids, wanted, limit=limit, dry_run=dry_run)

    async def cleanup(self, before_ms: int | None, limit: int) -> int:
        asked = queues.Cleanup(limit=limit, before=times.text(before_ms) if before_ms is not None else None)
        return (await self._call("POST", paths.CLEANUP, asked, queues.Cleaned)).deleted

    async def get(self, task_id: str, wait_ms: int) -> tuple[Task, str, bytes | None]:
        if wait_ms:
            # The wire counts whole seconds. A wait that ends early is asked again by who still has time.
            query = {"waitSeconds": max(1, wait_ms // 1000)}
            try:
                return await self._result(task_id, query, wait_ms)
            except NotFound:  # it has not ended, or there is no such task
                pass
        view = await self._call("GET", paths.TASK, None, tasks.TaskView, id=task_id)
        if reading.task_of(view).status.is_final:
            return await self._result(task_id, {}, 0)
        return reading.task_of(view), view.payload, None

    async def history(self, task_id: str) -> list[Event]:
        return (await self._call("GET", paths.HISTORY, None, History, id=task_id)).events

    async def find(self, wanted: Filter, cursor: str | None, limit: int) -> Page:
        given = {
            "command": wanted.command,
            "status": wanted.status,
            "error": wanted.error,
            "cursor": cursor,
            "limit": limit,
        }
        path = paths.TASKS
        if wanted.index is Index.DEAD and wanted.status is None:
            path = paths.DLQ  # an admin's way, oldest death first, as in the store itself
        elif wanted.index is not None:
            given["queue"] = wanted.index
        query = {name: value for name, value in given.items() if value is not None}
        page = await self._call("GET", path, None, tasks.TaskPage, query=query)
        return Page([reading.task_of(view) for view in page.tasks], page.cursor)

    async def queues(self) -> dict[str, QueueInfo]:
        found = await self._call("GET", paths.QUEUES, None, queues.QueueViews)
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
            return reading.policy_of((await self._call("GET", paths.TOPIC, None, queues.Topic, topic=command)).policy)
        except NotFound:
            return None

    async def set_policy(self, command: str, policy: QueuePolicy | None) -> None:
        if policy is None:
            await self._ask("DELETE", _fill(paths.TOPIC, {"topic": command}))
            return
        asked = queues.PutTopic(policy=queues.policy_fields(policy))
        await self._call("PUT", paths.TOPIC, asked, queues.Topic, topic=command)

    async def set_paused(self, command: str, paused: bool) -> None:
        await self._call("POST", paths.PAUSE if paused else paths.RESUME, None, queues.QueueView, command=command)

    async def events(self, shard: int, offset: int, limit: int, wait_ms: int) -> EventPage:
        query = {"shard": shard, "offset": offset, "limit": limit, "waitSeconds": wait_ms // 1000}
        return await self._call("GET", paths.EVENTS, None, EventPage, query=query, wait_ms=wait_ms)

    async def sleep(self, seconds: float) -> None:
        await self._transport.sleep(seconds)

    async def close(self) -> None:
        await self._transport.close()

    def _new_task(self, order: NewTask) -> tasks.PackedTask:
        backoff = order.backoff
        return tasks.PackedTask(
            command=order.command,
            payload=order.payload,
            priority=order.priority,
            webhook=order.webhook,
            max_attempts=order.max_attempts or 0,
            # Every order has a key, so that it can be sent again when the answer was lost.
            idempotency_key=order.idempotency_key or f"{self._key_prefix}-{next(self._numbers)}",
            run_at=times.text(order.run_at_ms) if order.run_at_ms is not None else None,
            delay_seconds=order.delay_ms / 1000,
            backoff=None
            if backoff is None
            else tasks.Backoff(
                policy=backoff.kind.value, base_seconds=backoff.base_ms / 1000, max_seconds=backoff.max_ms / 1000
            ),
        )

    async def _result(self, task_id: str, query: dict[str, Any], wait_ms: int) -> tuple[Task, str, bytes | None]:
        found = await self._call("GET", paths.RESULT, None, TaskAndLeft, query=query, wait_ms=wait_ms, id=task_id)
        return reading.task_of(found.task), found.task.payload, bytes(found.result.result) or None

    async def _sweep(self, path: str, ids: Sequence[str] | None, wanted: Filter, *, limit: int, dry_run: bool) -> Swept:
        asked = queues.Selection(
            ids=list(ids) if ids is not None else None,
            command=wanted.command,
            error=wanted.error,
            all=ids is None and wanted.command is None and wanted.error is None,
            limit=limit,
            dry_run=dry_run,
        )
        done = await self._call("POST", path, asked, queues.Selected)
        return Swept(done.matched, done.changed, done.ids, done.refused)

    async def _call(
        self,
        method: str,
        path: str,
        asked: Any,
        answer: type[Message],
        *,
        query: dict[str, Any] | None = None,
        wait_ms: int = 0,
        **names: str,
    ) -> Message:
        target = _fill(path, names) + (f"?{urlencode(query)}" if query else "")
        body = msgspec.json.encode(asked) if asked is not None else b""
        found = await self._ask(method, target, body, wait_ms=wait_ms)
        try:
            return msgspec.json.decode(found.body, type=answer)
        except msgspec.DecodeError as fault:
            raise error_of("unreadable", f"the answer to {method} {target} cannot be read: {fault}") from None

    async def _ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        packed: bool = False,
        headers: str = "",
        wait_ms: int = 0,
        accept: str = "",
    ) -> Answer:
        """The answer, if it is a good one; else the error it stands for. Tries again while that may help.

        `accept` is the media type of the answer, where it is not that of the body.
        """
        kind = _PACKED if packed else _TEXT
        timeout_s = self._timeout_s + wait_ms / 1000
        deadline_s = monotonic() + self._retry_s
        pause_s = RETRY_FIRST_S
        has_new_token = False
        while True:
            head = (
                f"{method} {self._address.prefix}{target} HTTP/1.1\r\n{self._head}accept: {accept or kind}\r\n"
                f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
            )
            least_s = 0.0
            try:
                answer = await self._transport.exchange(head.encode("latin-1") + body, timeout_s)
                if answer.status < 300:
                    return answer
                fault = _fault(answer)
                if answer.status == 401 and callable(self._token) and not has_new_token:
                    has_new_token = True
                    self._authorize()
                    continue
                if answer.status not in RETRIED:
                    raise fault
                given = answer.headers.get(b"retry-after", b"0")
                least_s = min(float(given), RETRY_MAX_S * 5) if given.isdigit() else 0.0
            except Unreachable as broken:
                fault = broken
            wait_s = least_s + random.uniform(0, pause_s)
            if monotonic() + wait_s > deadline_s:
                raise fault
            await self._transport.sleep(wait_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _authorize(self) -> None:
        token = self._token() if callable(self._token) else self._token
        if not token.isascii() or not token.isprintable():
            raise InvalidRequest("a token is one line of ASCII text")
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        self._head = f"host: {host}:{self._address.port}\r\nauthorization: Bearer {token}\r\n"


def _fill(path: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        if not value or value in (".", ".."):
            raise InvalidRequest(f"{name} must not be {value!r}")
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return path


def _fault(answer: Answer) -> CodeqError:
    try:
        packed = b"msgpack" in answer.headers.get(b"content-type", b"")
        decode = msgspec.msgpack.decode if packed else msgspec.json.decode
        problem = decode(answer.body, type=queues.Problem)
    except msgspec.DecodeError:
        said = answer.body[:200].decode("utf-8", "replace")
        return error_of(f"http-{answer.status}", f"the server answered {answer.status}: {said}")
    return error_of(problem.code, problem.error)


def _taken_or_not(item: tasks.TaskAnswer) -> Task | CodeqError:
    if item.task is not None:
        return reading.task_of(item.task)
    return error_of(item.code or "", item.error or "")


def _given_back(answer: tasks.GiveBackAnswer) -> GivenBack:
    return GivenBack(answer.status == "dlq", answer.delay_seconds or 0)
