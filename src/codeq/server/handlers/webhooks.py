"""Routes for operators of webhooks: list, inspect and replay deliveries, send a test, show the secret."""

from typing import Any

import msgspec
from msgspec import Raw

from codeq.domain import lifecycle
from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.queue import WEBHOOKS, Index
from codeq.domain.requests import Filter, Record
from codeq.domain.result_callbacks import ResultCallback
from codeq.domain.task import Status
from codeq.server.request import HttpRequest, HttpResponse, Parser, whole_number
from codeq.server.state import AppState
from codeq.server.webhooks.attempts import body_of
from codeq.usecases import deliver, queries, replay
from codeq.usecases.budget import LoopBudget
from codeq.wire import deliveries as wire
from codeq.wire import queues as wire_queues
from codeq.wire import times
from codeq.wire.webhooks import secret_of

SELECTION = Parser(wire.SelectDeliveries)
TEST = Parser(wire.WebhookTest)
_pack = msgspec.msgpack.Encoder().encode


async def list_deliveries(state: AppState, request: HttpRequest) -> HttpResponse:
    query = request.query(("state", "error", "cursor", "limit"))
    wanted = _filter(query.get("state"), query.get("error"))
    limit = whole_number(query.get("limit", "100"), "limit", 1, LIST_TASKS_MAX)
    async with state.page_reads.held(request.tenant):
        records, cursor = await queries.find_records(
            state.core, request.tenant, wanted, cursor=query.get("cursor"), limit=limit
        )
        views = (_view(record) for record in records)
        budget = LoopBudget(state.core, request.tenant)
        return await request.respond_in_pieces(
            200, views, lambda parts: wire.DeliveryPage(deliveries=parts, cursor=cursor), budget
        )


async def get_delivery(state: AppState, request: HttpRequest) -> HttpResponse:
    record = await queries.get(state.core, request.tenant, request.params["id"])
    if record.task.command != WEBHOOKS:
        raise NotFound(f"there is no delivery {request.params['id'][:64]!r}")
    return request.respond(200, _whole_view(request, record))


async def replay_deliveries(state: AppState, request: HttpRequest) -> HttpResponse:
    message = request.parse(SELECTION)
    if sum([message.ids is not None, message.error is not None, message.all]) != 1:
        raise InvalidRequest("say which dead deliveries: ids, or error, or all: true; one of these")
    selection: Any = Filter(command=WEBHOOKS, error=message.error)
    refused: dict[str, str] = {}
    if message.ids is not None:
        known = await queries.get_tasks(state.core, request.tenant, message.ids)
        deliveries = {task.id for task in known if task.command == WEBHOOKS}
        refused = {id_: NotFound.code for id_ in message.ids if id_ not in deliveries}
        selection = [id_ for id_ in message.ids if id_ in deliveries]
    result = await replay.replay(state.core, request.tenant, selection, limit=message.limit, dry_run=message.dry_run)
    answer = wire_queues.Selected(
        matched=result.matched,
        changed=result.changed,
        dry_run=message.dry_run,
        ids=result.ids,
        refused=refused | result.refused,
    )
    return request.respond(200, answer)


async def send_test(state: AppState, request: HttpRequest) -> HttpResponse:
    """Stores a delivery with a made-up result. It is sent as all are; its state tells how that went."""
    task = await deliver.enqueue_test(state.core, request.tenant, request.parse(TEST).url)
    return request.respond(202, _whole_view(request, await queries.get(state.core, request.tenant, task.id)))


async def show_secret(state: AppState, request: HttpRequest) -> HttpResponse:
    keys = state.webhook_secrets.keys(request.tenant)
    response = request.respond(200, wire.WebhookSecret(secrets=[secret_of(key) for key in keys]))
    response.headers = [(b"cache-control", b"no-store")]
    return response


def _filter(state: str | None, error: str | None) -> Filter:
    if state is None:
        return Filter(command=WEBHOOKS, error=error)
    if state == "delivered":
        return Filter(command=WEBHOOKS, status=Status.COMPLETED, error=error)
    if state not in wire.STATES:
        raise InvalidRequest(f"state is one of {', '.join(wire.STATES)}")
    return Filter(command=WEBHOOKS, index=Index(state), error=error)


def _whole_view(request: HttpRequest, record: Record) -> wire.DeliveryView:
    """Adds what is sent and what was answered. Neither is decoded: a megabyte of brackets would take 0.1 s."""
    callback = _callback(record)
    return msgspec.structs.replace(
        _view(record),
        response=_as_it_is(request, record.result) if record.result else None,
        body=_as_it_is(request, body_of(callback)) if callback else None,
    )


def _as_it_is(request: HttpRequest, json: bytes) -> Raw:
    return Raw(_pack(json) if request.wants_packed else json)


def _callback(record: Record) -> ResultCallback | None:
    try:
        return msgspec.json.decode(record.body.payload, type=ResultCallback)
    except msgspec.MsgspecError:
        return None


def _view(record: Record) -> wire.DeliveryView:
    task, callback, index = record.task, _callback(record), lifecycle.position(record.task)
    return wire.DeliveryView(
        id=task.id,
        task_id=callback.task_id if callback else "",
        command=callback.command if callback else "",
        url=callback.url if callback else "",
        state="delivered" if task.status is Status.COMPLETED else str(index),
        attempts=task.attempts,
        max_attempts=task.max_attempts,
        created_at=times.text(task.created_ms),
        updated_at=times.text(task.updated_ms),
        next_attempt_at=times.text(task.visible_ms) if index is Index.DELAYED else None,
        ended_at=times.optional(task.ended_ms),
        last_error=task.last_error,
    )
