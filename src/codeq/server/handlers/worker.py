"""Routes for workers: claim, heartbeat, abandon, nack, result; and the list of workers."""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from codeq.domain import validation
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import (
    BACKOFF_MS_MAX,
    CLAIM_BYTES_MAX,
    CLAIM_WAIT_MS_MAX,
    LEASE_MS_MIN,
    WORKER_NAME_PATTERN,
)
from codeq.domain.queue import is_system
from codeq.domain.requests import Claim, Delivery, LeaseExtension, Outcome
from codeq.domain.task import Holder, Status, Task
from codeq.domain.workers import WorkerInfo
from codeq.server.auth.principal import EVERY_COMMAND
from codeq.server.json_content import Content
from codeq.server.microbatch import BatchedHandler
from codeq.server.request import BatchParser, HttpRequest, HttpResponse, Parser, in_places
from codeq.server.state import AppState
from codeq.usecases import queries, workers
from codeq.usecases.abandon import abandon as abandon_task
from codeq.usecases.budget import LoopBudget, fit_into_piece, is_short, pieces_of
from codeq.usecases.claim import Lease, claim, hand_back, leases_of
from codeq.usecases.core import Core, durable
from codeq.usecases.heartbeat import heartbeat as extend_lease
from codeq.usecases.heartbeat import heartbeat_many as extend_leases
from codeq.usecases.nack import nack as nack_task
from codeq.usecases.submit import Submitted, submit
from codeq.usecases.traces import trace_parents
from codeq.usecases.watch_leases import watch_leases as find_lost_leases
from codeq.wire import tasks as wire
from codeq.wire import times, to_domain
from codeq.wire.artifacts import artifact_input
from codeq.wire.errors import Forbidden, RateLimited
from codeq.wire.workers import WorkerViews, worker_view

CLAIM = Parser(wire.Claim)
CLAIM_MANY = Parser(wire.ClaimBatch)
HEARTBEAT = Parser(wire.Heartbeat)
HEARTBEAT_MANY = Parser(wire.HeartbeatBatch)
ABANDON = Parser(wire.Abandon)
NACK = Parser(wire.Nack)
WATCH = Parser(wire.WatchLeases)
SUBMIT_CONTENT = Content("result", attrgetter("result"), validation.result)
SUBMIT = Parser(wire.Submit, wire.PackedSubmit, content=SUBMIT_CONTENT)
SUBMIT_MANY = BatchParser(
    Parser(wire.SubmitBatch),
    Parser(wire.SubmitOf, wire.PackedSubmitOf, content=SUBMIT_CONTENT),
    Parser(wire.ReadSubmits, wire.ReadPackedSubmits),
)

_NOTHING = HttpResponse(204)
_UNPAID = "rate limit exceeded: the heartbeats before this one have used it up"
_WORKER_NAME = re.compile(WORKER_NAME_PATTERN)
_task_id_of = attrgetter("task_id")
_STATUSES = {status.value: status for status in Status}


async def claim_one(state: AppState, request: HttpRequest) -> HttpResponse:
    deliveries = await _claim(state, request, request.parse(CLAIM), 1)
    return request.respond(200, wire.view(deliveries[0].task, deliveries[0].body)) if deliveries else _NOTHING


