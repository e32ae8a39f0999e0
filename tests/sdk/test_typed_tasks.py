"""Declared tasks: arguments become the payload, payloads arguments, and results values, by the annotations."""

import asyncio
import datetime as dt
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field
from tests.sdk.clients import token_for
from tests.server.server_process import Server

import codeq
from codeq.errors import EnqueueRefused, InvalidRequest, PayloadInvalid, ResultInvalid
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.queue_policies import stored_policy
from codeq.testing import QueueForTests


@dataclass
class Size:
    width: int
    height: int = 480


class Crop(msgspec.Struct):
    left: int


class Address(BaseModel):
    to: str
    copies: list[str] = []


class Row(TypedDict):
    name: str
    amount: float


def resize(image: str, width: int = 640, *, crop: Crop | None = None, job: codeq.RunningJob | None = None) -> Size:
    assert job is not None
    return Size(width if crop is None else crop.left, job.attempt)


def by_dataclass(size: Size) -> Size:
    return Size(size.height, size.width)


def by_model(address: Address) -> Address:
    return Address(to=address.to.upper(), copies=[address.to])


def by_dict(row: Row) -> Row:
    return Row(name=row["name"] * 2, amount=row["amount"])


def of_many(rows: list[Row], due: dt.datetime, tags: set[str] = frozenset()) -> list[Address]:  # type: ignore[assignment]
    return [Address(to=f"{row['name']} {due:%Y} {sorted(tags)}") for row in rows]


def nothing() -> None: ...


def bounded(number: Annotated[int, msgspec.Meta(ge=1, le=5)]) -> int:
    return number


async def later(first: int, /, second: int) -> int:
    await asyncio.sleep(0)
    return first - second


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any, Any]] = [
    (resize, ("cat.png",), {}, {"image": "cat.png"}, Size(640, 1)),
    (resize, (), {"image": "cat.png", "crop": Crop(3)}, {"image": "cat.png", "crop": {"left": 3}}, Size(3, 1)),
    (by_dataclass, (Size(1, 2),), {}, {"width": 1, "height": 2}, Size(2, 1)),
    (by_model, (), {"address": Address(to="a")}, {"to": "a", "copies": []}, Address(to="A", copies=["a"])),
    (by_dict, (Row(name="a", amount=1.5),), {}, {"name": "a", "amount": 1.5}, {"name": "aa", "amount": 1.5}),
    (
        of_many,
        ([Row(name="a", amount=1)], dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        {"tags": {"x"}},
        {"rows": [{"name": "a", "amount": 1}], "due": "2026-01-02T00:00:00Z", "tags": ["x"]},
        [Address(to="a 2026 ['x']")],
    ),
    (nothing, (), {}, {}, None),
    (later, (5, 3), {}, {"first": 5, "second": 3}, 2),
]


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "payload", "result"),
    CALLS,
    ids=[f"{n}-{call[0].__name__}" for n, call in enumerate(CALLS)],
)
def test_a_call_is_sent_as_json_and_arrives_as_values(  # noqa: PLR0917
    codeq_queue: QueueForTests, function: Any, args: Any, kwargs: Any, payload: Any, result: Any
) -> None:
    worker = codeq.Worker(codeq_queue)
    declared = worker.task()(function)
    task = declared.enqueue(*args, **kwargs)
    assert isinstance(task, codeq.TypedTask)
    assert codeq_queue.get(task).payload == payload
    codeq_queue.work(worker)
    assert codeq_queue.wait(task, 0) == result
    assert declared.wait(task.id, 0) == result


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "said"),
    [
        (resize, (), {}, "missing a required argument: 'image'"),
        (resize, ("a",), {"widht": 3}, "unexpected keyword argument 'widht'"),
        (resize, (5,), {}, r"Expected `str`, got `int` - at `\$.image`"),
        (resize, ("a", float("nan")), {}, "NaN"),
        (resize, ("a",), {"job": 5}, "unexpected keyword argument 'job'"),
        (resize, ("a",), {"crop": {"left": "x"}}, r"\$.crop"),
        (by_model, ({"to": 5},), {}, "Input should be a valid string"),
        (by_dataclass, (object(),), {}, "cannot be written as JSON: object is not a JSON value"),
        (bounded, (6,), {}, "<= 5"),
        (nothing, (1,), {}, "too many positional arguments"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_where_it_is_made(
    codeq_queue: QueueForTests, function: Any, args: Any, kwargs: Any, said: str
) -> None:
    declared = codeq.Worker(codeq_queue).task()(function)
    with pytest.raises(PayloadInvalid, match=said) as refusal:
        declared.enqueue(*args, **kwargs)
    assert refusal.value.code == "payload-invalid"
    assert isinstance(refusal.value, InvalidRequest)
    assert codeq_queue.queues() == {}


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"image": 5}, "Expected `str`, got `int`"),
        ({"image": "a", "more": 1}, "unknown field `more`"),
        ({}, "missing required field `image`"),
        ([1], "Expected `str`, got `array`"),
    ],
)
def test_a_stored_payload_that_does_not_fit_is_a_failed_try_that_says_why(
    codeq_queue: QueueForTests, payload: Any, said: str
) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task("resize")(resize)
    task = codeq_queue.enqueue("resize", payload)
    codeq_queue.work(worker)
    found = codeq_queue.get(task).task
    assert (found.status, found.attempts) == (codeq.Status.PENDING, 1)
    assert (found.last_error or "").startswith("PayloadInvalid: the payload does not fit resize(")
    assert said in (found.last_error or "")
    assert "signature.py" not in (found.last_error or "")  # which is not where anybody has to look


