"""The keys of the RocksDB engine: no name is a prefix of another, and byte order is the order of the queue."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeq.domain.queue import QueueKey
from codeq.store.rocksdb import keys

# Mostly the bytes that are escaped; `name` must be safe whatever a name contains.
names = st.text(alphabet="\0\x01\xff/ab", max_size=6) | st.text(max_size=12)
queues = st.builds(QueueKey, names, names)
priorities = st.integers(0, 9)
versions = st.integers(0, (1 << 64) - 1)
ids = st.uuids().map(str)


@settings(max_examples=150, deadline=None)
@given(names, names)
def test_no_name_is_the_beginning_of_another(a: str, b: str) -> None:
    assert keys.name(b).startswith(keys.name(a)) is (a == b)


@settings(max_examples=150, deadline=None)
@given(st.lists(names, max_size=4))
def test_names_come_back_as_they_were_whatever_they_hold(texts: list[str]) -> None:
    assert keys.split_names(b"".join(keys.name(text) for text in texts)) == texts


@settings(max_examples=120, deadline=None)
@given(queues, priorities, versions, queues)
def test_the_keys_of_one_queue_are_never_among_those_of_another(
    queue: QueueKey, priority: int, version: int, other: QueueKey
) -> None:
    pending = keys.pending_prefix(queue, priority) + keys.number(version)
    dead = keys.dead_prefix(queue) + keys.number(version)
    for p in range(10):
        assert pending.startswith(keys.pending_prefix(other, p)) is (queue == other and p == priority)
    assert dead.startswith(keys.dead_prefix(other)) is (queue == other)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(priorities, versions), min_size=2, max_size=8, unique=True), queues)
def test_pending_keys_sort_by_priority_and_then_by_version(entries: list[tuple[int, int]], queue: QueueKey) -> None:
    by_bytes = sorted(entries, key=lambda entry: keys.pending_prefix(queue, entry[0]) + keys.number(entry[1]))
    assert by_bytes == sorted(entries, key=lambda entry: (-entry[0], entry[1]))


@pytest.mark.parametrize("timed", [partial(keys.delayed, QueueKey("acme", "mail")), keys.ended])
@settings(max_examples=60, deadline=None)
@given(entries=st.lists(st.tuples(versions, versions), min_size=2, max_size=8, unique=True))
def test_timed_keys_sort_by_time_and_then_by_version(
    timed: Callable[[int, int], bytes], entries: list[tuple[int, int]]
) -> None:
    assert sorted(entries, key=lambda entry: timed(*entry)) == sorted(entries)


@pytest.mark.parametrize("numbered", [keys.number, keys.claim_batch, keys.events])
@settings(max_examples=60, deadline=None)
@given(a=versions, b=versions)
def test_numbered_keys_sort_by_number(numbered: Callable[[int], bytes], a: int, b: int) -> None:
    assert (numbered(a) < numbered(b)) is (a < b)


@settings(max_examples=120, deadline=None)
@given(st.tuples(names, names), st.tuples(names, names))
def test_an_idempotency_key_belongs_to_one_tenant(a: tuple[str, str], b: tuple[str, str]) -> None:
    assert (keys.idempotency(*a) == keys.idempotency(*b)) is (a == b)


@settings(max_examples=120, deadline=None)
@given(st.tuples(names, ids), st.tuples(names, ids))
def test_a_record_belongs_to_one_tenant_and_id(a: tuple[str, str], b: tuple[str, str]) -> None:
    for make in (keys.body, keys.current_record):
        assert (make(*a) == make(*b)) is (a == b)
    if a[0] != b[0]:
        assert not keys.body(*a).startswith(keys.BODIES + keys.name(b[0]))


@settings(max_examples=60, deadline=None)
@given(queues, queues)
def test_counts_and_policies_name_their_queue(a: QueueKey, b: QueueKey) -> None:
    assert QueueKey(*keys.split_names(keys.counts(a)[len(keys.COUNTS) :])) == a
    assert QueueKey(*keys.split_names(keys.policy(a)[len(keys.POLICIES) :])) == a
    assert (keys.counts(a) == keys.counts(b)) is (a == b)


@settings(max_examples=60, deadline=None)
@given(queues, priorities, st.binary(max_size=12))
def test_a_scan_up_to_after_sees_all_of_its_prefix_and_nothing_else(
    queue: QueueKey, priority: int, rest: bytes
) -> None:
    for prefix in (
        keys.pending_prefix(queue, priority),
        keys.dead_prefix(queue),
        keys.delayed_prefix(queue),
        keys.EVENTS,
    ):
        assert prefix + rest < keys.after(prefix)
        assert not keys.after(prefix).startswith(prefix)
        assert prefix + b"\xff" * 20 < keys.after(prefix)


def test_every_kind_of_key_begins_differently() -> None:
    queue = QueueKey("acme", "mail")
    made = [
        keys.FORMAT, keys.body("t", "i"), keys.current_record("t", "i"), keys.idempotency("t", "k"),
        keys.pending_prefix(queue, 0), keys.delayed(queue, 1, 1), keys.claim_batch(1), keys.dead_prefix(queue),
        keys.ended(1, 1), keys.events(1), keys.counts(queue), keys.policy(queue), keys.UNREADABLE, keys.usage("t"),
        keys.DELAYED_FORMAT_1, keys.large_payload("t", "i"), keys.large_result("t", "i"),
        keys.registration("k", "t", "n"),
    ]  # fmt: skip
    assert len({key[:2] for key in made}) == len(made)
    assert all(key[1:2] == b"/" for key in made)


def test_the_table_of_keys_lists_every_kind() -> None:
    drawn = {line.split("/")[0].strip() for line in (keys.__doc__ or "").splitlines() if line[4:6].endswith("/")}
    made = {"m", "b", "t", "i", "p", "d", "w", "z", "h", "q", "x", "e", "c", "y", "l", "r", "u", "g"}
    assert drawn == made
