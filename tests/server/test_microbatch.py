"""Calls that arrive in the same turn share a batch and an fsync, and are to each caller as if they were alone."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.inside import Caller, Inside, until

from codeq.domain.errors import StoreBusy, StoreFailed
from codeq.server import microbatch
from codeq.server.ratelimit import Rate, RateLimiter
from codeq.wire import paths
from codeq.wire import tasks as wire

Story = Callable[[Inside], Coroutine[Any, Any, None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Runs a story with a server of its own."""

    def run(story: Story, **options: Any) -> None:
        async def told() -> None:
            inside = Inside(tmp_path, **options)
            async with inside.running():
                await story(inside)
                assert not inside.tasks

        asyncio.run(told())

    return run


def settle_by(wait: Callable[[], Awaitable[object]], inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this store settle when the wait is over. Others in the process, with loops of their own, go on as ever."""
    mine, settle = inside.store, type(inside.store).flush
    monkeypatch.setattr(type(mine), "flush", lambda store: wait() if store is mine else settle(store))


def watch(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The tenants of the tasks of every commit from now on."""
    commits: list[list[str]] = []
    commit = type(inside.store).commit

    async def watched(store: Any, changes: Any) -> Any:
        commits.append([change.after.tenant for change in changes])
        return await commit(store, changes)

    monkeypatch.setattr(type(inside.store), "commit", watched)
    return commits


async def tasks_of(caller: Caller) -> list[dict[str, Any]]:
    caller.send("GET", paths.TASKS)
    tasks: list[dict[str, Any]] = (await caller.answer()).json["tasks"]
    return tasks


def test_creates_that_arrive_together_are_one_commit_and_each_gets_its_own_task(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers(*["acme"] * 20)
        commits = watch(inside, monkeypatch)
        for place, caller in enumerate(callers):
            caller.create(payload=place)
        answers = [await caller.answer() for caller in callers]
        assert [answer.status for answer in answers] == [202] * 20
        assert [answer.json["payload"] for answer in answers] == [str(place) for place in range(20)]
        assert len({answer.json["id"] for answer in answers}) == 20
        assert len({answer.request_id for answer in answers}) == 20
        assert commits == [["acme"] * 20]

    tell(story)


def test_the_same_key_twice_in_a_turn_is_one_task_and_a_replay(tell: Callable[..., None]) -> None:
    async def story(inside: Inside) -> None:
        first, second, third = await inside.callers("acme", "acme", "acme")
        for caller in (first, second):
            caller.create(idempotencyKey="k")
        third.send("POST", paths.TASKS, b'{"command":"work","payload":1}', idempotency_key="k")
        made, again, header = [await caller.answer() for caller in (first, second, third)]
        assert (made.status, again.status, header.status) == (202, 202, 202)
        assert "idempotent-replay" not in made.headers
        assert again.headers["idempotent-replay"] == header.headers["idempotent-replay"] == "true"
        assert made.json == again.json == header.json
        assert len(await tasks_of(first)) == 1

    tell(story)


def test_the_same_key_for_another_payload_is_refused_to_the_second_alone(tell: Callable[..., None]) -> None:
    async def story(inside: Inside) -> None:
        first, second, third = await inside.callers("acme", "acme", "acme")
        first.create(payload=1, idempotencyKey="k")
        second.create(payload=2, idempotencyKey="k")
        third.create(payload=3)
        answers = [await caller.answer() for caller in (first, second, third)]
        assert [answer.status for answer in answers] == [202, 422, 202]
        assert answers[1].json["code"] == "idempotency-mismatch"
        assert sorted(task["payload"] for task in await tasks_of(first)) == ["1", "3"]

    tell(story)


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"{", 400),
        (b'{"command":"a b","payload":1}', 400),
        (b'{"command":"work","payload":null}', 400),
        (b'{"command":"work","payload":1,"webhook":"nowhere"}', 400),
        (b'{"command":"work","payload":"' + b"x" * 1_100_000 + b'"}', 400),
        (b'{"command":"work","payload":"' + b"x" * 2_200_000 + b'"}', 413),
    ],
    ids=range(6),
)
def test_one_bad_create_among_good_ones_is_refused_alone(tell: Callable[..., None], bad: bytes, status: int) -> None:
    async def story(inside: Inside) -> None:
        first, wrong, last = await inside.callers("acme", "acme", "acme")
        wrong.socket.settimeout(10)
        first.create()
        await asyncio.gather(asyncio.to_thread(wrong.send, "POST", paths.TASKS, bad), return_exceptions=True)
        last.create()
        assert (await first.answer()).status == 202
        assert (await last.answer()).status == 202
        assert (await wrong.answer()).status == status
        assert len(await tasks_of(first)) == 2

    tell(story)