def test_a_payload_that_is_no_object_is_the_first_argument(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)
    worker.task("resize")(resize)
    task = codeq_queue.enqueue("resize", "cat.png")
    codeq_queue.work(worker)
    assert codeq_queue.wait(task, 0) == {"width": 640, "height": 1}


def test_a_result_of_another_type_is_reported_by_whoever_reads_it(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)

    @worker.task()
    def wrong(payload: int) -> int:
        return "text"  # type: ignore[return-value]

    task = wrong.enqueue(1)
    codeq_queue.work(worker)
    with pytest.raises(ResultInvalid, match="Expected `int`, got `str`"):
        codeq_queue.wait(task, 0)
    assert codeq_queue.wait(task.id, 0) == "text"


def test_options_of_the_declaration_and_of_the_call_are_sent(codeq_queue: QueueForTests) -> None:
    declared = codeq.Worker(codeq_queue).task("resize", max_attempts=9, priority=3, backoff=codeq.fixed(2))(resize)
    first = declared.enqueue("a")
    assert (first.max_attempts, first.priority, first.backoff) == (9, 3, codeq.fixed(2))
    second = declared.options(priority=7, delay=dt.timedelta(minutes=1), idempotency_key="k").enqueue("a")
    assert (second.priority, second.max_attempts, second.visible_at) == (
        7,
        9,
        second.created_at + dt.timedelta(minutes=1),
    )
    again = declared.options(idempotency_key="k").enqueue("b")
    assert (again.id, again.is_replay, again.is_mismatch) == (second.id, True, True)


def test_a_declaration_needs_no_worker_and_goes_to_the_default_queue(codeq_queue: QueueForTests) -> None:
    declared = codeq.task("declared")(bounded)
    codeq.set_default_queue(codeq_queue)
    try:
        task = declared.enqueue(3)
        other = asyncio.run(_enqueue_async(declared))
    finally:
        codeq.set_default_queue(None)
    worker = codeq.Worker()

    @worker.task(declared)
    def implementation(number: int) -> int:
        return number * 10

    codeq_queue.work(worker)
    assert codeq_queue.wait(task, 0) == 30
    assert codeq_queue.wait(other, 0) == 40


async def _enqueue_async(declared: Any) -> Any:
    return await declared.enqueue_async(4)


