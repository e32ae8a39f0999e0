"""Routes for admins: queues, policies, pauses, dead letters, cleanup."""

from typing import Any

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.queue import Index, QueueKey
from codeq.domain.requests import Filter
from codeq.server.handlers.queries import page_of
from codeq.server.request import HttpRequest, HttpResponse, Parser, whole_number
from codeq.server.state import AppState
from codeq.usecases import policies, purge, queries, replay
from codeq.wire import queues as wire
from codeq.wire import times
from codeq.wire.to_domain import policy_of

TOPIC = Parser(wire.PutTopic)
CLEANUP = Parser(wire.Cleanup)
SELECTION = Parser(wire.Selection)


async def all_queues(state: AppState, request: HttpRequest) -> HttpResponse:
    """Returns the original codeQ's flat map of key names and counts; an admin of the platform gets every tenant's."""
    counts = await queries.counts(state.core, None if request.principal.is_platform else request.tenant)
    flat: dict[str, int] = {}
    for (tenant, command), counted in sorted(counts.items()):
        prefix = f"codeq:q:{command}:{tenant}"
        flat[f"{prefix}:pending"] = counted.pending
        flat[f"{prefix}:delayed"] = counted.delayed
        flat[f"{prefix}:inprog"] = counted.in_progress
        flat[f"{prefix}:dlq"] = counted.dead
    return request.respond(200, flat)


async def one_queue(state: AppState, request: HttpRequest) -> HttpResponse:
    status = await queries.queue(state.core, _queue_key(request))
    return request.respond(200, wire.queue_view(status))


async def pause(state: AppState, request: HttpRequest) -> HttpResponse:
    return await _set_paused(state, request, paused=True)


async def resume(state: AppState, request: HttpRequest) -> HttpResponse:
    return await _set_paused(state, request, paused=False)


async def put_topic(state: AppState, request: HttpRequest) -> HttpResponse:
    key = _topic_key(request)
    message = request.parse(TOPIC).policy
    if len(set(message.priority_tiers)) < len(message.priority_tiers):
        raise InvalidRequest("policy.priorityTiers holds a tier twice")
    if message.dead_letter_topic_ref == key.command:
        raise InvalidRequest("policy.deadLetterTopicRef must name another topic")
    try:
        wanted = policy_of(message)
    except ValueError as fault:
        raise InvalidRequest(f"policy: {fault}") from None
    policy, is_new = await policies.put_policy(state.core, key, wanted)
    return request.respond(201 if is_new else 200, wire.topic_view(key, policy))


async def get_topic(state: AppState, request: HttpRequest) -> HttpResponse:
    key = _topic_key(request)
    policy = policies.get_policy(state.core, key)
    if policy is None:
        raise NotFound(f"there is no policy for {key.command!r}; the defaults hold")
    return request.respond(200, wire.topic_view(key, policy))


async def delete_topic(state: AppState, request: HttpRequest) -> HttpResponse:
    if request.query(("deletionPolicy",)).get("deletionPolicy", "Delete") != "Delete":
        raise InvalidRequest("deletionPolicy must be Delete")
    key = _topic_key(request)
    await policies.set_policy(state.core, key, None)
    return HttpResponse(204)


async def list_dead(state: AppState, request: HttpRequest) -> HttpResponse:
    query = request.query(("command", "error", "cursor", "limit"))
    command = query.get("command")
    wanted = Filter(
        command=validation.name(command, "command") if command is not None else None,
        error=query.get("error"),
        index=Index.DEAD,
    )
    limit = whole_number(query.get("limit", "100"), "limit", 1, LIST_TASKS_MAX)
    return await page_of(state, request, wanted, query.get("cursor"), limit=limit)


async def replay_dead(state: AppState, request: HttpRequest) -> HttpResponse:
    return await _move_dead(state, request, replay.replay)


async def purge_dead(state: AppState, request: HttpRequest) -> HttpResponse:
    return await _move_dead(state, request, purge.purge)


async def cleanup(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(CLEANUP)
    state.limiter.spend("admin", "cleanup", token=request.authorization, tenant=request.tenant)
    now_ms = state.core.now_ms()
    try:
        before_ms = times.parse(message.before) if message.before else now_ms
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"before is {fault}") from None
    deleted = await purge.purge_before(state.core, request.tenant, before_ms, limit=message.limit or 1000)
    return request.respond(200, wire.Cleaned(deleted=deleted, before=times.text(before_ms), limit=message.limit))


async def _move_dead(state: AppState, request: HttpRequest, move: Any) -> HttpResponse:
    message = request.parse(SELECTION)
    chosen = [message.ids is not None, message.command is not None or message.error is not None, message.all]
    if sum(chosen) != 1:
        raise InvalidRequest("say which dead tasks: ids, or command and error, or all: true; one of these")
    selection = message.ids if message.ids is not None else Filter(command=message.command, error=message.error)
    result = await move(state.core, request.tenant, selection, limit=message.limit, dry_run=message.dry_run)
    answer = wire.Selected(
        matched=result.matched, changed=result.changed, dry_run=message.dry_run, ids=result.ids, refused=result.refused
    )
    return request.respond(200, answer)


async def _set_paused(state: AppState, request: HttpRequest, *, paused: bool) -> HttpResponse:
    await policies.set_paused(state.core, _queue_key(request), paused=paused)
    return await one_queue(state, request)


def _queue_key(request: HttpRequest) -> QueueKey:
    return QueueKey(request.tenant, validation.name(request.params["command"], "command"))


def _topic_key(request: HttpRequest) -> QueueKey:
    return QueueKey(request.tenant, validation.name(request.params["topic"], "topic name"))
