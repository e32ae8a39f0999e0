"""The verbs over HTTP. What may be repeated is repeated: a lost connection is not the caller's problem."""

import random
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest, NotFound
from codeq.domain.limits import BATCH_BYTES_MAX, BATCH_TASKS_MAX
from codeq.domain.queue import QueuePolicy
from codeq.domain.requests import Claim, Filter, NewTask, Outcome, Page, Swept
from codeq.domain.task import Holder, Task
from codeq.sdk.jobs import GivenBack, Job, QueueInfo
from codeq.sdk.packing import HeldTasks, OrderPacker, Packed, TaskAndLeft, Verdicts, pack, written
from codeq.sdk.taken import taken, unreadable
from codeq.sdk.tracing import NO_TRACE, header_lines
from codeq.sdk.transport import Address, Answer, Transport, Untrusted
from codeq.wire import paths, queues, reading, tasks, times
from codeq.wire.errors import RateLimited, Unreachable, error_of
from codeq.wire.events import Event, EventPage, History

Token = str | Callable[[], str]
Message = TypeVar("Message")

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
RETRIED = frozenset({408, 429, 502, 503, 504})
_TEXT, _PACKED = "application/json", "application/msgpack"


_json = msgspec.json.decode
_held = msgspec.msgpack.Decoder(HeldTasks).decode
_task = msgspec.msgpack.Decoder(tasks.TaskView).decode
_verdicts = msgspec.msgpack.Decoder(Verdicts).decode