def test_clients_of_every_kind_take_declared_tasks(queue: BlockingVerbs) -> None:
    declared = codeq.task("typed")(by_dataclass)
    task = queue.enqueue(declared, Size(1, 2))
    [job] = queue.claim("typed", worker="w")
    queue.complete(job, Size(7))
    assert queue.wait(task, 10) == Size(7)
    assert queue.wait(task.id, 10, of=declared) == Size(7)
    many = queue.enqueue_many([declared.new_task(Size(1)), codeq.new_task("typed", {"width": 2}, priority=4)])
    assert [each.priority for each in many] == [0, 4]


def test_waits_on_the_event_loop_leave_its_threads_to_others(server: Server) -> None:
    """An event loop has a handful of threads, in which names are looked up too."""

    async def main(queue: codeq.Client, declared: Any) -> Any:
        task = await declared.enqueue_async(Size(1))
        waits = [asyncio.create_task(declared.wait_async(task, 10)) for _ in range(50)]
        await asyncio.sleep(0)
        other = await declared.enqueue_async(Size(2))
        for job in queue.claim("awaited", limit=2):
            queue.complete(job, Size(3))
        return await declared.wait_async(other), await asyncio.gather(*waits)

    with codeq.Client(server.base, token_for(server, "awaited")) as queue:
        declared = codeq.task("awaited")(by_dataclass)
        codeq.set_default_queue(queue)
        try:
            assert asyncio.run(main(queue, declared)) == (Size(3), [Size(3)] * 50)
        finally:
            codeq.set_default_queue(None)


def test_a_batch_with_a_refused_task_raises_and_has_every_answer(queue: BlockingVerbs) -> None:
    with pytest.raises(EnqueueRefused, match="1 of 3 tasks were refused; the first: command must be") as refusal:
        queue.enqueue_many([codeq.new_task("many"), codeq.new_task("not a command"), codeq.new_task("many")])
    assert [type(answer) for answer in refusal.value.answers] == [codeq.Task, InvalidRequest, codeq.Task]
    assert queue.queues()["many"].pending == 2
    with pytest.raises(InvalidRequest, match="'raise' or 'return'"):
        queue.enqueue_many([], refusals="ignore")  # type: ignore[call-overload]


def test_verbs_take_a_task_as_well_as_its_id(queue: BlockingVerbs) -> None:
    task = queue.enqueue("work", 1)
    assert queue.get(task).task.id == task.id
    assert [event.move for event in queue.history(task)] == ["enqueue"]
    assert queue.cancel(task).status is codeq.Status.CANCELLED
    with pytest.raises(codeq.TaskFailed):
        queue.wait(task, 5)


