"""Routes for producers: create, batch create, cancel."""

import asyncio
import re
from operator import attrgetter
from typing import Any

from codeq.domain import validation
from codeq.domain.errors import CodeqError, InvalidRequest, QuotaExceeded
from codeq.domain.limits import DELAY_MS_MAX, PRIORITY_MAX, PRIORITY_MIN
from codeq.domain.requests import NewTask
from codeq.server.json_content import Content
from codeq.server.microbatch import BatchedHandler
from codeq.server.request import BatchParser, HttpRequest, HttpResponse, Parser, in_places
from codeq.server.state import AppState
from codeq.server.tenant_slots import REFUSAL_PAUSE_S
from codeq.usecases import queries
from codeq.usecases.budget import LoopBudget, fit_into_piece, pieces_of
from codeq.usecases.cancel import cancel as cancel_tasks
from codeq.usecases.enqueue import Enqueued, enqueue
from codeq.wire import tasks as wire
from codeq.wire import times
from codeq.wire.to_domain import domain_backoff

CREATE = Parser(wire.CreateTask, wire.PackedTask, content=Content("payload", attrgetter("payload"), validation.payload))
CREATE_MANY = BatchParser(Parser(wire.CreateTasks), CREATE, Parser(wire.ReadTasks, wire.ReadPackedTasks))

_TRACE_PARENT = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_REPLAYED = [(b"idempotent-replay", b"true")]
_MISMATCHED = [*_REPLAYED, (b"idempotent-mismatch", b"true")]


def _task_to_create(state: AppState, request: HttpRequest, message: Any) -> NewTask:
    return _new_task(state, request, message, _key(request, message))


def _respond_created(request: HttpRequest, answer: Enqueued) -> HttpResponse:
    response = request.respond(202, wire.view(answer.task, answer.body))
    if answer.is_replay:
        response.headers = _MISMATCHED if answer.is_mismatch else _REPLAYED
    return response


create = BatchedHandler(
    name="create",
    parser=CREATE,
    to_item=_task_to_create,
    execute=enqueue,
    respond=_respond_created,
    item_bytes=lambda task: len(task.payload),
    span="create",
    attributes=lambda request, task: (
        {"command": task.command, "tenant_id": request.tenant, "priority": task.priority}
    ),
)


async def create_many(state: AppState, request: HttpRequest) -> HttpResponse:
    if b"idempotency-key" in request.headers:
        raise InvalidRequest("Idempotency-Key names the key of one task; in a batch each has its own `idempotencyKey`")
    budget = LoopBudget(state.core, request.tenant)
    items = await CREATE_MANY.parse(request, budget)
    state.limiter.spend_for_batch(request.route.charge, request.principal, len(items))
    new_tasks: list[NewTask] = []
    answers: list[wire.TaskAnswer | None] = []
    is_long = state.takes_turns(request.tenant, len(items), len(request.body))
    for piece in pieces_of(items, len(request.body)):
        if is_long:
            await budget.yield_if_spent()
        for message in piece:
            try:
                if isinstance(message, CodeqError):
                    raise message
                new_tasks.append(_new_task(state, request, message, message.idempotency_key))
                answers.append(None)
            except CodeqError as refusal:
                answers.append(_refused(refusal))
    with state.tracing.verb("create", tenant_id=request.tenant, batch=len(new_tasks)):
        enqueued = await enqueue(state.core, request.tenant, new_tasks)
    if QuotaExceeded in set(map(type, enqueued)):
        await asyncio.sleep(REFUSAL_PAUSE_S)
    results = map(_task_answer, in_places(answers, enqueued))
    if is_long:
        size = sum([done.task.payload_bytes for done in enqueued if isinstance(done, Enqueued)])
        return await request.respond_in_pieces(
            200,
            results,
            lambda parts: wire.TaskAnswers(results=parts),
            budget,
            is_piece=fit_into_piece(len(answers), size),
        )
    return request.respond(200, wire.TaskAnswers(results=list(results)))


def _task_answer(done: Enqueued | CodeqError | wire.TaskAnswer) -> wire.TaskAnswer:
    if isinstance(done, Enqueued):
        view = wire.view(done.task, done.body)
        if done.is_replay:
            return wire.TaskAnswer(view, replayed=True, mismatched=done.is_mismatch)
        return wire.TaskAnswer(view)
    return _refused(done) if isinstance(done, CodeqError) else done


def _refused(refusal: CodeqError) -> wire.TaskAnswer:
    return wire.TaskAnswer(error=str(refusal), code=refusal.code)


async def cancel(state: AppState, request: HttpRequest) -> HttpResponse:
    task_id = request.params["id"]
    [answer] = await cancel_tasks(state.core, request.tenant, [task_id])
    if isinstance(answer, CodeqError):
        raise answer
    record = await queries.get(state.core, request.tenant, task_id)
    return request.respond(200, wire.view(record.task, record.body))


def _key(request: HttpRequest, message: Any) -> str | None:
    """Returns the idempotency key: from the header or the body, which must agree."""
    header, key = request.headers.get(b"idempotency-key"), message.idempotency_key
    if header is None:
        return key  # type: ignore[no-any-return]
    if b"idempotency-key" in request.repeated or key not in (None, header.decode("latin-1")):
        raise InvalidRequest("the header Idempotency-Key is given twice, or names another key than `idempotencyKey`")
    return header.decode("latin-1")


def _new_task(state: AppState, request: HttpRequest, message: Any, key: str | None) -> NewTask:
    trace_parent, trace_state = state.tracing.context()
    header = request.headers.get(b"traceparent")
    if message.trace_parent and _TRACE_PARENT.fullmatch(message.trace_parent.encode()):
        trace_parent, trace_state = message.trace_parent, message.trace_state
    elif header is not None and trace_parent is None and _TRACE_PARENT.fullmatch(header):
        trace_parent, trace_state = _header(request, b"traceparent"), _header(request, b"tracestate")
    return NewTask(
        command=message.command,
        payload=_payload(message.payload),
        priority=min(max(message.priority, PRIORITY_MIN), PRIORITY_MAX) if message.priority else 0,
        delay_ms=min(round(message.delay_seconds * 1000), DELAY_MS_MAX) if message.delay_seconds else 0,
        run_at_ms=_run_at(message.run_at) if message.run_at else None,
        max_attempts=message.max_attempts if message.max_attempts > 0 else None,
        idempotency_key=key,
        webhook=message.webhook or None,
        backoff=_backoff(message.backoff) if message.backoff else None,
        trace_parent=trace_parent,
        trace_state=trace_state,
    )


def _payload(raw: Any) -> bytes:
    payload = bytes(raw)
    # In JSON many clients confuse an absent payload with null; a byte string `null` is intended.
    if not payload or (payload == b"null" and not isinstance(raw, bytes)):
        raise InvalidRequest("payload is required and must not be null")
    return payload


def _run_at(value: str) -> int:
    try:
        return max(0, times.parse(value))
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"runAt is {fault}") from None


def _backoff(message: wire.Backoff) -> Any:
    try:
        return domain_backoff(message)
    except ValueError as fault:
        raise InvalidRequest(f"backoff: {fault}") from None


def _header(request: HttpRequest, name: bytes) -> str | None:
    value = request.headers.get(name)
    return value.decode("latin-1")[:512] if value else None
