"""How many handlers run at once, in which order, and what is left for other workers."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import eventually
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import at_work, make_worker, moves

import codeq
from codeq.sdk.http import HttpBackend


class Crowd:
    """Handlers that wait for one another: `size` of them must be there at once for any to go on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size, timeout=20)
        self._gate: asyncio.Barrier | None = None

    def enter(self, _: object) -> None:
        self._count(1)
        self._barrier.wait()
        self._count(-1)

    async def enter_async(self, _: object) -> None:
        self._gate = self._gate or asyncio.Barrier(self.size)
        self._count(1)
        async with asyncio.timeout(20):
            await self._gate.wait()
        self._count(-1)

    def _count(self, by: int) -> None:
        with self._lock:
            self.inside += by
            self.most = max(self.most, self.inside)


@pytest.mark.parametrize("how", ["enter", "enter_async"])
def test_as_many_handlers_run_at_once_as_were_asked_for_and_never_more(how: str, queue: codeq.Client) -> None:
    crowd = Crowd(5)
    worker = codeq.Worker(concurrency=5, prefetch=20)
    worker.task("work")(getattr(crowd, how))
    tasks = [queue.enqueue("work", number) for number in range(50)]
    worker.run(queue, until_idle=True)
    assert {queue.get(task.id).task.status for task in tasks} == {codeq.Status.COMPLETED}
    assert crowd.most == 5


def test_as_many_processes_work_at_once_as_were_asked_for_and_never_more(embedded: codeq.Queue, tmp_path: Path) -> None:
    queue = embedded.for_tenant("processes")
    for number in range(4):
        queue.enqueue("hold_up", str(tmp_path / str(number)))
    with at_work(make_worker({"hold_up": {}}, processes=True, concurrency=2, prefetch=4), queue):
        eventually(lambda: len(_begun(tmp_path, 4)) == 2, 20)
        eventually(lambda: queue.queues()["hold_up"].in_progress == 4)
        assert _begun(tmp_path, 4) == ["0", "1"]
        for number in range(4):
            may_go_on(tmp_path / str(number))
        eventually(lambda: len(_begun(tmp_path, 4)) == 4, 20)
    assert len({lines(tmp_path / str(number))[0] for number in range(4)}) == 2


def _begun(folder: Path, count: int) -> list[str]:
    return [str(number) for number in range(count) if lines(folder / str(number))]


def test_a_place_that_is_free_is_filled_while_the_others_are_busy(queue: codeq.Client, tmp_path: Path) -> None:
    """Nine tenths of the worker may be busy for hours."""
    with at_work(make_worker({"hold_up": {}, "echo": {}}, concurrency=10), queue):
        for number in range(9):
            queue.enqueue("hold_up", str(tmp_path / str(number)))
        eventually(lambda: len(_begun(tmp_path, 9)) == 9)
        for number in range(3):
            assert queue.wait(queue.enqueue("echo", number).id, 10) == number
        for number in range(9):
            may_go_on(tmp_path / str(number))


def test_a_slow_worker_leaves_to_others_what_it_cannot_begin(queue: codeq.Client, tmp_path: Path) -> None:
    tasks = [queue.enqueue("hold_up", str(tmp_path / str(number))) for number in range(8)]
    with at_work(make_worker({"hold_up": {}}, concurrency=2), queue):
        eventually(lambda: len(_begun(tmp_path, 8)) == 2)
        with at_work(make_worker({"hold_up": {}}, concurrency=2), queue):
            eventually(lambda: len(_begun(tmp_path, 8)) == 4)
            counts = queue.queues()["hold_up"]
            assert (counts.in_progress, counts.pending) == (4, 4)
            for number in range(8):
                may_go_on(tmp_path / str(number))
            assert [queue.wait(task.id, 20) for task in tasks] == ["done"] * 8
    assert {tuple(moves(queue, task)) for task in tasks} == {("enqueue", "claim", "complete")}


def test_higher_priorities_come_first_and_equal_ones_in_their_order(queue: codeq.Client) -> None:
    seen: list[Any] = []
    worker = codeq.Worker(concurrency=1)
    worker.task("work")(seen.append)
    for number in range(20):
        queue.enqueue("work", [number % 10, number], priority=number % 10)
    worker.run(queue, until_idle=True)
    assert seen == sorted(seen, key=lambda pair: (-pair[0], pair[1]))


def test_until_idle_waits_for_what_runs_and_does_what_that_enqueues(queue: codeq.Client) -> None:
    seen: list[int] = []
    worker = codeq.Worker(concurrency=3)

    @worker.task("chain")
    def chain(payload: int) -> None:
        time.sleep(0.02)
        seen.append(payload)
        if payload:
            queue.enqueue("chain", payload - 1)

    queue.enqueue("chain", 5)
    later = queue.enqueue("chain", 99, delay=3600)
    worker.run(queue, until_idle=True)
    assert seen == [5, 4, 3, 2, 1, 0]
    assert queue.get(later.id).task.status is codeq.Status.PENDING


def test_many_short_tasks_are_done_once_each(queue: codeq.Client) -> None:
    done: list[int] = []
    worker = codeq.Worker()
    worker.task("work")(done.append)
    for start in range(0, 3000, 1000):
        queue.enqueue_many(codeq.new_tasks("work", range(start, start + 1000)))
    worker.run(queue, until_idle=True)
    assert sorted(done) == list(range(3000))
    assert queue.queues().get("work", codeq.QueueInfo()) == codeq.QueueInfo()


def test_until_idle_does_what_was_put_back_while_a_claim_found_nothing(
    queue: codeq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is answered before the nack, and its answer arrives after that of the nack."""
    claim, nack = HttpBackend.claim, HttpBackend.nack
    found_nothing, was_put_back = asyncio.Event(), asyncio.Event()

    async def late_claim(backend: HttpBackend, wanted: Any) -> Any:
        jobs = await claim(backend, wanted)
        if not jobs:
            found_nothing.set()
            await was_put_back.wait()
        return jobs

    async def later_nack(backend: HttpBackend, *job: Any, **options: Any) -> Any:
        await found_nothing.wait()
        answer = await nack(backend, *job, **options)
        asyncio.get_running_loop().call_later(0.05, was_put_back.set)  # once the worker has heard of it
        return answer

    monkeypatch.setattr(HttpBackend, "claim", late_claim)
    monkeypatch.setattr(HttpBackend, "nack", later_nack)
    worker = codeq.Worker(concurrency=1)

    @worker.task("again")
    def again(payload: Any, job: codeq.RunningJob) -> str:
        if job.attempt == 1:
            raise codeq.Retry(0)
        return "done"

    task = queue.enqueue("again")
    worker.run(queue, until_idle=True)
    assert queue.get(task.id).task.status is codeq.Status.COMPLETED
