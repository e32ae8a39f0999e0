"""Enqueues that travel together: none lost, none doubled, in order, and each gets its own answer."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from tests.sdk.clients import WORKER, Clients, token_for
from tests.sdk.proxy import Proxy, answer, hang, lose_answer
from tests.server.server_process import Server, eventually

from codeq import Client, NewTask, Task
from codeq.domain.limits import PAYLOAD_BYTES_MAX
from codeq.errors import InvalidRequest, Unreachable
from codeq.sdk.batcher import BATCHES_WAITING_MAX, Answers, Batcher
from codeq.sdk.blocking import BlockingVerbs


@pytest.fixture(params=["Client", "open"])
def plain(request: pytest.FixtureRequest, clients: Clients) -> BlockingVerbs:
    return clients.queue(request.param)


class Door:
    """Where a batcher sends its batches: notes them, and can be kept shut."""

    def __init__(self) -> None:
        self.batches: list[list[NewTask]] = []
        self.is_open = threading.Event()
        self.is_open.set()

    def prepare(self, tasks: Sequence[NewTask]) -> Callable[[bool], Answers]:
        return partial(self, tasks)

    def __call__(self, tasks: Sequence[NewTask], retry: bool = True) -> Answers:  # noqa: ARG002
        self.batches.append(list(tasks))
        assert self.is_open.wait(30)
        return [InvalidRequest(task.command) for task in tasks]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def drained(queue: BlockingVerbs) -> list[object]:
    """The payloads of all that is pending, in the order in which workers get them."""
    found: list[object] = []
    while jobs := queue.claim("work", worker=WORKER, limit=1000):
        found += [job.payload for job in jobs]
    return found


def test_what_is_put_in_comes_out_in_order_once(plain: BlockingVerbs) -> None:
    with plain.batcher(size=64) as batcher:
        tickets = [batcher.enqueue("work", n) for n in range(1000)]
    assert batcher.sent == 1000
    assert batcher.refusals == []
    assert all(ticket.is_done for ticket in tickets)
    assert len({ticket.task().id for ticket in tickets}) == 1000
    assert drained(plain) == list(range(1000))


def test_a_ticket_is_the_task_that_was_put(plain: BlockingVerbs) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with plain.batcher() as batcher:
        later = batcher.enqueue("work", {"n": 1}, delay=timedelta(hours=1), priority=4, max_attempts=2)
        at = batcher.enqueue("work", {"n": 2}, run_at=moment, idempotency_key="k")
        task = later.task(30)
        assert plain.get(task.id).task == task
        assert (task.priority, task.max_attempts, task.visible_at) == (4, 2, task.created_at + timedelta(hours=1))
        assert at.task(30).visible_at == moment


def test_an_option_that_is_not_known_is_refused_at_once(plain: BlockingVerbs) -> None:
    with plain.batcher() as batcher:
        for options in ({"colour": "red"}, {"delay": "soon"}, {"run_at": "tomorrow"}):
            with pytest.raises(InvalidRequest):
                batcher.enqueue("work", 1, **options)  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest):
            batcher.enqueue("work", object())
        with pytest.raises(InvalidRequest, match="bytes"):
            batcher.put(NewTask(command="work", payload=5))  # type: ignore[arg-type]
    assert plain.queues() == {}


def test_a_refused_task_leaves_the_others_alone_and_is_reported(plain: BlockingVerbs) -> None:
    batcher = plain.batcher(size=10)
    with pytest.raises(InvalidRequest, match="command"), batcher:
        tickets = [batcher.enqueue("not a command" if n == 13 else "work", n) for n in range(30)]
    with pytest.raises(InvalidRequest, match="command"):
        tickets[13].task()
    assert [type(fault) for fault in batcher.refusals] == [InvalidRequest]
    assert drained(plain) == [n for n in range(30) if n != 13]


def test_flush_returns_when_all_so_far_are_there(plain: BlockingVerbs) -> None:
    with plain.batcher(size=1000, linger=60) as batcher:
        tickets = [batcher.enqueue("work", n) for n in range(10)]
        assert not tickets[0].is_done
        batcher.flush()
        assert plain.queues()["work"].pending == 10
        assert all(ticket.is_done for ticket in tickets)
        batcher.flush()


def test_what_waits_is_sent_when_the_block_ends_whatever_ends_it(plain: BlockingVerbs) -> None:
    batcher = plain.batcher(size=1000, linger=60)
    batcher.enqueue("work", 1)
    batcher.enqueue("not a command", 2)
    with pytest.raises(ZeroDivisionError), batcher:
        raise ZeroDivisionError
    assert drained(plain) == [1]
    batcher.close()
    with pytest.raises(InvalidRequest, match="closed"):
        batcher.enqueue("work", 2)


def test_what_lingers_is_sent_by_itself(plain: BlockingVerbs) -> None:
    with plain.batcher(size=1000, linger=0.01) as batcher:
        batcher.enqueue("work", 1)
        eventually(lambda: plain.queues().get("work"))
        ticket = batcher.enqueue("work", 2)
        assert ticket.task(30).command == "work"


def test_threads_share_a_batcher(plain: BlockingVerbs) -> None:
    with plain.batcher(size=50) as batcher, ThreadPoolExecutor(8) as pool:

        def produce(thread: int) -> list[Task]:
            return [ticket.task(30) for ticket in [batcher.enqueue("work", [thread, n]) for n in range(200)]]

        tasks = [task for made in pool.map(produce, range(8)) for task in made]
    assert len({task.id for task in tasks}) == 1600
    found = drained(plain)
    for thread in range(8):
        assert [payload for payload in found if payload[0] == thread] == [[thread, n] for n in range(200)]  # type: ignore[index]


@pytest.mark.parametrize("size", [0, -1, 1001])
def test_a_batch_has_a_size_that_can_be_sent(plain: BlockingVerbs, size: int) -> None:
    with pytest.raises(InvalidRequest, match="1000"):
        plain.batcher(size=size)


def test_a_batch_is_sent_when_it_is_full_and_not_before() -> None:
    door = Door()
    batcher = Batcher(door.prepare, size=7, linger_s=60)
    for n in range(20):
        batcher.enqueue("work", n)
    eventually(lambda: door.sizes == [7, 7])
    batcher.close()
    assert door.sizes == [7, 7, 6]


def test_a_batch_of_large_tasks_is_sent_before_it_is_too_large() -> None:
    door = Door()
    batcher = Batcher(door.prepare, size=1000, linger_s=60)
    for _ in range(12):
        batcher.enqueue("work", "x" * (PAYLOAD_BYTES_MAX - 2))
    batcher.close()
    assert door.sizes == [4, 4, 4]


def test_whoever_enqueues_faster_than_the_queue_takes_must_wait() -> None:
    door = Door()
    door.is_open.clear()
    batcher = Batcher(door.prepare, size=2, linger_s=60)
    put: list[int] = []

    def produce() -> None:
        for n in range(100):
            batcher.enqueue("work", n)
            put.append(n)

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce)
        most = 2 * (BATCHES_WAITING_MAX + 2)  # one is on its way, and one is ready to go
        eventually(lambda: len(put) == most)
        assert door.sizes == [2]
        assert not producing.done()
        assert len(put) == most
        door.is_open.set()
        producing.result(30)
    batcher.close()
    assert [int(task.payload) for batch in door.batches for task in batch] == list(range(100))


def test_a_failure_that_nobody_foresaw_reaches_those_who_wait_and_stops_nothing() -> None:
    faults = [ZeroDivisionError("unforeseen"), None]

    def send(tasks: Sequence[NewTask], retry: bool = True) -> Answers:
        if fault := faults.pop(0):
            raise fault
        return [InvalidRequest("second")] * len(tasks)

    batcher = Batcher(lambda tasks: partial(send, tasks), size=1, linger_s=60)
    first, second = batcher.enqueue("work", 1), batcher.enqueue("work", 2)
    with pytest.raises(ZeroDivisionError, match="unforeseen"):
        first.task(30)
    with pytest.raises(InvalidRequest, match="second"):
        second.task(30)
    batcher.close()
    assert [type(fault) for fault in batcher.refusals] == [ZeroDivisionError, InvalidRequest]


def test_a_ticket_that_takes_too_long_says_so() -> None:
    door = Door()
    door.is_open.clear()
    batcher = Batcher(door.prepare, size=1, linger_s=60)
    ticket = batcher.enqueue("work", 1)
    with pytest.raises(TimeoutError):
        ticket.task(0.01)
    door.is_open.set()
    with pytest.raises(InvalidRequest):
        ticket.task(30)
    batcher.close()


def test_a_server_that_is_away_for_a_while_costs_nothing_but_time(server: Server, proxy: Proxy) -> None:
    with Client(proxy.url, token_for(server), timeout=0.5) as client:
        with client.batcher(size=20, linger=0.001) as batcher:
            for n in range(300):
                if n == 100:
                    proxy.script(lose_answer, answer(503), hang, lose_answer)
                if n == 200:
                    proxy.down()
                    threading.Timer(0.5, proxy.up).start()
                batcher.enqueue("work", n)
        assert batcher.sent == 300
        assert drained(client) == list(range(300))


def test_a_batch_that_could_not_be_sent_tells_each_of_its_tickets(server: Server, proxy: Proxy) -> None:
    with Client(proxy.url, token_for(server), retry_for=0) as client:
        batcher = client.batcher(size=5, linger=60)
        proxy.down()
        tickets = [batcher.enqueue("work", n) for n in range(5)]
        for ticket in tickets:
            with pytest.raises(Unreachable):
                ticket.task(30)
        proxy.up()
        batcher.enqueue("work", "later")
        batcher.close()
        assert [type(fault) for fault in batcher.refusals] == [Unreachable]
        assert (batcher.sent, drained(client)) == (1, ["later"])


def test_a_close_that_is_interrupted_still_ends_the_threads() -> None:
    door = Door()
    door.is_open.clear()

    def interrupted(tasks: Sequence[NewTask], retry: bool = True) -> Answers:
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C, while the main thread waits for this batch
        return door(tasks, retry)

    before = set(threading.enumerate())
    batcher = Batcher(lambda tasks: partial(interrupted, tasks), size=500, linger_s=60)
    ticket = batcher.enqueue("work", 1)
    with pytest.raises(KeyboardInterrupt):
        batcher.close()
    door.is_open.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(InvalidRequest, match="work"):
        ticket.task(30)
