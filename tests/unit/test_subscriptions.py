"""Which subscriptions a notification goes to, by mode."""

from collections import Counter

from codeq.domain.subscriptions import DeliveryMode, Subscription, candidates


def subscription(number: int, mode: DeliveryMode, group: str | None = None) -> Subscription:
    return Subscription(
        id=f"s{number:03}", tenant="acme", owner="w", url="https://example.com/", commands=None, mode=mode, group=group,
        min_interval_ms=0, ttl_ms=1, created_ms=0, expires_ms=1,
    )  # fmt: skip


def chosen(subscriptions: list[Subscription], task_id: str, last: dict[str, str] | None = None) -> list[str]:
    return [place[0].id for place in candidates(subscriptions, task_id, last_notified=last or {})]


def test_fanout_tells_everybody() -> None:
    everybody = [subscription(n, DeliveryMode.FANOUT) for n in range(5)]
    assert chosen(everybody, "t") == [each.id for each in everybody]


def test_each_group_tells_one_member_and_goes_on_after_the_last() -> None:
    members = [subscription(n, DeliveryMode.GROUP, "ab"[n % 2]) for n in (4, 1, 0, 3, 2, 5)]
    assert sorted(chosen(members, "t")) == ["s000", "s001"]
    assert sorted(chosen(members, "t", {"a": "s002", "b": "s005"})) == ["s001", "s004"]
    assert sorted(chosen(members, "t", {"a": "s003"})) == ["s001", "s004"], "the last one has left its group"


def test_the_order_of_a_group_ends_with_the_member_that_was_last() -> None:
    members = [subscription(n, DeliveryMode.GROUP, "g") for n in range(3)]
    [order] = candidates(members, "t", last_notified={"g": "s001"})
    assert [each.id for each in order] == ["s002", "s000", "s001"]


def test_a_hash_spreads_tasks_evenly_and_always_in_the_same_way() -> None:
    members = [subscription(n, DeliveryMode.HASH) for n in range(10)]
    tasks = [f"task-{n}" for n in range(5000)]
    counted = Counter(chosen(members, task)[0] for task in tasks)
    assert min(counted.values()) > 350
    assert max(counted.values()) < 650
    assert [chosen(members, task) for task in tasks] == [chosen(members[::-1], task) for task in tasks]


def test_a_member_that_leaves_moves_only_its_own_tasks() -> None:
    members = [subscription(n, DeliveryMode.HASH) for n in range(10)]
    for task in (f"task-{n}" for n in range(1000)):
        [before] = chosen(members, task)
        [after] = chosen(members[1:], task)
        assert before in (after, "s000")


def test_all_modes_are_told_of_the_same_queue() -> None:
    mixed = [
        subscription(0, DeliveryMode.FANOUT),
        subscription(1, DeliveryMode.GROUP, "a"),
        subscription(2, DeliveryMode.HASH),
    ]
    assert sorted(chosen(mixed, "t")) == ["s000", "s001", "s002"]
