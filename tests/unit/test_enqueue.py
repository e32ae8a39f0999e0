"""What a producer may enqueue, against a store that accepts every change and stores nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.ids import IdGenerator, shard_of
from codeq.domain.limits import (
    ATTEMPTS_MAX,
    BACKOFF_MS_MAX,
    BATCH_BYTES_MAX,
    BATCH_TASKS_MAX,
    DELAY_MS_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    TRACE_CHARS_MAX,
    WEBHOOK_CHARS_MAX,
)
from codeq.domain.queue import EffectivePolicy, QueueKey, QueuePolicy
from codeq.domain.requests import NewTask
from codeq.domain.task import Change, Status, Task
from codeq.store.interface import Store
from codeq.usecases import policies
from codeq.usecases.core import Core
from codeq.usecases.enqueue import Enqueued, enqueue
from codeq.usecases.waiters import Waiters
from codeq.usecases.worker_registry import WorkerRegistry

NOW = 1_700_000_000_000


class FakeStore:
    """The verbs of a store that `enqueue` uses, with no idempotency key in use."""

    shards = 4

    def __init__(self) -> None:
        self.committed: list[Change] = []
        self.flushed = 0

    def now_ms(self) -> int:
        return NOW

    def policies(self) -> dict[Any, QueuePolicy]:
        return {}

    async def commit(self, changes: Sequence[Change]) -> list[Task | None]:
        self.committed += changes
        return [change.after for change in changes]

    primaries = ("",)

    async def flush(self, *, since: tuple[str, ...]) -> None:
        assert since == self.primaries
        self.flushed = len(self.committed)


def core_of(store: FakeStore) -> Core:
    policy = EffectivePolicy(max_attempts=7, max_deliveries=70)
    return Core(
        cast("Store", store),
        Waiters(),
        policy,
        policy,
        IdGenerator(bytes),
        lambda: 0.5,
        WorkerRegistry(cast("Store", store)),
    )


def enqueue_all(
    *new_tasks: NewTask, tenant: str = "acme", store: FakeStore | None = None
) -> list[Enqueued | CodeqError]:
    store = store or FakeStore()
    return asyncio.run(enqueue(core_of(store), tenant, new_tasks))


def enqueue_one(**wanted: Any) -> Task | CodeqError:
    [answer] = enqueue_all(NewTask(**{"command": "mail"} | wanted))
    return answer.task if isinstance(answer, Enqueued) else answer


def accepted(**wanted: Any) -> Task:
    answer = enqueue_one(**wanted)
    assert isinstance(answer, Task), answer
    return answer


@pytest.mark.parametrize(
    "wanted",
    [
        {"command": ""},
        {"command": "a b"},
        {"command": "x" * 65},
        {"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)},
        {"priority": -1},
        {"priority": 10},
        {"priority": 1.5},
        {"priority": True},
        {"delay_ms": -1},
        {"delay_ms": DELAY_MS_MAX + 1},
        {"run_at_ms": -1},
        {"run_at_ms": (1 << 52) + 1},
        {"max_attempts": 0},
        {"max_attempts": ATTEMPTS_MAX + 1},
        {"max_attempts": True},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * (IDEMPOTENCY_KEY_CHARS_MAX + 1)},
        {"idempotency_key": "a\0b"},
        {"idempotency_key": "\ud800"},
        {"webhook": ""},
        {"webhook": "x" * (WEBHOOK_CHARS_MAX + 1)},
        {"trace_parent": "x" * (TRACE_CHARS_MAX + 1)},
        {"trace_state": "a\r\nb: c"},
        {"backoff": Backoff(BackoffKind.FIXED, -1)},
        {"backoff": Backoff(BackoffKind.FIXED, BACKOFF_MS_MAX + 1)},
        {"backoff": Backoff(BackoffKind.FIXED, 0, -1)},
    ],
    ids=str,
)
def test_a_task_beyond_the_limits_is_refused(wanted: dict[str, Any]) -> None:
    assert isinstance(enqueue_one(**wanted), InvalidRequest)


@pytest.mark.parametrize(
    "wanted",
    [
        {"payload": b"x" * PAYLOAD_BYTES_MAX},
        {"priority": 9},
        {"delay_ms": DELAY_MS_MAX},
        {"max_attempts": 1},
        {"max_attempts": ATTEMPTS_MAX},
        {"idempotency_key": "x" * IDEMPOTENCY_KEY_CHARS_MAX},
        {"backoff": Backoff(BackoffKind.LINEAR, BACKOFF_MS_MAX, BACKOFF_MS_MAX)},
    ],
    ids=lambda wanted: next(iter(wanted)),
)
def test_a_task_at_the_limits_is_taken(wanted: dict[str, Any]) -> None:
    assert accepted(**wanted).status is Status.PENDING


@pytest.mark.parametrize(
    "wanted",
    [
        {"priority": None},
        {"priority": ""},
        {"priority": False},
        {"backoff": Backoff("exponentional")},  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused_before_it_reaches_the_store(wanted: dict[str, Any]) -> None:
    assert isinstance(enqueue_one(**wanted), InvalidRequest)


def test_a_payload_that_is_text_is_refused_before_it_reaches_the_store() -> None:
    assert isinstance(enqueue_one(payload="text"), InvalidRequest)


@pytest.mark.parametrize(
    "policy",
    [
        QueuePolicy(max_attempts=cast("int", "3")),
        QueuePolicy(max_attempts=0),
        QueuePolicy(lease_ms=-5),
        QueuePolicy(retention_ms=-1),
        QueuePolicy(backoff=Backoff(cast("BackoffKind", "exponentional"))),
    ],
    ids=["attempts as text", "no attempts", "lease", "retention", "backoff"],
)
def test_a_policy_beyond_the_limits_is_refused_before_it_reaches_the_store(policy: QueuePolicy) -> None:
    with pytest.raises(InvalidRequest):
        asyncio.run(policies.put_policy(core_of(FakeStore()), QueueKey("acme", "mail"), policy))


def test_a_refusal_leaves_the_other_tasks_of_the_batch_alone() -> None:
    store = FakeStore()
    answers = enqueue_all(NewTask(command="a"), NewTask(command="!"), NewTask(command="b"), store=store)
    assert [type(answer) for answer in answers] == [Enqueued, InvalidRequest, Enqueued]
    assert [change.after.command for change in store.committed] == ["a", "b"]


def test_nothing_is_answered_before_it_is_on_disk() -> None:
    store = FakeStore()
    enqueue_all(NewTask(command="a"), NewTask(command="b"), store=store)
    assert store.flushed == 2


def test_a_tenant_without_a_proper_name_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        enqueue_all(NewTask(command="mail"), tenant="a\nb")


def test_a_batch_of_too_many_tasks_is_refused_whole() -> None:
    with pytest.raises(InvalidRequest):
        enqueue_all(*[NewTask(command="mail")] * (BATCH_TASKS_MAX + 1))
    assert len(enqueue_all(*[NewTask(command="mail")] * BATCH_TASKS_MAX)) == BATCH_TASKS_MAX


def test_a_batch_of_too_many_bytes_is_refused_whole() -> None:
    megabyte = NewTask(command="mail", payload=b"x" * PAYLOAD_BYTES_MAX)
    with pytest.raises(InvalidRequest):
        enqueue_all(*[megabyte] * (BATCH_BYTES_MAX // PAYLOAD_BYTES_MAX + 1))


def test_a_time_wins_over_a_delay_and_a_time_in_the_past_means_at_once() -> None:
    assert accepted(delay_ms=1_000).visible_ms == NOW + 1_000
    assert accepted(delay_ms=1_000, run_at_ms=NOW + 5).visible_ms == NOW + 5
    assert accepted(delay_ms=1_000, run_at_ms=NOW - 5).visible_ms == 0


def test_what_a_task_does_not_say_is_taken_from_the_policy() -> None:
    assert (accepted().max_attempts, accepted().max_deliveries, accepted().backoff) == (7, 70, None)
    assert accepted(max_attempts=2).max_attempts == 2


def test_tasks_with_the_same_key_go_to_the_same_shard() -> None:
    answers = enqueue_all(*[NewTask(command="mail", idempotency_key="order-1")] * 5)
    assert len({shard_of(answer.task.id) for answer in answers if isinstance(answer, Enqueued)}) == 1


def test_the_trace_id_is_read_from_the_trace_parent() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert accepted(trace_parent=parent).trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
