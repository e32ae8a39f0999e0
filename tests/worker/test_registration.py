"""Declaring tasks: what the decorator and the settings take, and what they refuse, with words that help."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from tests.worker import handlers

import codeq
from codeq.errors import InvalidRequest


def gathers(*payload: object) -> None: ...
def gathers_names(**payload: object) -> None: ...
def yields(payload: object) -> Any:
    yield payload


class Shop:
    def sell(self, payload: object) -> None: ...


async def yields_async(payload: object) -> Any:
    yield payload


@pytest.mark.parametrize("function", [gathers, gathers_names, yields, yields_async, print, 5, Shop.sell])
def test_a_function_that_cannot_be_a_handler_is_refused_where_it_is_declared(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidRequest, match="a handler"):
        codeq.Worker().task("work")(function)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1001}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"prefetch": 3}, "prefetch"),
        ({"prefetch": 1001}, "prefetch"),
        (
            {"threads": 2, "prefetch": 4},
            r"prefetch \(at least as many as run at once\) must be a whole number from 16 ",
        ),
        ({"lease": 0.5}, "lease"),
        ({"lease": 13 * 3600}, "lease"),
        ({"lease": "soon"}, "a time is"),
        ({"grace": -1}, "grace"),
        ({"grace": float("nan")}, "a time is"),
        ({"silence": 0}, "silence"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        codeq.Worker(**settings)


def test_what_is_added_is_declared_and_its_options_are_checked_too() -> None:
    worker = codeq.Worker()
    with pytest.raises(InvalidRequest, match="no such option: timeot; there are backoff,"):
        worker.add(codeq.task("echo")(handlers.echo), timeot=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match=r"declared with @codeq.task\(\), not 'echo'"):
        worker.add("echo")  # type: ignore[arg-type]
    assert worker.commands == ()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lease": 0.1}, "lease"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -3}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 101}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"timeot": 3}, "no such option: timeot; there are backoff,"),
        ({"backoff": 3}, "a backoff is made by"),
        ({"retry_on": "TimeoutError"}, "classes of errors, not 'TimeoutError'"),
    ],
)
def test_care_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        codeq.Worker().task("work", **settings)(handlers.echo)


@pytest.mark.parametrize("command", ["", "two words", "a/b", "..", "x" * 65, 7])
def test_a_command_that_no_task_can_have_is_refused(command: str) -> None:
    with pytest.raises(InvalidRequest, match="command must be"):
        codeq.Worker().task(command)


def test_a_command_has_one_function() -> None:
    worker = codeq.Worker()
    worker.task("work")(handlers.echo)
    with pytest.raises(InvalidRequest, match="two functions for the command 'work'"):
        worker.task("work")


def test_a_worker_does_a_bounded_number_of_commands() -> None:
    worker = codeq.Worker()
    for number in range(64):
        worker.task(f"work-{number}")(handlers.echo)
    with pytest.raises(InvalidRequest, match="at most 64"):
        worker.task("one-more")


def test_an_async_function_has_no_place_in_a_process() -> None:
    with pytest.raises(InvalidRequest, match="event loop"):
        codeq.Worker().task("work", process=True)(handlers.echo_async)


def test_a_function_of_no_module_has_no_place_in_a_process(embedded: codeq.Queue) -> None:
    worker = codeq.Worker(processes=True)
    worker.task("work")(lambda payload: payload)
    with pytest.raises(InvalidRequest, match="must be a function of a module"):
        worker.run(embedded, until_idle=True)


def test_the_decorated_function_can_still_be_called() -> None:
    worker = codeq.Worker()
    echo = worker.task("work")(handlers.echo)
    assert (echo(3), echo.command, echo.function, echo.__name__) == (3, "work", handlers.echo, "echo")
    assert worker.commands == ("work",)


def test_a_worker_without_a_queue_or_without_tasks_says_so(embedded: codeq.Queue) -> None:
    worker = codeq.Worker()
    with pytest.raises(InvalidRequest, match="no functions"):
        worker.run(embedded)
    worker.task("work")(handlers.echo)
    with pytest.raises(InvalidRequest, match="no queue"):
        worker.run()


class Callable2:
    async def __call__(self, payload: int) -> int:
        return payload + 1


def plus(amount: int, payload: int) -> int:
    return payload + amount


def test_partial_functions_and_callable_objects_are_handlers_too(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("callables")
    worker = codeq.Worker()
    worker.task("partial")(functools.partial(plus, 10))
    worker.task("object")(Callable2())
    tasks = [queue.enqueue("partial", 1), queue.enqueue("object", 1)]
    worker.run(queue, until_idle=True)
    assert [queue.wait(task.id, 5) for task in tasks] == [11, 2]


def test_a_second_parameter_with_a_default_keeps_it(embedded: codeq.Queue) -> None:
    queue = embedded.for_tenant("defaults")
    worker = codeq.Worker()

    @worker.task("work")
    def work(payload: int, times: int = 3) -> int:
        return payload * times

    task = queue.enqueue("work", 2)
    worker.run(queue, until_idle=True)
    assert queue.wait(task.id, 5) == 6


def test_a_worker_whose_token_is_not_accepted_says_so_and_ends(server: Any) -> None:
    worker = codeq.Worker(server.base)
    worker.task("work")(handlers.echo)
    with pytest.raises(codeq.errors.Unauthenticated):
        worker.run(codeq.Client(server.base, "nonsense"))


def test_a_worker_that_may_not_claim_says_so_and_ends(server: Any) -> None:
    token = server.token("declaring", "worker", commands=["other"])
    worker = codeq.Worker()
    worker.task("work")(handlers.echo)
    with pytest.raises(codeq.errors.Forbidden):
        worker.run(codeq.Client(server.base, token))


def test_a_decorator_without_parentheses_says_that_they_are_missing() -> None:
    undecorated: Any = handlers.echo
    worker: Any = codeq.Worker()
    for decorate, name in (
        (codeq.task, "codeq.task"), (worker.task, "worker.task"), (worker.batch, "worker.batch"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=rf"write @{name}\(\) with parentheses"):
            decorate(undecorated)


def test_a_worker_of_something_that_is_no_queue_says_so() -> None:
    something: Any = 5
    with pytest.raises(InvalidRequest, match="a queue is a server's address, a client or an opened queue, not 5"):
        codeq.Worker(something)
    worker = codeq.Worker()
    worker.task("work")(handlers.echo)
    with pytest.raises(InvalidRequest, match="not 5"):
        worker.run(something)


def test_run_inside_an_event_loop_says_what_to_await(embedded: codeq.Queue) -> None:
    worker = codeq.Worker(embedded)
    worker.task("work")(handlers.echo)

    async def as_in_a_notebook() -> None:
        with pytest.raises(InvalidRequest, match=r"await worker\.run_async\(\)"):
            worker.run(until_idle=True)
        await worker.run_async(until_idle=True)

    asyncio.run(as_in_a_notebook())
