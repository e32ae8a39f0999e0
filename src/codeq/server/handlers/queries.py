"""Routes that read: a task, its result and history, lists of tasks, queues."""

from contextlib import nullcontext

from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import LIST_TASKS_MAX, PIECE_BYTES_MAX, RESULT_WAIT_MS_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import Filter, Record
from codeq.domain.task import Status
from codeq.server.auth.principal import EVERY_COMMAND
from codeq.server.request import HttpRequest, HttpResponse, whole_number
from codeq.server.state import AppState
from codeq.usecases import queries
from codeq.usecases.budget import LoopBudget
from codeq.wire import queues as wire_queues
from codeq.wire import tasks as wire
from codeq.wire import times
from codeq.wire.errors import Forbidden
from codeq.wire.events import History, event


async def get_task(state: AppState, request: HttpRequest) -> HttpResponse:
    record = await visible_record(state, request, 0)
    return request.respond(200, wire.view(record.task, record.body))


async def get_result(state: AppState, request: HttpRequest) -> HttpResponse:
    seconds = request.query(("waitSeconds",)).get("waitSeconds", "0")
    wait_ms = 0
    if seconds.isascii() and seconds.isdigit():  # as in the original codeQ, a value that is not a number means no wait
        wait_ms = min(int(seconds[:9]) * 1000, RESULT_WAIT_MS_MAX)
    record = await visible_record(state, request, state.wait_ms(wait_ms))
    if not record.task.status.is_final:
        raise NotFound("result not found: the task has not ended")
    packed = request.wants_packed
    view = wire.view(record.task, record.body)
    return request.respond(
        200,
        wire.TaskAndResult(
            task=view, result=wire.result_view(record.task, record.result, record.artifacts, packed=packed)
        ),
    )


async def get_history(state: AppState, request: HttpRequest) -> HttpResponse:
    record = await visible_record(state, request, 0)
    moves = await queries.history(state.core, request.tenant, record.task.id)
    views = map(event, moves)
    budget = LoopBudget(state.core, request.tenant)
    return await request.respond_in_pieces(
        200, views, lambda parts: History(task_id=record.task.id, events=parts), budget
    )


async def list_tasks(state: AppState, request: HttpRequest) -> HttpResponse:
    query = request.query(("command", "status", "queue", "error", "createdFrom", "createdTo", "cursor", "limit"))
    command = query.get("command")
    if not request.principal.may_see(command or EVERY_COMMAND):
        raise Forbidden("a worker lists the tasks of a command that its token names")
    try:
        wanted = Filter(
            command=command,
            status=Status(query["status"]) if "status" in query else None,
            index=Index(query["queue"]) if "queue" in query else None,
            error=query.get("error"),
            created_from_ms=times.parse(query["createdFrom"]) if "createdFrom" in query else 0,
            created_to_ms=times.parse(query["createdTo"]) if "createdTo" in query else 1 << 62,
        )
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"a filter cannot be read: {fault}") from None
    limit = whole_number(query.get("limit", "100"), "limit", 1, LIST_TASKS_MAX)
    return await page_of(state, request, wanted, query.get("cursor"), limit=limit)


async def page_of(
    state: AppState, request: HttpRequest, wanted: Filter, cursor: str | None, *, limit: int
) -> HttpResponse:
    async with state.page_reads.held(request.tenant):
        records, cursor = await queries.find_records(state.core, request.tenant, wanted, cursor=cursor, limit=limit)
        views = (wire.view(record.task, record.body) for record in records)
        budget = LoopBudget(state.core, request.tenant)
        return await request.respond_in_pieces(
            200, views, lambda parts: wire.TaskPage(tasks=parts, cursor=cursor), budget
        )


async def list_queues(state: AppState, request: HttpRequest) -> HttpResponse:
    found = await queries.queues(state.core, request.tenant)
    views = (wire_queues.queue_view(status) for status in found if request.principal.may_see(status.key.command))
    budget = LoopBudget(state.core, request.tenant)
    return await request.respond_in_pieces(200, views, lambda parts: wire_queues.QueueViews(queues=parts), budget)


async def visible_record(state: AppState, request: HttpRequest, wait_ms: int) -> Record:
    """Returns the task of the path if the caller may see it. A large one, whose answer takes a few milliseconds, is
    read again at its turn: thousands of callers may wait for theirs, and none holds a copy meanwhile."""
    task_id = request.params["id"]
    with state.long_polls.held(request.tenant) if wait_ms else nullcontext():
        record = await request.unless_disconnected(
            lambda ms: queries.get(state.core, request.tenant, task_id, wait_ms=ms), wait_ms
        )
    if not request.principal.may_see(record.task.command):
        raise NotFound(f"there is no task {task_id[:64]!r}")
    if record.task.payload_bytes + len(record.result or b"") > PIECE_BYTES_MAX:
        del record
        await LoopBudget(state.core, request.tenant).yield_if_spent()
        return await queries.get(state.core, request.tenant, task_id)
    return record
