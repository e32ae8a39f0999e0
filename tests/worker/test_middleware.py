"""Middleware around handlers, the log records of handlers, and the trace that goes on in them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worker import handlers

import codeq
from codeq.errors import InvalidRequest


def outer(job: codeq.RunningJob, call: Callable[[], Any]) -> Any:
    """For a process: a function of a module."""
    return ["outer", call()]


def inner(job: codeq.RunningJob, call: Callable[[], Any]) -> Any:
    return ["inner", job.command, call()]


@pytest.mark.parametrize("process", [False, True])
def test_the_first_middleware_is_the_outermost_and_may_change_the_result(process: bool, embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant(f"middleware-{process}")
    worker = codeq.Worker(processes=process, concurrency=1)
    worker.middleware(outer)
    worker.task("echo")(handlers.echo)
    worker.middleware(inner)
    task = queue.enqueue("echo", 1)
    worker.run(queue, until_idle=True)
    assert queue.wait(task.id, 5) == ["outer", ["inner", "echo", 1]]


def test_async_middleware_wraps_async_handlers(queue: codeq.Client) -> None:
    worker = codeq.Worker()

    @worker.middleware
    async def around(job: codeq.RunningJob, call: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(0)
        return [job.id, codeq.current_job().id, await call()]

    @worker.middleware
    def plain(job: codeq.RunningJob, call: Callable[[], Any]) -> Any:
        return call()

    worker.task("echo")(handlers.echo_async)
    task = queue.enqueue("echo", 1)
    worker.run(queue, until_idle=True)
    assert queue.wait(task.id, 5) == [task.id, task.id, 1]


def test_async_middleware_around_a_plain_function_is_refused_at_the_start(embedded: codeq.Queue) -> None:
    worker = codeq.Worker()
    worker.task("plain")(handlers.echo)

    @worker.middleware
    async def around(job: codeq.RunningJob, call: Callable[[], Any]) -> Any:
        return await call()

    with pytest.raises(InvalidRequest, match="cannot wrap plain functions, as that of 'plain'"):
        worker.run(embedded, until_idle=True)


def test_what_a_middleware_raises_counts_as_raised_by_the_handler(queue: codeq.Client) -> None:
    worker = codeq.Worker()

    @worker.middleware
    def around(job: codeq.RunningJob, call: Callable[[], Any]) -> Any:
        raise codeq.Fail("not today")

    worker.task("echo")(handlers.echo)
    task = queue.enqueue("echo", 1)
    worker.run(queue, until_idle=True)
    assert queue.get(task.id).task.error == "not today"


def test_a_middleware_sees_what_the_handler_raises_and_may_turn_it_into_a_result(queue: codeq.Client) -> None:
    worker = codeq.Worker()

    @worker.middleware
    def around(job: codeq.RunningJob, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ValueError as fault:
            return f"saved from {fault}"

    worker.task("fail")(handlers.fail)
    task = queue.enqueue("fail", 1)
    worker.run(queue, until_idle=True)
    assert queue.wait(task.id, 5) == "saved from try of 1"


def test_log_records_name_the_task_wherever_they_are_made(
    embedded: codeq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = embedded.for_tenant("logs")
    worker = codeq.Worker()

    @worker.task("plain")
    def plain(_: object) -> None:
        logging.getLogger("elsewhere").warning("in a thread")

    @worker.task("awaited")
    async def as_async(_: object, job: codeq.RunningJob) -> None:
        await asyncio.sleep(0.01)
        job.log.warning("on the loop", extra={"command": "my own", "task_id": "too"})

    tasks = [queue.enqueue("plain", 1), queue.enqueue("awaited", 1)]
    worker.run(queue, until_idle=True)
    logging.getLogger("elsewhere").warning("outside")
    said = {
        record.message: (record.__dict__["codeq_task_id"], record.__dict__["codeq_command"])
        for record in caplog.records
        if record.levelno == logging.WARNING
    }
    assert said == {
        "in a thread": (tasks[0].id, "plain"),
        "on the loop": (tasks[1].id, "awaited"),
        "outside": ("", ""),
    }
    assert {record.name for record in caplog.records} >= {"elsewhere", "codeq.task.awaited"}