async def claim_many(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(CLAIM_MANY)
    state.takes_turns(request.tenant, message.count, 0)
    deliveries = await _claim(state, request, message, message.count)
    if not deliveries:
        return _NOTHING
    views = map(_view, deliveries)
    size = sum([delivery.task.payload_bytes for delivery in deliveries])
    if not is_short(len(deliveries), size):
        is_cut = size >= CLAIM_BYTES_MAX and len(deliveries) < message.count
        return await request.respond_in_pieces(
            200,
            views,
            lambda parts: wire.ClaimedTasks(tasks=parts, bytes_limited=is_cut),
            LoopBudget(state.core, request.tenant),
            is_piece=fit_into_piece(len(deliveries), size),
        )
    return request.respond(200, wire.ClaimedTasks(tasks=list(views)))


async def heartbeat(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(HEARTBEAT)
    extend_ms = _ms(message.extend_seconds) or None
    task = await _on_lease(state, request, message, extend_lease, extend_ms=extend_ms, progress=message.progress)
    return request.respond(200, wire.HeartbeatAnswer(ok=True, lease_until=times.text(task.lease_until_ms)))


async def heartbeat_many(state: AppState, request: HttpRequest) -> HttpResponse:
    budget = LoopBudget(state.core, request.tenant)
    asked = (await request.parse_in_turn(HEARTBEAT_MANY, budget)).heartbeats
    # Not all or none of them: a worker near its limit must not lose all its leases for a few.
    messages = asked[: state.limiter.spend_for_part(request.route.charge, request.principal, len(asked))]
    is_long = state.takes_turns(request.tenant, len(messages), 0)
    ids = [message.task_id for message in messages]
    await check_commands(state, request, ids)
    beats: list[LeaseExtension] = []
    for piece in pieces_of(messages, 0):
        if is_long:
            await budget.yield_if_spent()
        beats += [_extension(request, message) for message in piece]
    parents = await trace_parents(state.core, request.tenant, ids) if state.tracing.is_on else ()
    with state.tracing.verb("heartbeat", parents, batch=len(ids), worker_id=request.principal.subject):
        extended = await extend_leases(state.core, request.tenant, beats)
    unpaid = [wire.HeartbeatResult(each.task_id, error=_UNPAID, code=RateLimited.code) for each in asked[len(ids) :]]
    results = chain(map(_heartbeat_result, ids, extended), unpaid)
    if not is_long:
        return request.respond(200, wire.HeartbeatResults(results=list(results)))
    return await request.respond_in_pieces(
        200,
        results,
        lambda parts: wire.HeartbeatResults(results=parts),
        budget,
        is_piece=fit_into_piece(len(ids), 0),
    )


def _extension(request: HttpRequest, message: wire.HeartbeatOf) -> LeaseExtension:
    return LeaseExtension(
        task_id=message.task_id,
        holder=_holder(request, message),
        extend_ms=_ms(message.extend_seconds) or None,
        progress=message.progress,
    )


def _heartbeat_result(task_id: str, done: Task | CodeqError) -> wire.HeartbeatResult:
    if isinstance(done, CodeqError):
        return wire.HeartbeatResult(task_id, error=str(done), code=done.code)
    return wire.HeartbeatResult(task_id, times.text(done.lease_until_ms))


async def watch_leases(state: AppState, request: HttpRequest) -> HttpResponse:
    message = await request.parse_in_turn(WATCH, LoopBudget(state.core, request.tenant))
    state.takes_turns(request.tenant, len(message.leases), 0)
    leases = [(lease.task_id, Holder(request.principal.subject, lease.lease_token)) for lease in message.leases]
    await check_commands(state, request, [task_id for task_id, _ in leases])
    wait_ms = state.wait_ms(min(_ms(message.wait_seconds), CLAIM_WAIT_MS_MAX))
    with state.lease_watches.held(request.tenant) if wait_ms else nullcontext():
        lost = await request.unless_disconnected(
            lambda ms: find_lost_leases(state.core, request.tenant, leases, wait_ms=ms), wait_ms
        )
    return request.respond(200, wire.LeaseEnds(ended=[wire.LeaseEnd(*each) for each in lost]))


async def abandon(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(ABANDON)
    delay_ms = min(_ms(message.delay_seconds), BACKOFF_MS_MAX)
    task = await _on_lease(state, request, message, abandon_task, delay_ms=delay_ms)
    waits_ms = task.visible_ms - task.updated_ms if task.visible_ms else 0
    return request.respond(
        200, wire.GiveBackAnswer(status=_new_place(task), delay_seconds=waits_ms / 1000 if waits_ms else None)
    )


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
    await check_commands(state, request, [task_id])
    parents = await trace_parents(state.core, request.tenant, [task_id]) if state.tracing.is_on else ()
    with state.tracing.verb(verb.__name__, parents, task_id=task_id, worker_id=request.principal.subject):
        return await verb(state.core, request.tenant, task_id, _holder(request, message), **options)


def _new_place(task: Task) -> str:
    return "dlq" if task.is_dead else "requeued"


async def _authorize_submit(state: AppState, request: HttpRequest) -> None:
    await check_commands(state, request, [request.params["id"]])


def _respond_submitted(request: HttpRequest, answer: Submitted) -> HttpResponse:
    return request.respond(
        200, wire.result_view(answer.task, answer.result, answer.artifacts, packed=request.wants_packed)
    )


submit_one = BatchedHandler(
    name="submit_one",
    parser=SUBMIT,
    authorize=_authorize_submit,
    needs_authorizing=lambda request: EVERY_COMMAND not in request.principal.commands,
    to_item=lambda _, request, message: _outcome(request, message, request.params["id"]),
    runs_alone=lambda outcome: bool(outcome.artifacts),
    execute=submit,
    respond=_respond_submitted,
    item_bytes=lambda outcome: len(outcome.result or b""),
    span="submit_result",
    attributes=lambda _, outcome: {"task_id": outcome.task_id, "worker_id": outcome.holder.worker},
    task_ids=lambda outcome: [outcome.task_id],
)


async def submit_many(state: AppState, request: HttpRequest) -> HttpResponse:
    budget = LoopBudget(state.core, request.tenant)
    answers: list[wire.SubmitAnswer | None] = []
    outcomes: list[Outcome] = []
    messages = await SUBMIT_MANY.parse(request, budget)
    state.limiter.spend_for_batch(request.route.charge, request.principal, len(messages))
    is_long = state.takes_turns(request.tenant, len(messages), len(request.body))
    for piece in pieces_of(messages, len(request.body)):
        if is_long:
            await budget.yield_if_spent()
        for message in piece:
            if isinstance(message, CodeqError):
                raise message
            try:
                outcomes.append(_outcome(request, message, message.task_id))
                answers.append(None)
            except CodeqError as refusal:
                answers.append(wire.SubmitAnswer(task_id=message.task_id, error=str(refusal), code=refusal.code))
    ids = list(map(_task_id_of, outcomes))
    await check_commands(state, request, ids)
    parents = await trace_parents(state.core, request.tenant, ids) if state.tracing.is_on else ()
    with state.tracing.verb("submit_result", parents, batch=len(ids), worker_id=request.principal.subject):
        submitted = await submit(state.core, request.tenant, outcomes)
    done = in_places(answers, submitted)
    results = map(_submit_answer, map(_task_id_of, messages), done, repeat(request.wants_packed))
    if is_long:
        size = sum([len(each.result) for each in submitted if isinstance(each, Submitted) and each.result])
        return await request.respond_in_pieces(
            200,
            results,
            lambda parts: wire.SubmitAnswers(results=parts),
            budget,
            is_piece=fit_into_piece(len(answers), size),
        )
    return request.respond(200, wire.SubmitAnswers(results=list(results)))


def _submit_answer(task_id: str, done: Submitted | CodeqError | wire.SubmitAnswer, packed: bool) -> wire.SubmitAnswer:
    if isinstance(done, Submitted):
        return wire.SubmitAnswer(task_id, wire.result_view(done.task, done.result, done.artifacts, packed=packed))
    if isinstance(done, CodeqError):
        return wire.SubmitAnswer(task_id=task_id, error=str(done), code=done.code)
    return done


def _view(delivery: Delivery) -> wire.TaskView:
    return wire.view(delivery.task, delivery.body)


async def _claim(state: AppState, request: HttpRequest, message: Any, count: int) -> list[Delivery]:
    charge, caller = request.route.charge, request.principal
    wait_ms = state.wait_ms(min(_ms(message.wait_seconds), CLAIM_WAIT_MS_MAX))
    wanted = Claim(
        worker=request.principal.subject,
        commands=_commands(request, message.commands),
        limit=state.limiter.affordable(charge, caller, count),
        lease_ms=max(_ms(message.lease_seconds), LEASE_MS_MIN) if message.lease_seconds > 0 else None,
        request_id=message.request_id,
        info=_worker_info(request, message),
    )
    slot = state.long_polls.held(request.tenant) if wait_ms else nullcontext()
    with slot, state.tracing.verb("claim", worker_id=wanted.worker, tenant_id=request.tenant) as span:
        deliveries = await request.unless_disconnected(
            lambda ms: claim(state.core, request.tenant, replace(wanted, wait_ms=ms) if ms else wanted), wait_ms
        )
        if span is not None:
            state.tracing.link(span, [delivery.body.trace_parent for delivery in deliveries])
    state.limiter.spend_late(charge, caller, len(deliveries))
    if leases := leases_of(deliveries):
        request.returns_tasks = returning = partial(_return_tasks, state.core, request.tenant, leases)
        request.connection.on_undelivered = (*request.connection.on_undelivered, returning)
    return deliveries


def _worker_info(request: HttpRequest, message: wire.Claim) -> WorkerInfo | None:
    """Returns what the worker tells about itself, of which it may be about commands that the token names only."""
    if message.worker is None:
        name = message.worker_id
        return WorkerInfo(name=name) if name and _WORKER_NAME.fullmatch(name) else None
    info, allowed = to_domain.worker_info(message.worker), request.principal.commands
    if info.commands is None or EVERY_COMMAND in allowed:
        return info
    return replace(info, commands=tuple([command for command in info.commands if command in allowed]))


async def leave(state: AppState, request: HttpRequest) -> HttpResponse:
    await workers.leave(state.core, request.tenant, request.principal.subject, request.params["name"])
    return _NOTHING


async def list_workers(state: AppState, request: HttpRequest) -> HttpResponse:
    found = await workers.list_workers(state.core, request.tenant)
    views = map(worker_view, found.workers)
    budget = LoopBudget(state.core, request.tenant)
    return await request.respond_in_pieces(
        200, views, lambda parts: WorkerViews(workers=parts, complete=found.is_complete), budget
    )


async def _return_tasks(core: Core, tenant: str, leases: Sequence[Lease]) -> None:
    """Returns tasks to their queues whose claim was answered, but not received."""
    with suppress(CodeqError):  # their leases end in time
        await durable(hand_back)(core, tenant, leases)


def _commands(request: HttpRequest, wanted: list[str] | None) -> Sequence[str] | None:
    allowed = request.principal.commands
    if EVERY_COMMAND in allowed:
        return list(dict.fromkeys(wanted)) if wanted else None
    if wanted and not allowed.issuperset(wanted):
        raise Forbidden("event type not allowed: the token's eventTypes do not include every command asked for")
    return list(dict.fromkeys(wanted)) if wanted else sorted(allowed)


async def check_commands(state: AppState, request: HttpRequest, ids: list[str]) -> None:
    """Refuses tasks of commands that the token does not name, on every verb. Those of the system do not exist for
    workers, so the verb itself answers as for any unknown id."""
    if EVERY_COMMAND in request.principal.commands:
        return
    for task in await queries.get_tasks(state.core, request.tenant, ids):
        if task.command not in request.principal.commands and not is_system(task.command):
            raise Forbidden("event type not allowed: the token's eventTypes do not include the task's command")


def _outcome(request: HttpRequest, message: Any, task_id: str) -> Outcome:
    status = _STATUSES.get(message.status)
    if status is None:
        raise InvalidRequest("invalid status: COMPLETED or FAILED")
    return Outcome(
        task_id=task_id,
        holder=_holder(request, message),
        status=status,
        result=bytes(message.result) if message.result else None,
        error=message.error,
        artifacts=[artifact_input(each) for each in message.artifacts] if message.artifacts else (),
    )


def _holder(request: HttpRequest, message: Any) -> Holder:
    return Holder(request.principal.subject, message.lease_token)


def _ms(seconds: float) -> int:
    return round(min(max(0.0, seconds), 1e9) * 1000)
