"""Decoding returns what was encoded, and the layout is plain MessagePack."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.random_tasks import backoffs, tasks, texts

from codeq.domain.backoff import Backoff, BackoffKind, PartialBackoff
from codeq.domain.queue import EffectivePolicy, OnExpiry, QueuePolicy, effective_policy
from codeq.domain.task import Body, Move, Status, Task
from codeq.store import codec

bodies = st.builds(Body, st.binary(max_size=50), texts, texts, texts, texts)


@settings(max_examples=50, deadline=None)
@given(tasks)
def test_a_task_comes_back_as_it_was(task: Task) -> None:
    assert codec.decode_task(codec.encode(task)) == task


@settings(max_examples=50, deadline=None)
@given(tasks)
def test_a_task_is_a_plain_array_in_the_order_of_its_fields(task: Task) -> None:
    plain = msgspec.msgpack.decode(codec.encode(task))
    assert plain == [msgspec.to_builtins(getattr(task, field)) for field in Task.__struct_fields__]


@settings(max_examples=50, deadline=None)
@given(tasks, st.integers(1, (1 << 63) - 1))
def test_stamping_gives_the_version_and_changes_nothing_else(task: Task, version: int) -> None:
    before = msgspec.structs.replace(task)
    codec.set_field(task, "version", version)
    data = codec.encode(task)
    assert task == msgspec.structs.replace(before, version=version)
    assert codec.decode_task(data) == task


@settings(max_examples=50, deadline=None)
@given(bodies)
def test_a_body_comes_back_byte_for_byte(body: Body) -> None:
    assert codec.decode_body(codec.encode(body)) == body


@settings(max_examples=50, deadline=None)
@given(tasks, bodies)
def test_what_is_opened_holds_the_task_and_its_body(task: Task, body: Body) -> None:
    created_record = codec.decode_created(codec.created_record(codec.encode(task), body))
    assert (codec.decode_task(created_record.task), codec.decode_body(created_record.body)) == (task, body)


@settings(max_examples=50, deadline=None)
@given(tasks, st.none() | st.binary(max_size=50))
def test_what_is_kept_holds_the_task_and_its_result(task: Task, result: bytes | None) -> None:
    current_record = codec.decode_current(codec.current_record(codec.encode(task), result))
    assert (codec.decode_task(current_record.task), current_record.result) == (task, result)


@settings(max_examples=50, deadline=None)
@given(st.lists(tasks, max_size=5))
def test_joined_tasks_come_apart_again_in_order(many: list[Task]) -> None:
    assert codec.decode_tasks(codec.joined([codec.encode(task) for task in many])) == many


def test_more_tasks_than_a_short_array_can_count_are_joined_all_the_same() -> None:
    [task] = [codec.encode(make_task())]
    assert len(codec.decode_tasks(codec.joined([task] * 70_000))) == 70_000


def test_a_record_of_an_older_release_with_unknown_further_fields_is_still_read() -> None:
    task = make_task()
    longer = [*msgspec.msgpack.decode(codec.encode(task)), "a field of a newer release"]
    assert codec.decode_task(msgspec.msgpack.encode(longer)) == task


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 100), backoffs, st.sampled_from(OnExpiry), st.booleans())
def test_a_policy_comes_back_as_it_was(attempts: int, backoff: Backoff, on_expiry: OnExpiry, paused: bool) -> None:
    policy = QueuePolicy(max_attempts=attempts, backoff=backoff, on_expiry=on_expiry, paused=paused)
    assert codec.decode_policy(codec.encode(policy)) == policy


def test_a_policy_of_an_older_release_which_has_every_rule_means_what_it_says() -> None:
    """(13.26)"""
    rules = {
        "max_attempts": 5, "max_deliveries": 100, "lease_ms": 300_000, "backoff": ["exp_full_jitter", 5_000, 900_000],
        "on_expiry": "backoff", "retention_ms": 86_400_000, "dead_retention_ms": 86_400_000, "max_consumers": 0,
        "paused": False, "priority_tiers": [], "dead_letter_ref": None, "version": 3, "created_ms": 1, "updated_ms": 2,
    }  # fmt: skip
    policy = codec.decode_policy(msgspec.msgpack.encode(rules))
    assert (policy.version, policy.created_ms, policy.updated_ms) == (3, 1, 2)
    others = EffectivePolicy(max_attempts=7, lease_ms=1_000, backoff=Backoff(BackoffKind.FIXED, 1, 1), retention_ms=9)
    assert effective_policy(policy, others) == EffectivePolicy()


def test_a_policy_is_stored_with_the_rules_that_were_set_and_no_other() -> None:
    """(13.26)"""
    policy = QueuePolicy(lease_ms=9, backoff=PartialBackoff(base_ms=3), version=2, created_ms=1, updated_ms=1)
    stored = msgspec.msgpack.decode(codec.encode(policy))
    assert stored == {"lease_ms": 9, "backoff": [None, 3, None], "version": 2, "created_ms": 1, "updated_ms": 1}
    assert codec.decode_policy(codec.encode(policy)) == policy


def make_task() -> Task:
    return Task(
        "0192f0c1-2d3e-7abc-8def-0123456789ab", "acme", "mail", 3, Status.PENDING, 7, 6, Move.ENQUEUE, None, 1, 1, 0,
        0, 5, 0, 100, 0, None, 0, None, None, 0, 0, 2, None, None, False,
    )  # fmt: skip


def test_the_position_of_every_field_on_disk_is_fixed() -> None:
    assert Task.__struct_fields__[:27] == (
        "id", "tenant", "command", "priority", "status", "version", "previous", "move", "status_before", "created_ms",
        "updated_ms", "visible_ms", "attempts", "max_attempts", "deliveries", "max_deliveries", "lease_token", "worker",
        "lease_until_ms", "error", "last_error", "ended_ms", "purge_ms", "payload_bytes", "trace_id", "backoff",
        "has_webhook",
    )  # fmt: skip
    assert Body.__struct_fields__[:5] == ("payload", "idempotency_key", "webhook", "trace_parent", "trace_state")
    assert Backoff.__struct_fields__[:3] == ("kind", "base_ms", "max_ms")


@settings(max_examples=20, deadline=None)
@given(st.lists(tasks, min_size=1, max_size=3), st.text(min_size=1, max_size=64))
def test_a_claim_with_a_request_id_is_split_into_its_tasks_and_the_id(claimed: list[Task], request_id: str) -> None:
    joined = codec.joined([codec.encode(task) for task in claimed])
    found, found_id = codec.split_claim(codec.claim_record(joined, request_id))
    assert (codec.decode_tasks(found), found_id) == (claimed, request_id)


@settings(max_examples=20, deadline=None)
@given(st.lists(tasks, min_size=1, max_size=3))
def test_a_claim_without_a_request_id_is_stored_as_before_there_were_any(claimed: list[Task]) -> None:
    joined = codec.joined([codec.encode(task) for task in claimed])
    assert codec.claim_record(joined, None) == joined
    assert codec.split_claim(joined) == (joined, None)
