"""Waiting callers are woken by the event, first come first served, and no task is lost to one that disconnected."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from codeq.domain.errors import NotFound, StoreFailed, StoreUnavailable
from codeq.domain.queue import QueueKey
from codeq.domain.requests import Delivery
from codeq.domain.task import Body, Move, Status, Task
from codeq.usecases.waiters import EVERY, Waiters

MAIL, SMS = QueueKey("acme", "mail"), QueueKey("acme", "sms")
ALL_OF_ACME = QueueKey("acme", EVERY)
LONG_MS = 60_000


def delivery(name: str) -> Delivery:
    task = Task(
        name, "acme", "mail", 0, Status.IN_PROGRESS, 1, 0, Move.CLAIM, Status.PENDING, 0, 0, 0, 0, 5, 1, 100, 1, "ann",
        1, None, None, 0, 0, 0, None, None, False,
    )  # fmt: skip
    return Delivery(task, Body(b""))


def ended(name: str, status: Status = Status.COMPLETED) -> Task:
    return msgspec.structs.replace(delivery(name).task, status=status)


async def not_yet() -> bool:
    return False


def names(deliveries: Sequence[Delivery]) -> list[str]:
    return [one.task.id for one in deliveries]


class FakeClaim:
    """A claim whose steps are parameters."""

    def __init__(
        self,
        queues: Sequence[QueueKey],
        take: Callable[[], Awaitable[list[Delivery]]],
        hand_back: Callable[[Sequence[Delivery]], Awaitable[None]],
    ) -> None:
        self.queues = queues
        self._take = take
        self._hand_back = hand_back

    async def take(self) -> list[Delivery]:
        return await self._take()

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._hand_back(deliveries)


class Queues:
    """Waiting claims on queues of names, with a record of which claims were tried and which tasks were returned."""

    def __init__(self) -> None:
        self.waiters = Waiters()
        self.stock: dict[QueueKey, deque[str]] = {MAIL: deque(), SMS: deque()}
        self.attempted: list[str] = []
        self.returned: list[str] = []
        self.gate: asyncio.Event | None = None
        self.in_attempt = asyncio.Event()

    def put(self, queue: QueueKey, *tasks: str) -> None:
        self.stock[queue].extend(tasks)
        self.waiters.ready(queue, len(tasks))

    async def take(self, who: str, queues: list[QueueKey]) -> list[Delivery]:
        self.attempted.append(who)
        self.in_attempt.set()
        if self.gate is not None:
            await self.gate.wait()
        for queue in queues:
            if self.stock[queue]:
                return [delivery(self.stock[queue].popleft())]
        return []

    async def hand_back(self, unwanted: Sequence[Delivery]) -> None:
        self.returned += names(unwanted)

    async def wait(
        self, who: str, *queues: QueueKey, wait_ms: int = LONG_MS, ticket: int | None = None
    ) -> "asyncio.Task[list[Delivery]]":
        """Starts a waiting claim; returns once it waits."""
        looks_at = [MAIL, SMS] if ALL_OF_ACME in queues else list(queues)
        claim = FakeClaim(queues, lambda: self.take(who, looks_at), self.hand_back)
        waiting = self.waiters.wait_for_tasks(claim, wait_ms, since=self.waiters.signals, ticket=ticket)
        task = asyncio.create_task(waiting, name=who)
        await turns()
        return task


async def turns(number: int = 10) -> None:
    """Lets everything run that can run."""
    for _ in range(number):
        await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def within_reason() -> None:
        async with asyncio.timeout(10):
            await story

    asyncio.run(within_reason())


def test_a_waiter_is_given_the_task_that_arrives() -> None:
    async def story() -> None:
        queues = Queues()
        ann = await queues.wait("ann", MAIL)
        queues.put(MAIL, "t1")
        assert names(await ann) == ["t1"]

    run(story())


def test_waiters_are_served_first_come_first_served() -> None:
    async def story() -> None:
        queues = Queues()
        waiting_claims = [await queues.wait(who, MAIL) for who in ("ann", "bob", "cid")]
        queues.put(MAIL, "t1", "t2", "t3")
        assert [names(await waiter) for waiter in waiting_claims] == [["t1"], ["t2"], ["t3"]]
        assert queues.attempted == ["ann", "bob", "cid"]

    run(story())


def test_one_task_wakes_one_waiter() -> None:
    async def story() -> None:
        queues = Queues()
        waiting_claims = [await queues.wait(who, MAIL) for who in ("ann", "bob", "cid", "dan")]
        queues.put(MAIL, "t1")
        assert names(await waiting_claims[0]) == ["t1"]
        await turns()
        assert [waiter.done() for waiter in waiting_claims] == [True, False, False, False]
        assert queues.attempted == ["ann", "bob"]  # bob finds that there is no more; no claim after him is tried
        queues.put(MAIL, "t2")
        assert names(await waiting_claims[1]) == ["t2"]
        for waiter in waiting_claims[2:]:
            waiter.cancel()

    run(story())


def test_a_task_of_another_queue_wakes_nobody() -> None:
    async def story() -> None:
        queues = Queues()
        ann = await queues.wait("ann", MAIL)
        queues.put(SMS, "t1")
        queues.waiters.ready(QueueKey("other", "mail"), 1)
        await turns()
        assert (queues.attempted, ann.done()) == ([], False)
        ann.cancel()

    run(story())


def test_one_who_waits_for_several_queues_is_served_by_the_first_that_has_a_task() -> None:
    async def story() -> None:
        queues = Queues()
        ann = await queues.wait("ann", MAIL, SMS)
        queues.put(SMS, "t1")
        assert names(await ann) == ["t1"]
        queues.put(MAIL, "t2")
        await turns()
        assert queues.attempted == ["ann"]
        assert list(queues.stock[MAIL]) == ["t2"]

    run(story())


def test_a_claim_that_came_earlier_is_served_earlier_though_its_first_look_took_longer() -> None:
    async def story() -> None:
        queues = Queues()
        tickets = [queues.waiters.ticket() for _ in range(4)]
        waiting = {place: await queues.wait(str(place), MAIL, ticket=tickets[place]) for place in (2, 0, 3, 1)}
        for place in range(4):
            queues.put(MAIL, f"t{place}")
            assert names(await waiting[place]) == [f"t{place}"]

    run(story())


@pytest.mark.parametrize("order", [(ALL_OF_ACME, MAIL), (MAIL, ALL_OF_ACME)])
def test_one_who_waits_for_every_queue_stands_in_the_same_line(order: tuple[QueueKey, QueueKey]) -> None:
    async def story() -> None:
        queues = Queues()
        waiting_claims = [await queues.wait(who, queue) for who, queue in zip(("ann", "bob"), order, strict=True)]
        queues.put(MAIL, "t1")
        assert names(await waiting_claims[0]) == ["t1"]
        queues.put(MAIL, "t2")
        assert names(await waiting_claims[1]) == ["t2"]

    run(story())


def test_a_newcomer_lets_those_who_waited_go_first() -> None:
    async def story() -> None:
        queues = Queues()
        ann = await queues.wait("ann", MAIL)
        queues.put(MAIL, "t1")
        await queues.waiters.serve_first([MAIL])  # what a claim does before it takes tasks
        assert await queues.take("newcomer", [MAIL]) == []
        assert names(await ann) == ["t1"]

    run(story())


def test_a_newcomer_waits_for_nobody_on_other_queues() -> None:
    """On Redis each waiter is a round trip, and while tasks and waiters keep coming, serving them has no end."""

    async def story() -> None:
        queues = Queues()
        queues.gate = asyncio.Event()
        ann = await queues.wait("ann", MAIL)
        queues.put(MAIL, "t1")
        await queues.in_attempt.wait()
        assert queues.waiters.is_serving
        for other in (SMS, QueueKey("globex", "mail"), QueueKey("globex", EVERY)):
            await asyncio.wait_for(queues.waiters.serve_first([other]), 5)
        newcomer = asyncio.create_task(queues.waiters.serve_first([ALL_OF_ACME]))
        await turns()
        overtakes = newcomer.done()
        queues.gate.set()
        await asyncio.gather(ann, newcomer)
        assert not overtakes

    run(story())


def test_the_waiters_of_one_tenant_are_served_while_another_s_are() -> None:
    async def story() -> None:
        queues = Queues()
        theirs = QueueKey("globex", "mail")
        queues.stock[theirs] = deque()
        queues.gate = asyncio.Event()
        ann, bob = await queues.wait("ann", MAIL), await queues.wait("bob", theirs)
        queues.put(MAIL, "t1")
        await queues.in_attempt.wait()
        queues.put(theirs, "t2")
        await turns()
        assert queues.attempted == ["ann", "bob"]
        queues.gate.set()
        assert (names(await ann), names(await bob)) == (["t1"], ["t2"])

    run(story())


def test_the_queues_of_a_tenant_are_served_in_turn() -> None:
    async def story() -> None:
        queues = Queues()
        waiting = [await queues.wait(f"m{number}", MAIL) for number in range(3)]
        waiting.append(await queues.wait("s", SMS))
        queues.put(MAIL, "t1", "t2", "t3")
        queues.put(SMS, "t4")
        await asyncio.gather(*waiting)
        assert queues.attempted == ["m0", "s", "m1", "m2"]

    run(story())


def test_serving_without_waiters_asks_nobody() -> None:
    async def story() -> None:
        queues = Queues()
        queues.put(MAIL, "t1")
        await queues.waiters.serve_first([MAIL])
        assert queues.attempted == []

    run(story())


def test_a_waiter_whose_time_has_passed_goes_away_with_nothing() -> None:
    async def story() -> None:
        queues = Queues()
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        ann = await queues.wait("ann", MAIL, wait_ms=20)
        assert await ann == []
        assert loop.time() - start_s >= 0.019
        queues.put(MAIL, "t1")
        await turns()
        assert queues.attempted == []

    run(story())


def test_a_waiter_who_gave_up_does_not_hold_up_the_next() -> None:
    async def story() -> None:
        queues = Queues()
        ann = await queues.wait("ann", MAIL, wait_ms=1)
        bob = await queues.wait("bob", MAIL)
        assert await ann == []
        queues.put(MAIL, "t1")
        assert names(await bob) == ["t1"]

    run(story())


def test_one_who_gives_up_while_being_served_hands_the_task_back() -> None:
    async def story() -> None:
        queues = Queues()
        queues.gate = asyncio.Event()
        ann = await queues.wait("ann", MAIL, wait_ms=5)
        queues.put(MAIL, "t1")
        await queues.in_attempt.wait()
        assert await ann == []
        queues.gate.set()
        await turns()
        assert queues.returned == ["t1"]

    run(story())


def test_one_who_leaves_before_being_served_takes_nothing() -> None:
    async def story() -> None:
        queues = Queues()
        ann, bob = await queues.wait("ann", MAIL), await queues.wait("bob", MAIL)
        ann.cancel()
        await asyncio.gather(ann, return_exceptions=True)
        queues.put(MAIL, "t1")
        assert names(await bob) == ["t1"]
        assert (queues.attempted, queues.returned) == (["bob"], [])

    run(story())


def test_one_who_leaves_in_the_moment_a_task_arrives_hands_it_back() -> None:
    async def story() -> None:
        queues = Queues()
        ann, bob = await queues.wait("ann", MAIL), await queues.wait("bob", MAIL)
        queues.put(MAIL, "t1", "t2")
        ann.cancel()  # before any claim was served
        assert len(names(await bob)) == 1
        await asyncio.gather(ann, return_exceptions=True)
        assert ann.cancelled()
        assert len(queues.returned) + len(queues.stock[MAIL]) == 1  # nothing is lost

    run(story())


def test_one_who_leaves_just_after_being_served_hands_the_task_back() -> None:
    async def story() -> None:
        queues = Queues()

        async def take_while_ann_turns_away() -> list[Delivery]:
            asyncio.get_running_loop().call_soon(ann.cancel)  # after the lease for ann, before she receives it
            return [delivery("t1")]

        ann = asyncio.create_task(
            queues.waiters.wait_for_tasks(
                FakeClaim([MAIL], take_while_ann_turns_away, queues.hand_back), LONG_MS, since=0
            )
        )
        await turns()
        queues.waiters.ready(MAIL, 1)
        await asyncio.gather(ann, return_exceptions=True)
        assert ann.cancelled()
        assert queues.returned == ["t1"]

    run(story())


def test_one_who_leaves_while_being_served_hands_the_task_back_and_the_next_is_served() -> None:
    async def story() -> None:
        queues = Queues()
        queues.gate = asyncio.Event()
        ann, bob = await queues.wait("ann", MAIL), await queues.wait("bob", MAIL)
        queues.put(MAIL, "t1", "t2")
        await queues.in_attempt.wait()
        ann.cancel()
        await asyncio.gather(ann, return_exceptions=True)
        queues.gate.set()
        assert names(await bob) == ["t2"]
        assert queues.returned == ["t1"]

    run(story())


def test_a_refused_waiter_hears_why_and_the_next_is_served() -> None:
    async def story() -> None:
        queues = Queues()

        async def refused() -> list[Delivery]:
            raise NotFound("the queue is gone")

        ann = asyncio.create_task(
            queues.waiters.wait_for_tasks(FakeClaim([MAIL], refused, queues.hand_back), LONG_MS, since=0)
        )
        await turns()
        bob = await queues.wait("bob", MAIL)
        queues.put(MAIL, "t1")
        assert names(await bob) == ["t1"]
        with pytest.raises(NotFound):
            await ann

    run(story())


def test_a_failed_store_is_heard_by_all_who_wait() -> None:
    async def story() -> None:
        waiters = Waiters()

        async def broken() -> list[Delivery]:
            raise StoreFailed("the disk is gone")

        async def nothing(unwanted: Sequence[Delivery]) -> None:
            raise AssertionError("nothing was taken")

        waiting_claims = [
            asyncio.create_task(waiters.wait_for_tasks(FakeClaim([MAIL], broken, nothing), LONG_MS, since=0))
            for _ in range(3)
        ]
        await turns()
        waiters.ready(MAIL, 1)
        answers = await asyncio.gather(*waiting_claims, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreFailed] * 3

    run(story())


def test_tasks_that_arrive_while_others_are_served_are_not_overlooked() -> None:
    async def story() -> None:
        queues = Queues()
        queues.gate = asyncio.Event()
        ann, bob = await queues.wait("ann", MAIL), await queues.wait("bob", SMS)
        queues.put(MAIL, "t1")
        await queues.in_attempt.wait()
        queues.put(SMS, "t2")
        queues.gate.set()
        assert (names(await ann), names(await bob)) == (["t1"], ["t2"])

    run(story())


def test_a_newcomer_waits_until_the_serving_under_way_is_over() -> None:
    async def story() -> None:
        queues = Queues()
        queues.gate = asyncio.Event()
        ann, bob = await queues.wait("ann", MAIL), await queues.wait("bob", MAIL)
        queues.put(MAIL, "t1", "t2")
        await queues.in_attempt.wait()
        newcomer = asyncio.create_task(queues.waiters.serve_first([MAIL]))
        await turns()
        overtakes = newcomer.done()
        queues.gate.set()
        await asyncio.gather(ann, bob, newcomer)
        assert not overtakes

    run(story())


def test_a_newcomer_who_leaves_while_serving_others_takes_no_wake_up_along() -> None:
    async def story() -> None:
        queues = Queues()
        queues.gate = asyncio.Event()
        ann = await queues.wait("ann", MAIL)
        newcomer = asyncio.create_task(queues.waiters.serve_first([MAIL]))  # runs first, so the new claim serves ann
        queues.put(MAIL, "t1")
        await queues.in_attempt.wait()
        newcomer.cancel()
        queues.gate.set()
        await turns()
        served = ann.done()
        ann.cancel()
        assert served

    run(story())


# -- waiting for an end ------------------------------------------------------------------------------------------


def test_all_who_wait_for_a_task_to_end_are_woken_by_its_end() -> None:
    async def story() -> None:
        waiters = Waiters()
        waiting_claims = [asyncio.create_task(waiters.wait_for_end(["t1"], LONG_MS, not_yet)) for _ in range(3)]
        await turns()
        waiters.moved([ended("t0"), delivery("t1").task])  # another ends, this one only moves
        await turns()
        assert not any(waiter.done() for waiter in waiting_claims)
        waiters.moved([ended("t0"), ended("t1")])
        await asyncio.gather(*waiting_claims)

    run(story())


@pytest.mark.parametrize("status", [status for status in Status if status.is_final])
def test_every_way_to_end_is_an_end(status: Status) -> None:
    async def story() -> None:
        waiters = Waiters()
        waiter = asyncio.create_task(waiters.wait_for_end(["t1"], LONG_MS, not_yet))
        await turns()
        waiters.moved([ended("t1", status)])
        await waiter

    run(story())


def test_a_wait_for_an_end_that_does_not_come_is_over_in_time() -> None:
    async def story() -> None:
        waiters = Waiters()
        await waiters.wait_for_end(["t1"], 1, not_yet)
        waiters.moved([ended("t1")])  # no call waits, nothing happens

    run(story())


def test_one_who_stops_waiting_for_an_end_leaves_the_others_waiting() -> None:
    async def story() -> None:
        waiters = Waiters()
        ann, bob = (asyncio.create_task(waiters.wait_for_end(["t1"], LONG_MS, not_yet)) for _ in range(2))
        await turns()
        ann.cancel()
        await asyncio.gather(ann, return_exceptions=True)
        waiters.moved([ended("t1")])
        await bob

    run(story())


def test_an_end_while_the_task_is_read_is_not_missed() -> None:
    async def story() -> None:
        waiters = Waiters()

        async def reads_too_early() -> bool:
            waiters.moved([ended("t1")])
            return False

        await waiters.wait_for_end(["t1"], LONG_MS, reads_too_early)

    run(story())


def test_an_end_that_nobody_reported_is_found_by_looking_again() -> None:
    async def story() -> None:
        waiters, looks = Waiters(), iter([False, False, True])

        async def look() -> bool:
            return next(looks)

        waiter = asyncio.create_task(waiters.wait_for_end(["t1"], LONG_MS, look))
        for _ in range(2):
            await turns()
            assert not waiter.done()
            waiters.look_again()
        await waiter

    run(story())


def test_one_who_waits_for_any_move_is_woken_by_the_next() -> None:
    async def story() -> None:
        waiters = Waiters()
        with waiters.next_event() as first, waiters.next_event() as second:
            await turns()
            assert not first.done()
            assert not second.done()
            waiters.moved([delivery("t1").task])
            await asyncio.gather(first, second)

    run(story())


def test_everyone_is_sent_home_when_the_service_stops() -> None:
    async def story() -> None:
        queues = Queues()
        ann, bob = await queues.wait("ann", MAIL, SMS), await queues.wait("bob", MAIL)
        others = [
            asyncio.create_task(queues.waiters.wait_for_end(["t1"], LONG_MS, not_yet)),
        ]
        await turns()
        with queues.waiters.next_event() as happened:
            queues.waiters.end_waits()
            assert (await ann, await bob) == ([], [])
            await asyncio.gather(*others, happened)
        assert queues.attempted == []
        assert await (await queues.wait("cid", MAIL)) == []  # who was still looking whether to wait does not
        await queues.waiters.wait_for_end("t2", LONG_MS, not_yet)
        with queues.waiters.next_event() as happened:
            assert await happened is False

    run(story())


def test_waiters_that_have_left_are_not_remembered() -> None:
    async def story() -> None:
        queues = Queues()
        ann = await queues.wait("ann", MAIL, SMS)
        bob = await queues.wait("bob", ALL_OF_ACME, wait_ms=1)
        cid = asyncio.create_task(queues.waiters.wait_for_end(["t1"], 1, not_yet))
        queues.put(MAIL, "t1")
        await asyncio.gather(ann, bob, cid)
        with queues.waiters.next_event():
            pass
        assert (queues.waiters._claims, queues.waiters._for_end, queues.waiters._ready) == ({}, {}, {})
        assert queues.waiters._for_event == set()

    run(story())


def test_what_becomes_ready_between_the_look_and_the_wait_is_not_missed() -> None:
    async def story() -> None:
        queues = Queues()
        since = queues.waiters.signals
        queues.put(MAIL, "t1")  # after ann found nothing, before she waits
        ann = FakeClaim([MAIL], lambda: queues.take("ann", [MAIL]), queues.hand_back)
        assert names(await queues.waiters.wait_for_tasks(ann, LONG_MS, since=since)) == ["t1"]

    run(story())


def test_a_task_that_ends_in_another_process_wakes_those_who_wait_for_it() -> None:
    async def story() -> None:
        waiters = Waiters()
        waiting = asyncio.create_task(waiters.wait_for_end(["t1"], LONG_MS, not_yet))
        other = asyncio.create_task(waiters.wait_for_end(["t2"], LONG_MS, not_yet))
        await turns()
        waiters.moved_elsewhere(["t1"])
        await waiting
        assert not other.done()
        other.cancel()

    run(story())


def test_a_hand_back_that_fails_keeps_no_other_queue_of_the_tenant_waiting() -> None:
    async def story() -> None:
        queues = Queues()

        async def unavailable(unwanted: Sequence[Delivery]) -> None:
            raise StoreUnavailable(f"no answer for {names(unwanted)}")

        queues.hand_back = unavailable  # type: ignore[method-assign]
        left, waits = await queues.wait("left", MAIL), await queues.wait("waits", SMS)
        queues.gate = asyncio.Event()
        queues.put(MAIL, "m")
        queues.put(SMS, "s")
        await queues.in_attempt.wait()
        left.cancel()
        await turns()
        queues.gate.set()
        assert names(await waits) == ["s"]

    run(story())