def test_tenants_that_arrive_together_stay_apart(tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(inside: Inside) -> None:
        acme, globex, again = await inside.callers("acme", "globex", "acme")
        commits = watch(inside, monkeypatch)
        for caller in (acme, globex, again):
            caller.create(idempotencyKey="k")
        answers = [await caller.answer() for caller in (acme, globex, again)]
        assert [answer.json["tenantId"] for answer in answers] == ["acme", "globex", "acme"]
        assert answers[0].json["id"] == answers[2].json["id"] != answers[1].json["id"]
        assert commits == [["acme", "acme"], ["globex"]]
        assert [len(await tasks_of(caller)) for caller in (acme, globex)] == [1, 1]

    tell(story)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (StoreBusy("/secret is busy"), 503, "busy"),
        (StoreFailed("/secret has failed"), 503, "failed"),
        (RuntimeError("/secret"), 500, "internal"),
    ],
)
def test_what_fails_one_tenants_batch_is_told_to_each_of_its_callers_and_to_nobody_else(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    async def story(inside: Inside) -> None:
        acme, globex, again = await inside.callers("acme", "globex", "acme")
        commit = type(inside.store).commit

        async def broken(store: Any, changes: Any) -> Any:
            if changes[0].after.tenant == "acme":
                raise type(fault)(*fault.args)
            return await commit(store, changes)

        monkeypatch.setattr(type(inside.store), "commit", broken)
        for caller in (acme, globex, again):
            caller.create()
        assert (await globex.answer()).status == 202
        for answer in [await acme.answer(), await again.answer()]:
            assert (answer.status, answer.json["code"]) == (status, code)
            assert answer.json["requestId"] == answer.request_id
            assert b"/secret" not in answer.body
            assert ("retry-after" in answer.headers) == (status == 503)
        assert bool(inside.failures) == isinstance(fault, StoreFailed)

    tell(story)


def test_an_answer_that_cannot_be_made_fails_its_own_caller_alone(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers("acme", "acme", "acme")
        view = wire.view

        def broken(task: Any, body: Any) -> Any:
            if body.payload == b"1":
                raise RuntimeError("/secret")
            return view(task, body)

        monkeypatch.setattr(wire, "view", broken)
        for place, caller in enumerate(callers):
            caller.create(payload=place)
        answers = [await caller.answer() for caller in callers]
        assert [answer.status for answer in answers] == [202, 500, 202]
        assert b"/secret" not in answers[1].body

    tell(story)


def test_a_refusal_of_one_order_by_the_core_leaves_the_rest_of_the_batch_alone(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers("acme", "acme", "acme")
        commits = watch(inside, monkeypatch)
        for caller, delay_s in zip(callers, (0, 31_622_400, 0), strict=True):
            caller.create(delaySeconds=delay_s, idempotencyKey="x" if delay_s == 0 else "a\tb")
        assert [(await caller.answer()).status for caller in callers] == [202, 400, 202]
        assert commits == [["acme", "acme"]]

    tell(story)


def test_a_caller_that_has_gone_takes_no_answer_from_the_others(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        first, gone, last = await inside.callers("acme", "acme", "acme")
        settling = asyncio.Event()
        settle_by(settling.wait, inside, monkeypatch)
        for caller in (first, gone, last):
            caller.create()
        await asyncio.sleep(0.05)
        gone.hang_up()
        await until(lambda: inside.open_connections == 2)
        settling.set()
        assert [(await caller.answer()).status for caller in (first, last)] == [202, 202]
        assert len(await tasks_of(first)) == 3

    tell(story)


def test_nobody_is_answered_before_the_batch_is_on_disk(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers(*["acme"] * 5)
        settling = asyncio.Event()
        settle_by(settling.wait, inside, monkeypatch)
        for caller in callers:
            caller.create()
        await asyncio.sleep(0.1)
        assert not any(caller.has_answer() for caller in callers)
        settling.set()
        assert [(await caller.answer()).status for caller in callers] == [202] * 5

    tell(story)


@pytest.mark.parametrize(("tasks", "size"), [(3, 1 << 20), (100, 1000)])
def test_more_than_a_batch_holds_goes_in_several_in_order(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tasks: int, size: int
) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers(*["acme"] * 8)
        monkeypatch.setattr(microbatch, "BATCH_TASKS_MAX", tasks)
        monkeypatch.setattr(microbatch, "BATCH_BYTES_MAX", size)
        commits = watch(inside, monkeypatch)
        for caller in callers:
            caller.create(payload="x" * 300)
        ids = [(await caller.answer()).json["id"] for caller in callers]
        assert ids == sorted(ids)
        assert [len(commit) for commit in commits] == [3, 3, 2]

    tell(story)


def test_every_call_of_a_turn_is_counted_against_the_limits(tell: Callable[..., None]) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers(*["acme"] * 5)
        for caller in callers:
            caller.create()
        answers = [await caller.answer() for caller in callers]
        assert [answer.status for answer in answers] == [202, 202, 202, 429, 429]
        assert answers[4].headers["retry-after"] == str(answers[4].json["retryAfterSeconds"])

    tell(story, limiter=RateLimiter({"producer": Rate(requests_per_minute=1, burst_size=3)}, {}))


def test_a_token_that_is_not_known_yet_goes_the_long_way_to_the_same_answer(tell: Callable[..., None]) -> None:
    async def story(inside: Inside) -> None:
        known, *_ = await inside.callers("acme")
        strange, nobody = inside.stranger("new"), inside.stranger("nobody")
        await asyncio.sleep(0.05)
        for caller in (known, strange, nobody):
            caller.create(payload={"same": True})
        answers = [await caller.answer() for caller in (known, strange, nobody)]
        assert [answer.status for answer in answers] == [202, 202, 401]
        first, second = [msgspec.json.decode(answer.body, type=dict[str, Any]) for answer in answers[:2]]
        unlike = ("id", "createdAt", "updatedAt", "tenantId")
        assert {k: v for k, v in first.items() if k not in unlike} == {
            k: v for k, v in second.items() if k not in unlike
        }
        assert set(answers[0].headers) == set(answers[1].headers)

    tell(story)


def test_a_batch_that_is_cancelled_at_the_end_of_the_server_answers_nobody(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        [caller] = await inside.callers("acme")
        settle = type(inside.store).flush
        settle_by(asyncio.Event().wait, inside, monkeypatch)
        caller.create()
        await until(lambda: inside.tasks)
        await asyncio.sleep(0.05)
        for task in list(inside.tasks):
            task.cancel()
        with pytest.raises((AssertionError, ConnectionError)):
            await caller.answer()
        monkeypatch.setattr(type(inside.store), "flush", settle)

    tell(story)


def test_results_that_arrive_together_are_one_commit_and_each_ends_its_own_task(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(inside: Inside) -> None:
        callers = await inside.callers(*[f"acme/{n}" for n in range(6)])
        held = [await caller.held() for caller in callers]
        commits = watch(inside, monkeypatch)
        for place, (caller, task) in enumerate(zip(callers, held, strict=True)):
            caller.submit(task, result={"n": place})
        answers = [(await caller.answer()).json for caller in callers]
        assert [answer["taskId"] for answer in answers] == [task["id"] for task in held]
        assert [answer["result"] for answer in answers] == [{"n": place} for place in range(6)]
        assert commits == [["acme"] * 6]

    tell(story)


def test_results_for_one_task_in_a_turn_are_accepted_once_and_from_its_holder_alone(
    tell: Callable[..., None],
) -> None:
    async def story(inside: Inside) -> None:
        holder, same, other, globex, bad = await inside.callers("acme/1", "acme/1", "acme/2", "globex", "acme/1")
        task = await holder.held()
        other.submit(task, result="stolen")
        globex.submit(task, result="foreign")
        bad.submit(task, status="DONE")
        holder.submit(task, result="first", leaseToken=task["leaseToken"])
        same.submit(task, result="second", leaseToken=task["leaseToken"])
        answers = [await caller.answer() for caller in (holder, same, other, globex, bad)]
        assert [answer.status for answer in answers] == [200, 200, 403, 404, 400]
        assert [answer.json["result"] for answer in answers[:2]] == ["first", "first"]

    tell(story)


def test_creates_and_results_of_one_turn_do_not_mix(tell: Callable[..., None]) -> None:
    async def story(inside: Inside) -> None:
        maker, worker = await inside.callers("acme", "acme/1")
        task = await worker.held()
        maker.create(payload="new")
        worker.submit(task, result="done")
        made, ended = await maker.answer(), await worker.answer()
        assert (made.status, made.json["payload"]) == (202, '"new"')
        assert (ended.status, ended.json["result"]) == (200, "done")

    tell(story)
