"""Calls that arrive in the same event-loop iteration share a batch and an fsync, without effect on each other."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.in_process_server import Caller, InProcessServer, until

from codeq.domain.errors import StoreBusy, StoreFailed
from codeq.server import microbatch
from codeq.server.ratelimit import Rate, RateLimiter
from codeq.wire import paths
from codeq.wire import tasks as wire

Story = Callable[[InProcessServer], Coroutine[Any, Any, None]]


@pytest.fixture
def run_story(tmp_path: Path) -> Callable[..., None]:
    """Runs a story with a new server."""

    def run(story: Story, **options: Any) -> None:
        async def main() -> None:
            server = InProcessServer(tmp_path, **options)
            async with server.running():
                await story(server)
                assert not server.tasks

        asyncio.run(main())

    return run


def flush_after(
    wait: Callable[[], Awaitable[object]], server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes this store flush when the wait is over. Other stores in the process, on other loops, flush as usual."""
    own, flush = server.store, type(server.store).flush
    monkeypatch.setattr(type(own), "flush", lambda store, **since: wait() if store is own else flush(store, **since))


def watch(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records the tenants of the tasks of every commit from now on."""
    commits: list[list[str]] = []
    commit = type(server.store).commit

    async def watched(store: Any, changes: Any) -> Any:
        commits.append([change.after.tenant for change in changes])
        return await commit(store, changes)

    monkeypatch.setattr(type(server.store), "commit", watched)
    return commits


async def tasks_of(caller: Caller) -> list[dict[str, Any]]:
    caller.send("GET", paths.TASKS)
    tasks: list[dict[str, Any]] = (await caller.answer()).json["tasks"]
    return tasks


def test_creates_that_arrive_together_are_one_commit_and_each_gets_its_own_task(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers(*["acme"] * 20)
        commits = watch(server, monkeypatch)
        for place, caller in enumerate(callers):
            caller.create(payload=place)
        answers = [await caller.answer() for caller in callers]
        assert [answer.status for answer in answers] == [202] * 20
        assert [answer.json["payload"] for answer in answers] == [str(place) for place in range(20)]
        assert len({answer.json["id"] for answer in answers}) == 20
        assert len({answer.request_id for answer in answers}) == 20
        assert commits == [["acme"] * 20]

    run_story(story)


def test_the_same_key_twice_in_a_turn_is_one_task_and_a_replay(run_story: Callable[..., None]) -> None:
    async def story(server: InProcessServer) -> None:
        first, second, third = await server.callers("acme", "acme", "acme")
        for caller in (first, second):
            caller.create(idempotencyKey="k")
        third.send("POST", paths.TASKS, b'{"command":"work","payload":1}', idempotency_key="k")
        made, again, header = [await caller.answer() for caller in (first, second, third)]
        assert (made.status, again.status, header.status) == (202, 202, 202)
        assert "idempotent-replay" not in made.headers
        assert again.headers["idempotent-replay"] == header.headers["idempotent-replay"] == "true"
        assert made.json == again.json == header.json
        assert len(await tasks_of(first)) == 1

    run_story(story)


def test_the_same_key_for_another_payload_is_a_mismatch_for_the_second_alone(run_story: Callable[..., None]) -> None:
    async def story(server: InProcessServer) -> None:
        first, second, third = await server.callers("acme", "acme", "acme")
        first.create(payload=1, idempotencyKey="k")
        second.create(payload=2, idempotencyKey="k")
        third.create(payload=3)
        answers = [await caller.answer() for caller in (first, second, third)]
        assert [answer.status for answer in answers] == [202, 202, 202]
        assert ["idempotent-mismatch" in answer.headers for answer in answers] == [False, True, False]
        assert answers[1].json == answers[0].json
        assert sorted(task["payload"] for task in await tasks_of(first)) == ["1", "3"]

    run_story(story)


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
def test_one_bad_create_among_good_ones_is_refused_alone(
    run_story: Callable[..., None], bad: bytes, status: int
) -> None:
    async def story(server: InProcessServer) -> None:
        first, wrong, last = await server.callers("acme", "acme", "acme")
        wrong.socket.settimeout(10)
        first.create()
        await asyncio.gather(asyncio.to_thread(wrong.send, "POST", paths.TASKS, bad), return_exceptions=True)
        last.create()
        assert (await first.answer()).status == 202
        assert (await last.answer()).status == 202
        assert (await wrong.answer()).status == status
        assert len(await tasks_of(first)) == 2

    run_story(story)


def test_tenants_that_arrive_together_stay_apart(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        acme, globex, again = await server.callers("acme", "globex", "acme")
        commits = watch(server, monkeypatch)
        for caller in (acme, globex, again):
            caller.create(idempotencyKey="k")
        answers = [await caller.answer() for caller in (acme, globex, again)]
        assert [answer.json["tenantId"] for answer in answers] == ["acme", "globex", "acme"]
        assert answers[0].json["id"] == answers[2].json["id"] != answers[1].json["id"]
        assert commits == [["acme", "acme"], ["globex"]]
        assert [len(await tasks_of(caller)) for caller in (acme, globex)] == [1, 1]

    run_story(story)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (StoreBusy("/secret is busy"), 503, "busy"),
        (StoreFailed("/secret has failed"), 503, "failed"),
        (RuntimeError("/secret"), 500, "internal"),
    ],
)
def test_what_fails_one_tenants_batch_is_told_to_each_of_its_callers_and_to_nobody_else(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    async def story(server: InProcessServer) -> None:
        acme, globex, again = await server.callers("acme", "globex", "acme")
        commit = type(server.store).commit

        async def broken(store: Any, changes: Any) -> Any:
            if changes[0].after.tenant == "acme":
                raise type(fault)(*fault.args)
            return await commit(store, changes)

        monkeypatch.setattr(type(server.store), "commit", broken)
        for caller in (acme, globex, again):
            caller.create()
        assert (await globex.answer()).status == 202
        for answer in [await acme.answer(), await again.answer()]:
            assert (answer.status, answer.json["code"]) == (status, code)
            assert answer.json["requestId"] == answer.request_id
            assert b"/secret" not in answer.body
            assert ("retry-after" in answer.headers) == (status == 503)
        assert bool(server.failures) == isinstance(fault, StoreFailed)

    run_story(story)


def test_an_answer_that_cannot_be_made_fails_its_own_caller_alone(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers("acme", "acme", "acme")
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

    run_story(story)


def test_a_refusal_of_one_order_by_the_core_leaves_the_rest_of_the_batch_alone(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers("acme", "acme", "acme")
        commits = watch(server, monkeypatch)
        for caller, delay_s in zip(callers, (0, 31_622_400, 0), strict=True):
            caller.create(delaySeconds=delay_s, idempotencyKey="x" if delay_s == 0 else "a\tb")
        assert [(await caller.answer()).status for caller in callers] == [202, 400, 202]
        assert commits == [["acme", "acme"]]

    run_story(story)


def test_a_caller_that_has_gone_takes_no_answer_from_the_others(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        first, gone, last = await server.callers("acme", "acme", "acme")
        flushing = asyncio.Event()
        flush_after(flushing.wait, server, monkeypatch)
        for caller in (first, gone, last):
            caller.create()
        await asyncio.sleep(0.05)
        gone.reset()
        await until(lambda: server.open_connections == 2)
        flushing.set()
        assert [(await caller.answer()).status for caller in (first, last)] == [202, 202]
        assert len(await tasks_of(first)) == 3

    run_story(story)


def test_nobody_is_answered_before_the_batch_is_on_disk(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers(*["acme"] * 5)
        flushing = asyncio.Event()
        flush_after(flushing.wait, server, monkeypatch)
        for caller in callers:
            caller.create()
        await asyncio.sleep(0.1)
        assert not any(caller.has_answer() for caller in callers)
        flushing.set()
        assert [(await caller.answer()).status for caller in callers] == [202] * 5

    run_story(story)


@pytest.mark.parametrize(("tasks", "size"), [(3, 1 << 20), (100, 1000)])
def test_more_than_a_batch_holds_goes_in_several_in_order(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tasks: int, size: int
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers(*["acme"] * 8)
        monkeypatch.setattr(microbatch, "BATCH_TASKS_MAX", tasks)
        monkeypatch.setattr(microbatch, "BATCH_BYTES_MAX", size)
        commits = watch(server, monkeypatch)
        for caller in callers:
            caller.create(payload="x" * 300)
        ids = [(await caller.answer()).json["id"] for caller in callers]
        assert ids == sorted(ids)
        assert [len(commit) for commit in commits] == [3, 3, 2]

    run_story(story)


def test_every_call_of_a_turn_is_counted_against_the_limits(run_story: Callable[..., None]) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers(*["acme"] * 5)
        for caller in callers:
            caller.create()
        answers = [await caller.answer() for caller in callers]
        assert [answer.status for answer in answers] == [202, 202, 202, 429, 429]
        assert answers[4].headers["retry-after"] == str(answers[4].json["retryAfterSeconds"])

    # Five more than are accepted: `callers` sends one each, and what is refused counts too.
    run_story(story, limiter=RateLimiter({"producer": Rate(requests_per_minute=1, burst_size=8)}, {}))


def test_a_token_that_is_not_known_yet_goes_the_long_way_to_the_same_answer(run_story: Callable[..., None]) -> None:
    async def story(server: InProcessServer) -> None:
        known, *_ = await server.callers("acme")
        strange, nobody = server.stranger("new"), server.stranger("nobody")
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

    run_story(story)


def test_a_batch_that_is_cancelled_at_the_end_of_the_server_answers_nobody(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        [caller] = await server.callers("acme")
        flush = type(server.store).flush
        flush_after(asyncio.Event().wait, server, monkeypatch)
        caller.create()
        await until(lambda: server.tasks)
        await asyncio.sleep(0.05)
        for task in list(server.tasks):
            task.cancel()
        with pytest.raises((AssertionError, ConnectionError)):
            await caller.answer()
        monkeypatch.setattr(type(server.store), "flush", flush)

    run_story(story)


def test_results_that_arrive_together_are_one_commit_and_each_ends_its_own_task(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = await server.callers(*[f"acme/{n}" for n in range(6)])
        held = [await caller.held() for caller in callers]
        commits = watch(server, monkeypatch)
        for place, (caller, task) in enumerate(zip(callers, held, strict=True)):
            caller.submit(task, result={"n": place})
        answers = [(await caller.answer()).json for caller in callers]
        assert [answer["taskId"] for answer in answers] == [task["id"] for task in held]
        assert [answer["result"] for answer in answers] == [{"n": place} for place in range(6)]
        assert commits == [["acme"] * 6]

    run_story(story)


def test_results_for_one_task_in_a_turn_are_accepted_once_and_from_its_holder_alone(
    run_story: Callable[..., None],
) -> None:
    async def story(server: InProcessServer) -> None:
        holder, same, other, globex, bad = await server.callers("acme/1", "acme/1", "acme/2", "globex", "acme/1")
        task = await holder.held()
        other.submit(task, result="stolen")
        globex.submit(task, result="foreign")
        bad.submit(task, status="DONE")
        holder.submit(task, result="first", leaseToken=task["leaseToken"])
        same.submit(task, result="second", leaseToken=task["leaseToken"])
        answers = [await caller.answer() for caller in (holder, same, other, globex, bad)]
        assert [answer.status for answer in answers] == [200, 200, 403, 404, 400]
        assert [answer.json["result"] for answer in answers[:2]] == ["first", "first"]

    run_story(story)


def test_creates_and_results_of_one_turn_do_not_mix(run_story: Callable[..., None]) -> None:
    async def story(server: InProcessServer) -> None:
        maker, worker = await server.callers("acme", "acme/1")
        task = await worker.held()
        maker.create(payload="new")
        worker.submit(task, result="done")
        made, ended = await maker.answer(), await worker.answer()
        assert (made.status, made.json["payload"]) == (202, '"new"')
        assert (ended.status, ended.json["result"]) == (200, "done")

    run_story(story)


def test_a_heartbeat_does_not_wait_for_the_disk_whatever_its_token_is_limited_to(
    run_story: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: InProcessServer) -> None:
        callers = [server.stranger("acme/any"), server.stranger("acme/one@work")]
        held = [await caller.held() for caller in callers]
        flushing = asyncio.Event()
        flush_after(flushing.wait, server, monkeypatch)
        for caller, task in zip(callers, held, strict=True):
            caller.send("POST", paths.HEARTBEAT.replace("{id}", task["id"]))
            assert (await caller.answer()).status == 200
        flushing.set()

    run_story(story)


def test_a_limited_token_is_refused_a_task_of_another_command_before_its_result_is_checked(
    run_story: Callable[..., None],
) -> None:
    async def story(server: InProcessServer) -> None:
        [any_worker] = await server.callers("acme/any")
        task = await any_worker.held()
        limited = server.stranger("acme/mail@mail")
        limited.submit(task, status="NO SUCH STATUS")
        assert (await limited.answer()).status == 403

    run_story(story)
