"""Breakers, slots and the rotation of tenants, each on its own."""

import asyncio

import pytest

from codeq.domain.limits import WEBHOOK_BREAKERS_MAX, WEBHOOK_BYTES_MAX, WEBHOOK_TENANTS_MAX
from codeq.domain.queue import WEBHOOKS, QueueKey
from codeq.server.webhooks.breaker import FAILURES_MAX, OPEN_S_MAX, OPEN_S_MIN, Breakers
from codeq.server.webhooks.metrics import COMMANDS_MAX, WebhookMetrics
from codeq.server.webhooks.slots import HostSlots, SlotLimits, Slots
from codeq.usecases.deliver import Backlog
from codeq.usecases.subscribed_tenants import COUNTED_MAX, SubscriptionCounts


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock) -> Breakers:
    breakers = Breakers(clock)
    for _ in range(FAILURES_MAX):
        assert breakers.wait_s("acme", "h") == 0
        breakers.failed("acme", "h")
    return breakers


def test_a_breaker_opens_after_failures_in_a_row_for_its_tenant_and_host_alone() -> None:
    breakers = opened(Clock())
    assert breakers.wait_s("acme", "h") == OPEN_S_MIN
    assert breakers.wait_s("acme", "other") == breakers.wait_s("other", "h") == 0
    assert breakers.open == 1


def test_a_success_in_between_keeps_it_closed() -> None:
    breakers = Breakers(Clock())
    for _ in range(5):
        for _ in range(FAILURES_MAX - 1):
            breakers.failed("acme", "h")
        breakers.succeeded("acme", "h")
    assert breakers.wait_s("acme", "h") == 0


def test_one_trial_decides_and_each_failed_one_doubles_the_pause() -> None:
    clock = Clock()
    breakers = opened(clock)
    pauses = []
    for _ in range(6):
        clock.now_s += breakers.wait_s("acme", "h")
        assert breakers.wait_s("acme", "h") == 0, "the trial"
        assert breakers.wait_s("acme", "h") > 0, "one only"
        breakers.failed("acme", "h")
        pauses.append(breakers.wait_s("acme", "h"))
    assert pauses == [10, 20, 40, OPEN_S_MAX, OPEN_S_MAX, OPEN_S_MAX]
    clock.now_s += OPEN_S_MAX
    assert breakers.wait_s("acme", "h") == 0
    breakers.succeeded("acme", "h")
    assert (breakers.wait_s("acme", "h"), breakers.open) == (0, 0)


def test_what_was_under_way_when_it_opened_does_not_prolong_the_pause() -> None:
    breakers = opened(Clock())
    for _ in range(20):
        breakers.failed("acme", "h")
    assert breakers.wait_s("acme", "h") == OPEN_S_MIN


def test_a_trial_that_was_not_made_is_made_by_the_next() -> None:
    clock = Clock()
    breakers = opened(clock)
    clock.now_s += OPEN_S_MIN
    assert breakers.wait_s("acme", "h") == 0
    breakers.trial_not_made("acme", "h")
    assert breakers.wait_s("acme", "h") == 0


def test_breakers_are_bounded() -> None:
    breakers = opened(Clock())
    for number in range(WEBHOOK_BREAKERS_MAX):
        breakers.failed("mallory", str(number))
    assert breakers.open == 0, "the oldest was forgotten"


def test_slow_tenants_never_have_all_slots() -> None:
    slots = Slots(SlotLimits(total=128, tenant=16))
    for number in range(12):
        assert slots.reserve(f"slow{number}") >= 1
        while slots.reserve(f"slow{number}"):
            pass
    assert slots.reserve("quick") >= 1
    assert slots.used < 128


def test_a_tenant_has_no_more_than_its_slots_and_gets_them_back() -> None:
    slots = Slots(SlotLimits(total=100, tenant=5))
    assert slots.reserve("a") == 5
    assert slots.reserve("a") == 0
    slots.release("a", 3)
    assert slots.reserve("a") == 3
    slots.release("a", 5)
    assert slots.used == 0


def test_nothing_is_taken_while_too_many_bytes_are_held() -> None:
    slots = Slots(SlotLimits())
    slots.hold_bytes(WEBHOOK_BYTES_MAX)
    assert slots.is_full
    assert slots.reserve("a") == 0
    slots.hold_bytes(-1)
    assert slots.reserve("a") > 0


async def _host_slots() -> None:
    hosts = HostSlots(1)
    async with hosts.slot("a", "h", wait_s=1):
        async with hosts.slot("a", "other", wait_s=1), hosts.slot("b", "h", wait_s=1):
            pass
        with pytest.raises(TimeoutError):
            async with hosts.slot("a", "h", wait_s=0.01):
                raise AssertionError
    async with hosts.slot("a", "h", wait_s=1):
        pass
    assert not hosts._hosts


def test_slots_of_a_host_are_those_of_one_tenant() -> None:
    asyncio.run(_host_slots())


def test_tenants_are_served_in_rotation_and_each_is_there_once() -> None:
    backlog = Backlog()
    for tenant in ("a", "b", "a", "c"):
        backlog.ready(QueueKey(tenant, WEBHOOKS), 1)
    backlog.ready(QueueKey("d", "work"), 1)
    assert [backlog.next() for _ in range(4)] == ["a", "b", "c", None]
    backlog.policies_changed([QueueKey("e", WEBHOOKS), QueueKey("e", "work")])
    assert len(backlog) == 1


def test_tenants_that_do_not_fit_are_looked_for_later() -> None:
    backlog = Backlog()
    backlog.may_have_missed = False
    for number in range(WEBHOOK_TENANTS_MAX + 1):
        backlog.add(str(number))
    assert len(backlog) == WEBHOOK_TENANTS_MAX
    assert backlog.may_have_missed


def test_counters_are_bounded_however_many_commands_there_are() -> None:
    metrics = WebhookMetrics()
    for number in range(COMMANDS_MAX + 50):
        metrics.delivered("task_result", f"c{number}", is_success=True)
    [deliveries, *_] = metrics.collect()
    assert len(deliveries.samples) == COMMANDS_MAX + 1
    assert sum(sample.value for sample in deliveries.samples) == COMMANDS_MAX + 50


def test_subscriptions_to_many_commands_are_counted_together_under_one_label() -> None:
    counts, metrics = SubscriptionCounts(), WebhookMetrics()
    metrics.show_subscriptions(lambda: counts)
    counts.add("other", 1)  # a command that anybody may subscribe to
    for number in range(2 * COUNTED_MAX):
        counts.add(f"c{number}", 2)
    shown = _subscriptions(metrics)
    assert len(shown) == COUNTED_MAX
    assert sum(shown.values()) == 4 * COUNTED_MAX + 1
    for number in range(2 * COUNTED_MAX):
        counts.add(f"c{number}", -2)
    assert _subscriptions(metrics) == {"other": 1}


def _subscriptions(metrics: WebhookMetrics) -> dict[str, float]:
    [active] = [each for each in metrics.collect() if each.name == "codeq_subscriptions_active"]
    labels = [sample.labels["command"] for sample in active.samples]
    assert len(set(labels)) == len(labels), "Prometheus refuses a scrape with two samples of the same labels"
    return {sample.labels["command"]: sample.value for sample in active.samples}
