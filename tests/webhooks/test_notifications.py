"""Subscriptions over HTTP: made, renewed, listed, deleted; and notifications that arrive, signed and traced."""

import hashlib
import hmac
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.redis_servers import start_node
from tests.server.server_process import Server, Tenant, answered, eventually, start_server
from tests.webhooks.notified import Receiver, receiving

from codeq.domain.subscriptions import DeliveryMode, Subscription, candidates
from codeq.wire import paths

SECRET = "a-secret-of-at-least-24-bytes"
SETTINGS: dict[str, Any] = {"webhooks": {"allow": "127.0.0.1", "secret": SECRET}}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("notifying"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return server.tenant()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def subscribe(tenant: Tenant, url: str, **fields: Any) -> str:
    body = {"callbackUrl": url, "eventTypes": ["work"], "minIntervalSeconds": 0, **fields}
    made = answered(tenant.worker.post(paths.SUBSCRIPTIONS, body), 200)
    assert made["expiresAt"].endswith("Z")
    return str(made["subscriptionId"])


def test_a_subscriber_is_told_with_depth_claim_url_signature_and_trace(tenant: Tenant, receiver: Receiver) -> None:
    name = tenant.name
    subscription = subscribe(tenant, receiver.url(name))
    task = tenant.create(traceParent=TRACE, traceState="vendor=1")
    [got] = receiver.wait_for(name)
    assert got.body["eventType"] == "work"
    assert got.body["available"] is True
    assert got.body["queueDepth"] == 1
    assert got.body["claimUrl"] == paths.CLAIM
    assert got.body["subscriptionId"] == subscription
    assert got.body["notificationId"] == got.headers["webhook-id"]
    assert got.headers["traceparent"] == TRACE
    assert got.headers["tracestate"] == "vendor=1"
    signed = got.headers["x-codeq-timestamp"].encode() + b"." + got.raw
    assert got.headers["x-codeq-signature"] == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert tenant.claim()["id"] == task["id"]
    tenant.create()
    again = receiver.wait_for(name, 2)[1]
    assert again.body["notificationId"] != got.body["notificationId"]


def test_a_server_that_has_started_again_tells_those_who_had_subscribed(tmp_path: Path, receiver: Receiver) -> None:
    with start_server(tmp_path, settings=SETTINGS) as before:
        tenant = Tenant(before, "restarted")
        subscribe(tenant, receiver.url(tenant.name))
    with start_server(tmp_path, settings=SETTINGS) as after:
        tenant = Tenant(after, "restarted")
        tenant.create()
        receiver.wait_for(tenant.name)


def test_metrics_count_subscriptions_and_notifications(server: Server, receiver: Receiver) -> None:
    tenant = server.tenant()
    subscribe(tenant, receiver.url(tenant.name), eventTypes=["counted"])
    tenant.create("counted")
    receiver.wait_for(tenant.name)
    text = server.request("GET", paths.METRICS, token=None).text
    assert 'codeq_subscriptions_active{command="counted"} 1.0' in text


def test_a_receiver_that_never_answers_does_not_keep_others_waiting(
    tmp_path: Path, tenant: Tenant, receiver: Receiver
) -> None:
    import socket  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as silent:
        hostile = tenant.server.tenant()
        for number in range(40):
            subscribe(hostile, f"http://127.0.0.1:{silent.getsockname()[1]}/{number}")
        hostile.create()
        subscribe(tenant, receiver.url(tenant.name))
        tenant.create()
        receiver.wait_for(tenant.name)


FANOUT, GROUPS, MEMBERS, HASHED = 34, 3, 11, 33
ROUNDS, TASKS = 20, 10_000


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["3 shards", "3 replicas"])
def test_each_mode_tells_exactly_whom_it_promises(tmp_path: Path, receiver: Receiver, shape: str) -> None:
    """100 subscriptions in three modes, and 10,000 tasks in rounds that fill the queue and empty it."""
    with ExitStack() as stack:
        servers = _start(tmp_path, stack, shape)
        tenants = [Tenant(each, "modes") for each in servers]
        prefix = shape.replace(" ", "-")
        modes: dict[str, dict[str, Any]] = {
            **{f"{prefix}-f{n}": {} for n in range(FANOUT)},
            **{
                f"{prefix}-g{group}-{n}": {"deliveryMode": "group", "groupId": f"g{group}"}
                for group in range(GROUPS)
                for n in range(MEMBERS)
            },
            **{f"{prefix}-h{n}": {"deliveryMode": "hash"} for n in range(HASHED)},
        }
        ids = {
            name: subscribe(tenants[number % len(tenants)], receiver.url(name), **fields)
            for number, (name, fields) in enumerate(modes.items())
        }
        assert len(ids) == 100
        for each in servers:  # other servers learn of subscriptions within a second
            eventually(lambda server=each: _subscriptions(server) == 100)  # type: ignore[misc]
        hashed = [name for name in ids if name.startswith(f"{prefix}-h")]
        expected_hashed = dict.fromkeys(hashed, 0)
        for number in range(ROUNDS):
            task = tenants[number % len(tenants)].create()
            expected_hashed[_hashed(task["id"], {ids[name]: name for name in hashed})] += 1
            expected_total = (number + 1) * (FANOUT + GROUPS + 1)

            def of_this_run(counts: dict[str, int]) -> int:
                return sum(number for name, number in counts.items() if name.startswith(prefix))

            counts = receiver.wait(lambda counts, wanted=expected_total: of_this_run(counts) >= wanted)  # type: ignore[misc]
            assert of_this_run(counts) == expected_total
            batch = {"tasks": [{"command": "work", "payload": n} for n in range(TASKS // ROUNDS - 1)]}
            answered(tenants[(number + 1) % len(tenants)].producer.post(paths.TASKS_BATCH, batch), 200)
            with ThreadPoolExecutor(len(tenants)) as pool:  # all servers at once
                list(pool.map(_claim_all, tenants))
        counts = receiver.counts()
        assert {counts.get(name, 0) for name in ids if name.startswith(f"{prefix}-f")} == {ROUNDS}
        for group in range(GROUPS):
            got = [counts.get(f"{prefix}-g{group}-{n}", 0) for n in range(MEMBERS)]
            assert sum(got) == ROUNDS
            assert max(got) - min(got) <= 1, "not in rotation"
        assert {name: counts.get(name, 0) for name in hashed} == expected_hashed


def _claim_all(tenant: Tenant) -> None:
    while tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 60}).status_code == 200:
        pass


def _subscriptions(server: Server) -> int:
    text = server.request("GET", paths.METRICS, token=None).text
    return sum(
        int(float(line.split()[-1])) for line in text.splitlines() if line.startswith("codeq_subscriptions_active{")
    )


def _start(tmp_path: Path, stack: ExitStack, shape: str) -> list[Server]:
    if shape == "3 shards":
        settings = {**SETTINGS, "store": {"shards": 3}}
        return [stack.enter_context(start_server(tmp_path / "server", settings=settings))]
    node = stack.enter_context(start_node(tmp_path / "redis", appendonly="yes", appendfsync="always"))
    settings = {**SETTINGS, "store": {"url": node.url}}
    data = tmp_path / "keys"
    return [
        stack.enter_context(start_server(tmp_path / f"replica-{n}", settings=settings, data=data)) for n in range(3)
    ]


def _hashed(task_id: str, names: dict[str, str]) -> str:
    """Returns the name of the subscription that the task hashes to."""
    members = [
        Subscription(
            id=each, tenant="", owner="", url="", commands=None, mode=DeliveryMode.HASH, group=None, min_interval_ms=0,
            ttl_ms=0, created_ms=0, expires_ms=0,
        )
        for each in names
    ]  # fmt: skip
    [[chosen]] = candidates(members, task_id, last_notified={})
    return names[chosen.id]
