"""What everyone may look at: a task, its result and history, lists of tasks, queues."""

from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import LIST_TASKS_MAX, RESULT_WAIT_MS_MAX
from codeq.domain.queue import Index
from codeq.domain.requests import Filter
from codeq.domain.task import Status
from codeq.server.auth.principal import EVERY_COMMAND
from codeq.server.calls import Call, Reply, whole_number
from codeq.server.parts import Parts
from codeq.store.interface import Record
from codeq.usecases import inspect
from codeq.wire import queues as wire_queues
from codeq.wire import tasks as wire
from codeq.wire import times
from codeq.wire.errors import Forbidden
from codeq.wire.events import History, event


async def get_task(parts: Parts, call: Call) -> Reply:
    record = await _seen(parts, call, 0)
    return call.answer(200, wire.view(record.task, record.body))


async def get_result(parts: Parts, call: Call) -> Reply:
    given = call.query(("waitSeconds",)).get("waitSeconds", "0")
    wait_ms = 0
    if given.isascii() and given.isdigit():  # as in the original, what is no number is no wait
        wait_ms = min(int(given[:9]) * 1000, RESULT_WAIT_MS_MAX)
    record = await _seen(parts, call, parts.wait_ms(wait_ms))
    if not record.task.status.is_final:
        raise NotFound("result not found: the task has not ended")
    packed = call.wants_packed
    view = wire.view(record.task, record.body)
    return call.answer(
        200, wire.TaskAndResult(task=view, result=wire.result_view(record.task, record.result, packed=packed))
    )


async def get_history(parts: Parts, call: Call) -> Reply:
    record = await _seen(parts, call, 0)
    moves = await inspect.history(parts.core, call.tenant, record.task.id)
    return call.answer(200, History(task_id=record.task.id, events=[event(task) for task in moves]))


async def list_tasks(parts: Parts, call: Call) -> Reply:
    given = call.query(("command", "status", "queue", "error", "createdFrom", "createdTo", "cursor", "limit"))
    command = given.get("command")
    if not call.principal.may_see(command or EVERY_COMMAND):
        raise Forbidden("a worker lists the tasks of a command that its token names")
    try:
        wanted = Filter(
            command=command,
            status=Status(given["status"]) if "status" in given else None,
            index=Index(given["queue"]) if "queue" in given else None,
            error=given.get("error"),
            created_from_ms=times.parse(given["createdFrom"]) if "createdFrom" in given else 0,
            created_to_ms=times.parse(given["createdTo"]) if "createdTo" in given else 1 << 62,
        )
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"a filter cannot be read: {fault}") from None
    limit = whole_number(given.get("limit", "100"), "limit", 1, LIST_TASKS_MAX)
    return await page_of(parts, call, wanted, given.get("cursor"), limit=limit)


async def page_of(parts: Parts, call: Call, wanted: Filter, cursor: str | None, *, limit: int) -> Reply:
    page = await inspect.find(parts.core, call.tenant, wanted, cursor=cursor, limit=limit)
    records = await parts.core.store.read(call.tenant, [task.id for task in page.tasks])
    views = [wire.view(record.task, record.body) for record in records if record is not None]
    return call.answer(200, wire.TaskPage(tasks=views, cursor=page.cursor))


async def list_queues(parts: Parts, call: Call) -> Reply:
    counts = await inspect.counts(parts.core, call.tenant)
    now_ms = parts.core.store.now_ms()
    views = [
        wire_queues.queue_view(key, counted, now_ms=now_ms, paused=parts.core.policy(*key).paused)
        for key, counted in sorted(counts.items())
        if call.principal.may_see(key.command)
    ]
    return call.answer(200, wire_queues.QueueViews(queues=views))


async def _seen(parts: Parts, call: Call, wait_ms: int) -> Record:
    task_id = call.params["id"]
    reading = inspect.get(parts.core, call.tenant, task_id, wait_ms=wait_ms)
    record = await (call.unless_gone(reading) if wait_ms else reading)
    if not call.principal.may_see(record.task.command):
        raise NotFound(f"there is no task {task_id[:64]!r}")
    return record
