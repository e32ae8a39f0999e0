"""Routes for workers: claim, heartbeat, abandon, nack, result."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import BACKOFF_MS_MAX, CLAIM_WAIT_MS_MAX, LEASE_MS_MIN
from codeq.domain.requests import Claim, Outcome
from codeq.domain.task import Holder, Status, Task
from codeq.server.auth.principal import EVERY_COMMAND
from codeq.server.microbatch import BatchedHandler
from codeq.server.request import BatchParser, HttpRequest, HttpResponse, Parser, json_value
from codeq.server.state import AppState
from codeq.usecases import queries
from codeq.usecases.abandon import abandon as abandon_task
from codeq.usecases.claim import claim
from codeq.usecases.heartbeat import heartbeat as extend_lease
from codeq.usecases.nack import nack as nack_task
from codeq.usecases.submit import Submitted, submit
from codeq.wire import tasks as wire
from codeq.wire import times
from codeq.wire.errors import Forbidden


def _nested(message: wire.SubmitOf) -> bytes:
    result = bytes(message.result)
    return (
        result if not message.artifacts else b"[%b]%b" % (b",".join([bytes(raw) for raw in message.artifacts]), result)
    )


CLAIM = Parser(wire.Claim)
CLAIM_MANY = Parser(wire.ClaimBatch)
HEARTBEAT = Parser(wire.Heartbeat)
LEASE_CALL = Parser(wire.LeaseCall)
NACK = Parser(wire.Nack)
SUBMIT = Parser(wire.Submit, wire.PackedSubmit)
SUBMIT_MANY = BatchParser(
    Parser(wire.SubmitBatch),
    Parser(wire.SubmitOf, wire.PackedSubmitOf),
    Parser(wire.ReadSubmits, wire.ReadPackedSubmits),
    nested=_nested,
)

_NOTHING = HttpResponse(204)
_STATUSES = {status.value: status for status in Status}


async def claim_one(state: AppState, request: HttpRequest) -> HttpResponse:
    views = await _claim(state, request, request.parse(CLAIM), 1)
    return request.respond(200, views[0]) if views else _NOTHING


async def claim_many(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(CLAIM_MANY)
    views = await _claim(state, request, message, message.count)
    return request.respond(200, wire.ClaimedTasks(tasks=views)) if views else _NOTHING


async def heartbeat(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(HEARTBEAT)
    extend_ms = _ms(message.extend_seconds) or None
    task = await _on_lease(state, request, message, extend_lease, extend_ms=extend_ms, progress=message.progress)
    return request.respond(200, wire.HeartbeatAnswer(ok=True, lease_until=times.text(task.lease_until_ms)))


async def abandon(state: AppState, request: HttpRequest) -> HttpResponse:
    task = await _on_lease(state, request, request.parse(LEASE_CALL), abandon_task)
    return request.respond(200, wire.GiveBackAnswer(status=_new_place(task)))


async def nack(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(NACK)
    delay_ms = None if message.delay_seconds is None else min(_ms(message.delay_seconds), BACKOFF_MS_MAX)
    task = await _on_lease(
        state, request, message, nack_task, delay_ms=delay_ms, reason=message.reason, is_last=message.dead
    )
    waits_ms = task.visible_ms - task.updated_ms if task.visible_ms else 0
    return request.respond(200, wire.GiveBackAnswer(status=_new_place(task), delay_seconds=waits_ms / 1000))


async def _on_lease(
    state: AppState, request: HttpRequest, message: Any, verb: Callable[..., Awaitable[Task]], **options: Any
) -> Task:
    """Calls a use case on the task of the path, as the holder of its lease."""
    task_id = request.params["id"]
    await _check_commands(state, request, [task_id])
    with state.tracing.verb(verb.__name__, task_id=task_id, worker_id=request.principal.subject):
        return await verb(state.core, request.tenant, task_id, _holder(request, message), **options)


def _new_place(task: Task) -> str:
    return "dlq" if task.is_dead else "requeued"


async def _authorize_submit(state: AppState, request: HttpRequest) -> None:
    await _check_commands(state, request, [request.params["id"]])


def _respond_submitted(request: HttpRequest, answer: Submitted) -> HttpResponse:
    return request.respond(200, wire.result_view(answer.task, answer.result, packed=request.wants_packed))


submit_one = BatchedHandler(
    name="submit_one",
    parser=SUBMIT,
    authorize=_authorize_submit,
    needs_authorizing=lambda request: EVERY_COMMAND not in request.principal.commands,
    to_item=lambda _, request, message: _outcome(request, message, request.params["id"]),
    execute=submit,
    respond=_respond_submitted,
    item_bytes=lambda outcome: len(outcome.result or b""),
    span="submit_result",
    attributes=lambda _, outcome: {"task_id": outcome.task_id, "worker_id": outcome.holder.worker},
)


async def submit_many(state: AppState, request: HttpRequest) -> HttpResponse:
    wants_packed = request.wants_packed
    answers: list[wire.SubmitAnswer | None] = []
    outcomes: list[Outcome] = []
    for message in SUBMIT_MANY.parse(request):
        if isinstance(message, CodeqError):
            raise message
        try:
            outcomes.append(_outcome(request, message, message.task_id))
            answers.append(None)
        except CodeqError as refusal:
            answers.append(wire.SubmitAnswer(task_id=message.task_id, error=str(refusal), code=refusal.code))
    await _check_commands(state, request, [outcome.task_id for outcome in outcomes])
    with state.tracing.verb("submit_result", batch=len(outcomes), worker_id=request.principal.subject):
        submitted = iter(await submit(state.core, request.tenant, outcomes))
    task_ids = iter([outcome.task_id for outcome in outcomes])
    results = []
    for answer in answers:
        if answer is not None:
            results.append(answer)
            continue
        done, task_id = next(submitted), next(task_ids)
        if isinstance(done, CodeqError):
            results.append(wire.SubmitAnswer(task_id=task_id, error=str(done), code=done.code))
        else:
            view = wire.result_view(done.task, done.result, packed=wants_packed)
            results.append(wire.SubmitAnswer(task_id, view))
    return request.respond(200, wire.SubmitAnswers(results=results))


async def _claim(state: AppState, request: HttpRequest, message: Any, count: int) -> list[wire.TaskView]:
    state.limiter.spend("worker", "claim", token=request.authorization, tenant=request.tenant, items=count)
    wait_ms = state.wait_ms(min(_ms(message.wait_seconds), CLAIM_WAIT_MS_MAX))
    wanted = Claim(
        worker=request.principal.subject,
        commands=_commands(request, message.commands),
        limit=count,
        lease_ms=max(_ms(message.lease_seconds), LEASE_MS_MIN) if message.lease_seconds > 0 else None,
        wait_ms=wait_ms,
    )
    with state.tracing.verb("claim", worker_id=wanted.worker, tenant_id=request.tenant):
        claiming = claim(state.core, request.tenant, wanted)
        deliveries = await (request.unless_disconnected(claiming) if wait_ms else claiming)
    return [wire.view(delivery.task, delivery.body) for delivery in deliveries]


def _commands(request: HttpRequest, wanted: list[str] | None) -> Sequence[str] | None:
    allowed = request.principal.commands
    if EVERY_COMMAND in allowed:
        return list(dict.fromkeys(wanted)) if wanted else None
    if wanted and not allowed.issuperset(wanted):
        raise Forbidden("event type not allowed: the token's eventTypes do not include every command asked for")
    return list(dict.fromkeys(wanted)) if wanted else sorted(allowed)


async def _check_commands(state: AppState, request: HttpRequest, ids: list[str]) -> None:
    """Refuses tasks of commands that the token does not name, on every verb."""
    if EVERY_COMMAND in request.principal.commands:
        return
    for task in await queries.get_tasks(state.core, request.tenant, ids):
        if task.command not in request.principal.commands:
            raise Forbidden("event type not allowed: the token's eventTypes do not include the task's command")


def _outcome(request: HttpRequest, message: Any, task_id: str) -> Outcome:
    status = _STATUSES.get(message.status)
    if status is None:
        raise InvalidRequest("invalid status: COMPLETED or FAILED")
    if message.artifacts:
        raise InvalidRequest("artifacts are not taken by this server yet; send a link inside the result")
    result = json_value(bytes(message.result), "result") if message.result else None
    return Outcome(task_id=task_id, holder=_holder(request, message), status=status, result=result, error=message.error)


def _holder(request: HttpRequest, message: Any) -> Holder:
    return Holder(request.principal.subject, message.lease_token)


def _ms(seconds: float) -> int:
    return round(min(max(0.0, seconds), 1e9) * 1000)
