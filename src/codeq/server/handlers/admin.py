"""Routes for admins: queues, policies, pauses, dead letters, cleanup, backups."""

import re
from typing import Any

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.queue import Index, QueueKey, QueuePolicy
from codeq.domain.requests import Filter
from codeq.server.handlers.queries import page_of
from codeq.server.request import HttpRequest, HttpResponse, Parser, whole_number
from codeq.server.state import AppState
from codeq.usecases import policies, purge, queries, replay
from codeq.usecases.budget import LoopBudget
from codeq.wire import queues as wire
from codeq.wire import times
from codeq.wire.errors import Forbidden
from codeq.wire.system import BackUp, Backup
from codeq.wire.to_domain import policy_of

TOPIC = Parser(wire.PutTopic)
CLEANUP = Parser(wire.Cleanup)
SELECTION = Parser(wire.Selection)
_ETAG = re.compile(rb'(?:W/)?"([!-~]{1,40})"|\*')
"""A proxy that compresses responses makes an etag weak. It names the same version all the same."""
BACK_UP = Parser(BackUp)


async def all_queues(state: AppState, request: HttpRequest) -> HttpResponse:
    """Returns the original codeQ's flat map of key names and counts; an admin of the platform gets every tenant's."""
    counts = await queries.counts(state.core, None if request.principal.is_platform else request.tenant)
    flat: dict[str, int] = {}
    budget = LoopBudget(state.core, request.tenant)
    for (tenant, command), counted in counts.items():
        await budget.yield_if_spent()
        escaped = tenant.replace("%", "%25").replace(":", "%3A")  # it separates the parts of a key name
        prefix = f"codeq:q:{command}:{escaped}"
        flat[f"{prefix}:pending"] = counted.pending
        flat[f"{prefix}:delayed"] = counted.delayed
        flat[f"{prefix}:inprog"] = counted.in_progress
        flat[f"{prefix}:dlq"] = counted.dead
    return request.respond(200, flat)


async def one_queue(state: AppState, request: HttpRequest) -> HttpResponse:
    key = _queue_key(request)
    status = await queries.queue(state.core, key)
    return request.respond(200, wire.queue_details(status, policies.get_effective(state.core, key)))


async def pause(state: AppState, request: HttpRequest) -> HttpResponse:
    return await _set_paused(state, request, paused=True)


async def resume(state: AppState, request: HttpRequest) -> HttpResponse:
    return await _set_paused(state, request, paused=False)


async def put_topic(state: AppState, request: HttpRequest) -> HttpResponse:
    key = _topic_key(request)
    try:
        wanted = policy_of(request.parse(TOPIC).policy)
    except ValueError as fault:
        raise InvalidRequest(f"policy: {fault}") from None
    policy, is_new = await policies.put_policy(state.core, key, wanted, if_match=_if_match(request))
    return _topic(state, request, key, policy, status=201 if is_new else 200)


async def get_topic(state: AppState, request: HttpRequest) -> HttpResponse:
    key = _topic_key(request)
    policy = policies.get_policy(state.core, key)
    if policy is None:
        raise NotFound(f"there is no policy for {key.command!r}; the defaults hold")
    return _topic(state, request, key, policy, status=200)


async def delete_topic(state: AppState, request: HttpRequest) -> HttpResponse:
    if request.query(("deletionPolicy",)).get("deletionPolicy", "Delete") != "Delete":
        raise InvalidRequest("deletionPolicy must be Delete")
    await policies.delete_policy(state.core, _topic_key(request), if_match=_if_match(request))
    return HttpResponse(204)


async def list_dead(state: AppState, request: HttpRequest) -> HttpResponse:
    query = request.query(("command", "error", "cursor", "limit"))
    command = query.get("command")
    wanted = Filter(
        command=validation.queue_name(command, "command") if command is not None else None,
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
    now_ms = state.core.now_ms()
    try:
        before_ms = times.parse(message.before) if message.before else now_ms
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"before is {fault}") from None
    deleted = await purge.purge_before(state.core, request.tenant, before_ms, limit=message.limit or 1000)
    return request.respond(200, wire.Cleaned(deleted=deleted, before=times.text(before_ms), limit=message.limit))


async def back_up(state: AppState, request: HttpRequest) -> HttpResponse:
    if not request.principal.is_platform:
        raise Forbidden("missing scope: this needs codeq:platform")
    name = request.parse(BACK_UP).name
    tasks = await queries.total(state.core)
    size, took_s = await state.backups.make(name)
    return request.respond(200, Backup(name=name, bytes=size, seconds=round(took_s, 3), tasks=tasks))


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


def _topic(state: AppState, request: HttpRequest, key: QueueKey, policy: QueuePolicy, *, status: int) -> HttpResponse:
    response = request.respond(status, wire.topic_view(key, policy, policies.get_effective(state.core, key)))
    response.headers = [(b"etag", b'"%s"' % policy.etag.encode())]
    return response


def _if_match(request: HttpRequest) -> str | None:
    """Returns the etag that the policy must have: "0" for no policy, "*" for any, None without such a header."""
    wanted, unwanted = request.headers.get(b"if-match"), request.headers.get(b"if-none-match")
    if wanted is None and unwanted is None:
        return None
    if wanted is None and unwanted == b"*":
        return "0"
    etag = _ETAG.fullmatch(wanted or b"")
    if etag is None or unwanted is not None or b"if-match" in request.repeated:
        raise InvalidRequest('send If-Match with one etag or version in quotes, such as "3", or If-None-Match: *')
    return validation.etag((etag[1] or b"*").decode())


def _queue_key(request: HttpRequest) -> QueueKey:
    return QueueKey(request.tenant, validation.queue_name(request.params["command"], "command"))


def _topic_key(request: HttpRequest) -> QueueKey:
    return QueueKey(request.tenant, validation.queue_name(request.params["topic"], "topic name"))