def test_types_that_cannot_be_read_are_reported_when_the_worker_starts(codeq_queue: QueueForTests) -> None:
    def unknown(payload: "NotThere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def odd(payload: Crop | Size) -> None: ...

    for function, said in ((unknown, "NotThere"), (odd, "have no JSON form")):
        worker = codeq.Worker(codeq_queue)
        worker.task("work")(function)
        with pytest.raises(InvalidRequest, match=said):
            codeq_queue.work(worker)


def test_durations_are_seconds_or_timedeltas_everywhere() -> None:
    assert codeq.fixed(1.5) == codeq.Backoff(codeq.BackoffKind.FIXED, 1500, 1500)
    assert codeq.linear(1, 10) == codeq.Backoff(codeq.BackoffKind.LINEAR, 1000, 10_000)
    assert codeq.exponential(1, 60) == codeq.Backoff(codeq.BackoffKind.EXP_FULL_JITTER, 1000, 60_000)
    assert codeq.exponential(dt.timedelta(seconds=1), 60, jitter=False).kind is codeq.BackoffKind.EXPONENTIAL
    assert codeq.exponential(1, 60, jitter="equal").kind is codeq.BackoffKind.EXP_EQUAL_JITTER
    assert codeq.partial_backoff("linear", most=3) == codeq.PartialBackoff(codeq.BackoffKind.LINEAR, None, 3000)
    assert (codeq.linear(1, 10).base, codeq.linear(1, 10).most) == (1, 10)
    policy = stored_policy(codeq.QueuePolicy(lease=30, retention=dt.timedelta(days=7), dead_retention=1))
    assert (policy.lease_ms, policy.retention_ms, policy.dead_retention_ms) == (30_000, 604_800_000, 1000)
    assert (codeq.Retry(dt.timedelta(minutes=2)).delay, codeq.Snooze(3).delay) == (120, 3)
    with pytest.raises(InvalidRequest, match="a backoff must be from 0"):
        codeq.fixed(-1)


class Parcel(BaseModel):
    to_city: str = Field(alias="toCity")


def ship(parcel: Parcel) -> Parcel:
    return Parcel(toCity=parcel.to_city.upper())


def test_a_model_travels_under_the_names_that_it_reads(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)
    declared = worker.task("ship")(ship)
    task = codeq_queue.enqueue(declared, Parcel(toCity="Rome"))
    assert codeq_queue.get(task).payload == {"toCity": "Rome"}
    codeq_queue.work(worker)
    assert codeq_queue.wait(task).to_city == "ROME"


class Label(BaseModel):
    text: str = Field(serialization_alias="shownAs")


class Box(BaseModel):
    labels: list[Label] | None = None


def stick(box: Box) -> Label:
    return Label(text=(box.labels or [])[0].text.upper())


def test_a_model_with_names_for_writing_alone_travels_under_those_of_its_fields(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)
    declared = worker.task("stick")(stick)
    task = codeq_queue.enqueue(declared, Box(labels=[Label(text="fragile")]))
    codeq_queue.work(worker)
    assert codeq_queue.wait(task) == Label(text="FRAGILE")


def either(size: Size | Crop) -> None: ...


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda queue: queue.enqueue(codeq.task("nap")(bounded), 1, priority=3),
            r"given with \.options\(priority=\.\.\.\)",
        ),
        (lambda queue: queue.enqueue(codeq.task("either")(either), Crop(1)), "^the types of either have no JSON form"),
        (lambda queue: queue.enqueue(bounded, 1), r"declare the function with @codeq\.task\(\)"),
        (
            lambda queue: queue.enqueue("work", number=1),
            r"no such option: number; there are backoff, .* declared tasks",
        ),
        (lambda queue: queue.enqueue("work", delay=-1), "a delay must be from 0 to 31622400 seconds, not -1"),
        (
            lambda queue: queue.enqueue("work", backoff=5),
            "a backoff is made by codeq.fixed, linear or exponential, not 5",
        ),
        (lambda queue: queue.set_policy("work", codeq.QueuePolicy(lease=0)), "lease must be from 0.1 to 43200 seconds"),
        (lambda queue: queue.enqueue_many([{"number": 1}]), r"tasks of codeq\.new_task\(s\), not dict"),
    ],
)
def test_a_call_that_was_meant_otherwise_says_how_it_is_written(
    codeq_queue: QueueForTests, call: Any, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        call(codeq_queue)
    assert codeq_queue.queues() == {}


def test_whoever_waits_for_a_dead_task_is_told_why_it_died(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)

    @worker.task("break", max_attempts=1)
    def breaks(number: int) -> None:
        raise ValueError(f"{number} is broken")

    task = breaks.enqueue(7)
    codeq_queue.work(worker)
    with pytest.raises(codeq.TaskFailed, match=r"FAILED: MAX_ATTEMPTS: ValueError: 7 is broken \(at test_typed_tasks"):
        codeq_queue.wait(task)


def test_whoever_waits_for_a_buried_or_cancelled_task_is_told_so(codeq_queue: QueueForTests) -> None:
    worker = codeq.Worker(codeq_queue)

    @worker.task("bury")
    def bury() -> None:
        raise codeq.Bury("not for us")

    buried = bury.enqueue()
    codeq_queue.work(worker)
    with pytest.raises(codeq.TaskFailed, match=r"ended as FAILED: not for us$"):
        codeq_queue.wait(buried)
    with pytest.raises(codeq.TaskFailed, match=r"was cancelled$"):
        codeq_queue.wait(codeq_queue.cancel(bury.enqueue()))
