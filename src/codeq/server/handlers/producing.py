"""What producers call: create, batch create, cancel."""

import re
from typing import Any

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import DELAY_MS_MAX, PRIORITY_MAX, PRIORITY_MIN
from codeq.domain.requests import NewTask
from codeq.server.calls import BatchParser, Call, Parser, Reply, json_value
from codeq.server.lane import Shared
from codeq.server.parts import Parts
from codeq.usecases import operate
from codeq.usecases.enqueue import Enqueued, enqueue
from codeq.wire import tasks as wire
from codeq.wire import times
from codeq.wire.reading import domain_backoff

CREATE = Parser(wire.CreateTask, wire.PackedTask)
CREATE_MANY = BatchParser(
    Parser(wire.CreateTasks),
    CREATE,
    Parser(wire.ReadTasks, wire.ReadPackedTasks),
    nested=lambda asked: bytes(asked.payload),
)

_TRACE_PARENT = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_REPLAYED = [(b"idempotent-replay", b"true")]


async def create(parts: Parts, call: Call) -> Reply:
    order = _asked(parts, call)
    with parts.tracing.verb("create", command=order.command, tenant_id=call.tenant, priority=order.priority):
        [answer] = await enqueue(parts.core, call.tenant, [order])
    if isinstance(answer, CodeqError):
        raise answer
    return _created(call, answer)


def _asked(parts: Parts, call: Call) -> NewTask:
    asked = call.read(CREATE)
    parts.limiter.spend("producer", "create_task", token=_token(call), tenant=call.tenant)
    return _order(parts, call, asked, call.headers.get(b"idempotency-key"))


def _created(call: Call, answer: Enqueued) -> Reply:
    reply = call.answer(202, wire.view(answer.task, answer.body))
    if answer.is_replay:
        reply.headers = _REPLAYED
    return reply


CREATING = Shared(read=_asked, size=lambda order: len(order.payload), verb=enqueue, answer=_created)


async def create_many(parts: Parts, call: Call) -> Reply:
    items = CREATE_MANY.read(call)
    parts.limiter.spend("producer", "create_task", token=_token(call), tenant=call.tenant, items=len(items))
    orders: list[NewTask] = []
    answers: list[wire.TaskAnswer | None] = []
    for asked in items:
        try:
            if isinstance(asked, CodeqError):
                raise asked
            orders.append(_order(parts, call, asked, None))
            answers.append(None)
        except CodeqError as refusal:
            answers.append(_refused(refusal))
    with parts.tracing.verb("create", tenant_id=call.tenant, batch=len(orders)):
        enqueued = iter(await enqueue(parts.core, call.tenant, orders))
    results = [answer or _task_answer(next(enqueued)) for answer in answers]
    return call.answer(200, wire.TaskAnswers(results=results))


def _task_answer(done: Enqueued | CodeqError) -> wire.TaskAnswer:
    if isinstance(done, CodeqError):
        return _refused(done)
    return wire.TaskAnswer(wire.view(done.task, done.body), replayed=done.is_replay)


def _refused(refusal: CodeqError) -> wire.TaskAnswer:
    return wire.TaskAnswer(error=str(refusal), code=refusal.code)


async def cancel(parts: Parts, call: Call) -> Reply:
    task_id = call.params["id"]
    [answer] = await operate.cancel(parts.core, call.tenant, [task_id])
    if isinstance(answer, CodeqError):
        raise answer
    [record] = await parts.core.store.read(call.tenant, [task_id])
    if record is None:
        raise InvalidRequest("the task was purged while it was cancelled")
    return call.answer(200, wire.view(record.task, record.body))


def _order(parts: Parts, call: Call, asked: Any, key_header: bytes | None) -> NewTask:
    trace_parent, trace_state = parts.tracing.context()
    given = call.headers.get(b"traceparent")
    if asked.trace_parent and _TRACE_PARENT.fullmatch(asked.trace_parent.encode()):
        trace_parent, trace_state = asked.trace_parent, asked.trace_state
    elif given is not None and trace_parent is None and _TRACE_PARENT.fullmatch(given):
        trace_parent, trace_state = _header(call, b"traceparent"), _header(call, b"tracestate")
    key = asked.idempotency_key or None
    if key is None and key_header is not None:
        key = key_header.decode("latin-1")
    return NewTask(
        command=asked.command,
        payload=_payload(asked.payload),
        priority=min(max(asked.priority, PRIORITY_MIN), PRIORITY_MAX),
        delay_ms=min(round(asked.delay_seconds * 1000), DELAY_MS_MAX) if asked.delay_seconds else 0,
        run_at_ms=_run_at(asked.run_at) if asked.run_at else None,
        max_attempts=asked.max_attempts if asked.max_attempts > 0 else None,
        idempotency_key=key,
        webhook=asked.webhook or None,
        backoff=_backoff(asked.backoff) if asked.backoff else None,
        trace_parent=trace_parent,
        trace_state=trace_state,
    )


def _payload(raw: Any) -> bytes:
    payload = bytes(raw)
    # In JSON an absent payload and null look alike to many clients; a byte string that says null was meant.
    if not payload or (payload == b"null" and not isinstance(raw, bytes)):
        raise InvalidRequest("payload is required and must not be null")
    return json_value(payload, "payload")


def _run_at(value: str) -> int:
    try:
        return max(0, times.parse(value))
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"runAt is {fault}") from None


def _backoff(asked: wire.Backoff) -> Any:
    try:
        return domain_backoff(asked)
    except ValueError as fault:
        raise InvalidRequest(f"backoff: {fault}") from None


def _header(call: Call, name: bytes) -> str | None:
    value = call.headers.get(name)
    return value.decode("latin-1")[:512] if value else None


def _token(call: Call) -> str:
    return call.headers[b"authorization"].decode("latin-1")