class HttpBackend:
    """One server, as one tenant: the one the token is for."""

    def __init__(self, transport: Transport, address: Address, token: Token, *, timeout_s: float, retry_s: float):
        self._transport = transport
        self._address = address
        self._token = token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._packer = OrderPacker()
        self._head = ""
        self._authorize()

    def enqueuing(self, orders: Sequence[NewTask]) -> Callable[[], Coroutine[Any, Any, Sequence[Task | CodeqError]]]:
        _check_batch([order.payload for order in orders], "tasks")
        parent, state = _trace_of(orders)
        packed, body = written(self._packer.pack(orders, trace_of_call=parent))
        return lambda: self._enqueue(packed, body, header_lines(parent, state))

    async def _enqueue(self, packed: Sequence[Packed], body: bytes, headers: str) -> Sequence[Task | CodeqError]:
        answers: Sequence[Task | CodeqError] = []
        sent = sum(isinstance(order, tasks.PackedTask) for order in packed)
        if sent == 1:
            answers = await self._enqueue_one(body, headers)
        elif sent:
            answer = await self._ask("POST", paths.TASKS_BATCH, body, packed=True, headers=headers)
            answers = _understood(answer, taken)
        if sent == len(packed):
            return answers
        left = iter(answers)
        return [next(left) if isinstance(order, tasks.PackedTask) else order for order in packed]

    async def _enqueue_one(self, body: bytes, headers: str) -> list[Task | CodeqError]:
        try:
            answer = await self._ask("POST", paths.TASKS, body, packed=True, headers=headers)
        except InvalidRequest as refusal:  # what else goes wrong is not about the order
            return [refusal]
        return [_understood(answer, lambda body: _task_of(_task(body)))]

    async def claim(self, wanted: Claim) -> list[Job]:
        asked = tasks.ClaimBatch(
            commands=list(wanted.commands) if wanted.commands else None,
            lease_seconds=(wanted.lease_ms or 0) / 1000,
            wait_seconds=wanted.wait_ms / 1000,
            count=wanted.limit,
        )
        answer = await self._ask("POST", paths.CLAIM_BATCH, _written(pack, asked), packed=True, wait_ms=wanted.wait_ms)
        return [] if answer.status == 204 else _understood(answer, _jobs)

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
        _check_batch([outcome.result or b"" for outcome in outcomes], "results")
        answer = await self._ask("POST", paths.RESULTS_BATCH, _written(pack, {"results": asked}), packed=True)
        return _understood(answer, _faults)

    async def nack(self, job: Job, delay_ms: int | None, reason: str, *, dead: bool = False) -> GivenBack:
        delay_s = None if delay_ms is None else delay_ms / 1000
        asked = tasks.Nack(lease_token=job.holder.token, delay_seconds=delay_s, reason=reason, dead=dead)
        return _given_back(await self._call("POST", paths.NACK, asked, tasks.GiveBackAnswer, id=job.id))

    async def abandon(self, job: Job) -> GivenBack:
        asked = tasks.LeaseCall(lease_token=job.holder.token)
        return _given_back(await self._call("POST", paths.ABANDON, asked, tasks.GiveBackAnswer, id=job.id))

    async def cancel(self, task_id: str) -> Task:
        return _task_of(await self._call("POST", paths.CANCEL, None, tasks.TaskView, id=task_id))

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
        if _task_of(view).status.is_final:
            return await self._result(task_id, {}, 0)
        return _task_of(view), view.payload, None

    async def history(self, task_id: str) -> list[Event]:
        return (await self._call("GET", paths.HISTORY, None, History, id=task_id)).events

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
        page = await self._call("GET", paths.TASKS, None, tasks.TaskPage, query=query)
        return Page([_task_of(view) for view in page.tasks], page.cursor)

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
            return reading.topic_policy(await self._call("GET", paths.TOPIC, None, queues.Topic, topic=command))
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
        query = {"shard": shard, "offset": offset, "limit": limit, "waitSeconds": -(-wait_ms // 1000)}
        return await self._call("GET", paths.EVENTS, None, EventPage, query=query, wait_ms=wait_ms)

    async def sleep(self, seconds: float) -> None:
        await self._transport.sleep(seconds)

    async def close(self) -> None:
        await self._transport.close()

    async def _result(self, task_id: str, query: dict[str, Any], wait_ms: int) -> tuple[Task, str, bytes | None]:
        found = await self._call("GET", paths.RESULT, None, TaskAndLeft, query=query, wait_ms=wait_ms, id=task_id)
        return _task_of(found.task), found.task.payload, bytes(found.result.result) or None

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
        body = _written(msgspec.json.encode, asked) if asked is not None else b""
        found = await self._ask(method, target, body, wait_ms=wait_ms)
        return _understood(found, lambda body: _json(body, type=answer))

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
                least_s = float(given) if given.isdigit() else 0.0
            except Untrusted:
                raise
            except Unreachable as broken:
                fault = broken
            wait_s = least_s + random.uniform(0, pause_s)
            if monotonic() + wait_s > deadline_s:
                raise fault
            await self._transport.sleep(wait_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _authorize(self) -> None:
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InvalidRequest("a token is one line of ASCII text")
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        self._head = f"host: {host}:{self._address.port}\r\nauthorization: Bearer {token}\r\n"


def _fill(path: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        if not isinstance(value, str) or value in ("", ".", "..") or "/" in value:  # would lead to another path
            if name == "id":
                raise NotFound(f"there is no task {value!r:.70}")
            raise InvalidRequest(f"{name} must not be {value!r:.70}")
        path = path.replace(f"{{{name}}}", quote(value, safe="", errors="replace"))
    return path


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


def _written(write: Callable[[Any], bytes], asked: Any) -> bytes:
    try:
        return write(asked)
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidRequest(f"this cannot be sent: {fault}") from None


def _understood(answer: Answer, read: Callable[[bytes], Message]) -> Message:
    """What the answer says. One that says nothing of the kind did not come from a codeQ server, or from a newer one."""
    try:
        return read(answer.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise unreadable(answer.body, fault) from None


def _fault(answer: Answer) -> CodeqError:
    try:
        packed = b"msgpack" in answer.headers.get(b"content-type", b"")
        decode = msgspec.msgpack.decode if packed else msgspec.json.decode
        problem = decode(answer.body, type=queues.Problem)
    except (msgspec.DecodeError, ValueError, RecursionError):
        said = answer.body[:200].decode("utf-8", "replace")
        return error_of(f"http-{answer.status}", f"the server answered {answer.status}: {said}")
    fault = error_of(problem.code, problem.error)
    if isinstance(fault, RateLimited):
        fault.scope, fault.operation = problem.scope or "", problem.operation or ""
        fault.retry_after_s = problem.retry_after_seconds or 1
    return fault


def _task_of(view: tasks.TaskView) -> Task:
    try:
        return reading.task_of(view)
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
            reading.moment_ms(held.lease_until),
            held.trace_parent,
            held.trace_state,
        )
        for held in _held(body).tasks
    ]


def _faults(body: bytes) -> list[CodeqError | None]:
    return [error_of(one.code, one.error or "") if one.code else None for one in _verdicts(body).results]


def _given_back(answer: tasks.GiveBackAnswer) -> GivenBack:
    return GivenBack(answer.status == "dlq", answer.delay_seconds or 0.0)
