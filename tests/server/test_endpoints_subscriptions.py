"""The routes of subscriptions: what they take, answer and refuse. Notifications themselves: tests/webhooks."""

from typing import Any

import pytest
from tests.server.server_process import Server, Tenant, answered, at, refused

from codeq.wire import paths

URL = "https://example.com/ready"


def subscribe(tenant: Tenant, **fields: Any) -> str:
    made = answered(
        tenant.worker.post(paths.SUBSCRIPTIONS, {"callbackUrl": URL, "eventTypes": ["work"], **fields}), 200
    )
    assert made["expiresAt"].endswith("Z")
    return str(made["subscriptionId"])


def listed(tenant: Tenant) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answered(tenant.admin.get(paths.ADMIN_SUBSCRIPTIONS), 200)["subscriptions"]
    return found


def test_operators_list_and_delete_what_workers_made(tenant: Tenant) -> None:
    first = subscribe(tenant, deliveryMode="group", groupId="g", minIntervalSeconds=2.5)
    second = subscribe(tenant, eventTypes=None)
    one, other = listed(tenant)
    assert (one["id"], other["id"]) == (first, second)
    assert (one["deliveryMode"], one["groupId"], one["minIntervalSeconds"]) == ("group", "g", 2.5)
    assert (one["owner"], one["callbackUrl"]) == (f"{tenant.name}-worker", URL)
    assert other["eventTypes"] == ["*"]
    assert tenant.admin.delete(at(paths.ADMIN_SUBSCRIPTION, first)).status_code == 204
    assert tenant.worker.delete(at(paths.SUBSCRIPTION, second)).status_code == 204
    assert listed(tenant) == []
    refused(tenant.admin.delete(at(paths.ADMIN_SUBSCRIPTION, first)), 404, "not-found")
    refused(tenant.worker.delete(at(paths.SUBSCRIPTION, second)), 404, "not-found")


def test_a_heartbeat_renews_with_or_without_a_body(tenant: Tenant) -> None:
    subscription = subscribe(tenant, ttlSeconds=5)
    path = at(paths.SUBSCRIPTION_HEARTBEAT, subscription)
    first = answered(tenant.worker.post(path), 200)
    assert first["subscriptionId"] == subscription
    assert answered(tenant.worker.post(path, {"ttlSeconds": 600}), 200)["expiresAt"] > first["expiresAt"]
    refused(tenant.worker.post(at(paths.SUBSCRIPTION_HEARTBEAT, "none")), 404, "not-found")


def test_a_token_reaches_only_subscriptions_to_its_own_commands(tenant: Tenant) -> None:
    subscription = subscribe(tenant)
    narrow = tenant.worker_named("narrow", commands=["other"])
    refused(narrow.post(at(paths.SUBSCRIPTION_HEARTBEAT, subscription)), 403, "forbidden")
    refused(narrow.delete(at(paths.SUBSCRIPTION, subscription)), 403, "forbidden")
    refused(narrow.post(paths.SUBSCRIPTIONS, {"callbackUrl": URL, "eventTypes": ["work"]}), 403, "forbidden")
    by_token = answered(narrow.post(paths.SUBSCRIPTIONS, {"callbackUrl": URL}), 200)["subscriptionId"]
    assert {each["id"]: each["eventTypes"] for each in listed(tenant)}[by_token] == ["other"]
    unscoped = tenant.worker_named("unscoped", scopes=["codeq:claim"])
    refused(unscoped.post(paths.SUBSCRIPTIONS, {"callbackUrl": URL}), 403, "forbidden")


def test_other_tenants_do_not_see_them(server: Server, tenant: Tenant) -> None:
    subscription = subscribe(tenant)
    stranger = server.tenant()
    assert listed(stranger) == []
    refused(stranger.worker.post(at(paths.SUBSCRIPTION_HEARTBEAT, subscription)), 404, "not-found")
    refused(stranger.admin.delete(at(paths.ADMIN_SUBSCRIPTION, subscription)), 404, "not-found")
    assert [each["id"] for each in listed(tenant)] == [subscription]


@pytest.mark.parametrize(
    "wrong",
    [
        {"callbackUrl": "http://10.0.0.1/"},
        {"callbackUrl": "http://169.254.169.254/latest"},
        {"callbackUrl": "file:///etc/passwd"},
        {"callbackUrl": "http://user:password@example.com/"},
        {"deliveryMode": "all"},
        {"deliveryMode": "group"},
        {"groupId": "g"},
        {"ttlSeconds": 1e6},
        {"ttlSeconds": 0.5},
        {"ttlSeconds": -1},
        {"eventTypes": ["$webhooks"]},
        {"eventTypes": ["a/b"]},
        {"minIntervalSeconds": 1e6},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_subscription_that_cannot_be_is_refused_with_400(tenant: Tenant, wrong: dict[str, Any]) -> None:
    answer = tenant.worker.post(paths.SUBSCRIPTIONS, {"callbackUrl": URL, **wrong})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]
