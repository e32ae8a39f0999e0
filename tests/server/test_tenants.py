"""No tenant sees, changes or disturbs what belongs to another: one check per route, and a new route needs one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.server.server_process import Caller, Server, Tenant, answered, at, refused, waiting

from codeq.server.routes import ROUTES, Route
from codeq.wire import paths

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"
DONE = {"status": "COMPLETED", "result": {}}
LATE = "2100-01-01T00:00:00Z"


@dataclass
class Neighbours:
    """A tenant with tasks in every state, and a second tenant whose callers have the same names."""

    owner: Tenant
    stranger: Tenant
    pending: str
    delayed: str
    held: str
    ended: str
    dead: str
    cursor: str
    dead_cursor: str
    offset: int

    @property
    def ids(self) -> list[str]:
        return [self.pending, self.delayed, self.held, self.ended, self.dead]

    @property
    def worker(self) -> Caller:
        """A worker of the second tenant, with the name of the owner's worker."""
        return self.stranger.worker_named(f"{self.owner.name}-worker")

    def snapshot(self) -> dict[str, Any]:
        """Returns all that the owner has, without what changes in the background."""
        owner, admin = self.owner, self.owner.admin
        queues = answered(owner.producer.get(paths.QUEUES), 200)["queues"]
        return {
            "tasks": answered(owner.producer.get(paths.TASKS, limit=1000), 200),
            "results": [owner.producer.get(at(paths.RESULT, task)).text for task in self.ids],
            "queues": [{**queue, "oldestAgeSeconds": 0} for queue in queues],
            "topic": answered(admin.get(at(paths.TOPIC, "secret")), 200),
            "events": answered(admin.get(paths.EVENTS, limit=50_000, offset=self.offset), 200)["events"],
        }


@pytest.fixture(scope="module")
def owned(server: Server) -> Neighbours:
    owner = server.tenant()
    start = answered(owner.admin.get(paths.EVENTS, limit=1), 200)["endOffset"]
    answered(owner.admin.put(at(paths.TOPIC, "secret"), {"policy": {"maxAttempts": 9}}), 201)
    dead, ended = owner.dead("secret"), owner.ended("secret", idempotencyKey="ended-key")
    owner.dead("secret")
    held = owner.held("secret")
    pending, delayed = owner.create("secret", idempotencyKey="key"), owner.create("secret", delaySeconds=3600)
    return Neighbours(
        owner=owner,
        stranger=owner,
        pending=pending["id"],
        delayed=delayed["id"],
        held=held["id"],
        ended=ended["id"],
        dead=dead["id"],
        cursor=answered(owner.producer.get(paths.TASKS, limit=1), 200)["cursor"],
        dead_cursor=answered(owner.admin.get(paths.DLQ, limit=1), 200)["cursor"],
        offset=start,
    )


@pytest.fixture
def two(server: Server, owned: Neighbours) -> Neighbours:
    return Neighbours(**(vars(owned) | {"stranger": server.tenant()}))


Check = Callable[[Neighbours], None]
CHECKS: dict[tuple[str, str], Check] = {}


def on(method: str, path: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        assert (method, path) not in CHECKS
        CHECKS[method, path] = check
        return check

    return register


def same_but_for_the_id(mine: httpx.Response, unknown: httpx.Response, task: str) -> None:
    assert (mine.status_code, mine.json()["code"]) == (404, "not-found"), mine.text
    assert mine.text.replace(task, UNKNOWN) == unknown.text
    assert set(mine.headers) == set(unknown.headers)


def every_id_is_unknown(method: str, path: str, who: Callable[[Neighbours], Caller], body: Any = None) -> None:
    def check(two: Neighbours) -> None:
        caller = who(two)
        unknown = caller.request(method, at(path, UNKNOWN), body)
        for task in two.ids:
            same_but_for_the_id(caller.request(method, at(path, task), body), unknown, task)

    on(method, path)(check)


every_id_is_unknown("GET", paths.TASK, lambda two: two.stranger.producer)
every_id_is_unknown("GET", paths.HISTORY, lambda two: two.stranger.producer)
every_id_is_unknown("POST", paths.CANCEL, lambda two: two.stranger.producer)
every_id_is_unknown("POST", paths.HEARTBEAT, lambda two: two.worker, {"leaseToken": 1})
every_id_is_unknown("POST", paths.ABANDON, lambda two: two.worker, {"leaseToken": 1})
every_id_is_unknown("POST", paths.NACK, lambda two: two.worker, {"leaseToken": 1})
every_id_is_unknown("POST", paths.RESULT, lambda two: two.worker, DONE | {"leaseToken": 1})
every_id_is_unknown("GET", paths.ARTIFACTS, lambda two: two.stranger.producer)
every_id_is_unknown("GET", paths.ARTIFACT, lambda two: two.stranger.producer)
every_id_is_unknown("PUT", paths.ARTIFACT, lambda two: two.worker, {"any": "bytes"})
every_id_is_unknown("DELETE", paths.ARTIFACT, lambda two: two.worker)
every_id_is_unknown("GET", paths.DELIVERY, lambda two: two.stranger.admin)
every_id_is_unknown("POST", paths.SUBSCRIPTION_HEARTBEAT, lambda two: two.worker)
every_id_is_unknown("DELETE", paths.SUBSCRIPTION, lambda two: two.worker)
every_id_is_unknown("DELETE", paths.ADMIN_SUBSCRIPTION, lambda two: two.stranger.admin)


@on("GET", paths.RESULT)
def results_are_unknown_at_once(two: Neighbours) -> None:
    for caller in (two.stranger.producer, two.worker):
        unknown = caller.get(at(paths.RESULT, UNKNOWN), waitSeconds=60)
        for task in two.ids:
            same_but_for_the_id(caller.get(at(paths.RESULT, task), waitSeconds=60), unknown, task)


@on("POST", paths.TASKS)
def an_idempotency_key_is_its_tenants_alone(two: Neighbours) -> None:
    body = {"command": "secret", "payload": 1}
    for key, payload in (("key", 1), ("ended-key", 2)):
        answer = two.stranger.producer.post(paths.TASKS, body | {"idempotencyKey": key, "payload": payload})
        task = answered(answer, 202)
        assert "idempotent-replay" not in answer.headers
        assert task["id"] not in two.ids
        assert (task["tenantId"], task["maxAttempts"]) == (two.stranger.name, 5), "the owner's policy is the owner's"


@on("POST", paths.TASKS_BATCH)
def an_idempotency_key_in_a_batch_is_its_tenants_alone(two: Neighbours) -> None:
    item = {"command": "secret", "payload": 1, "idempotencyKey": "key"}
    answer = two.stranger.producer.post(paths.TASKS_BATCH, {"tasks": [item, item | {"tenantId": two.owner.name}]})
    made, refusal = answered(answer, 200)["results"]
    assert made["task"]["tenantId"] == two.stranger.name
    assert made["task"]["id"] not in two.ids
    assert refusal["code"] == "invalid"


@on("GET", paths.TASKS)
def a_list_holds_only_ones_own_whatever_the_cursor(two: Neighbours) -> None:
    mine = two.stranger.create("secret")["id"]
    for query in ({}, {"command": "secret"}, {"status": "PENDING"}, {"cursor": two.cursor}, {"queue": "dead"}):
        page = answered(two.stranger.producer.get(paths.TASKS, **query), 200)
        assert {task["id"] for task in page["tasks"]} <= {mine}
        assert "cursor" not in page


@on("POST", paths.CLAIM)
def a_claim_gets_nothing_of_others_and_is_not_woken_by_them(two: Neighbours) -> None:
    body = {"commands": ["secret", "extra"], "waitSeconds": 0.5}
    other = two.owner.server.tenant()
    with waiting(two.worker, "POST", paths.CLAIM, body) as claim:
        other.create("extra")
        assert claim.result(10).status_code == 204
    assert two.worker.post(paths.CLAIM, {}).status_code == 204


@on("POST", paths.CLAIM_BATCH)
def a_batch_claim_gets_nothing_of_others(two: Neighbours) -> None:
    for body in ({"count": 100}, {"count": 100, "commands": ["secret"]}):
        assert two.worker.post(paths.CLAIM_BATCH, body).status_code == 204


@on("POST", paths.RESULTS_BATCH)
def a_batch_of_results_for_others_tasks_finds_none(two: Neighbours) -> None:
    items = [{"taskId": task, **DONE, "leaseToken": 1} for task in [*two.ids, UNKNOWN]]
    results = answered(two.worker.post(paths.RESULTS_BATCH, {"results": items}), 200)["results"]
    assert {item["code"] for item in results} == {"not-found"}
    assert len({item["error"].replace(item["taskId"], "") for item in results}) == 1


@on("GET", paths.QUEUES)
def others_queues_are_not_listed(two: Neighbours) -> None:
    for caller in (two.stranger.producer, two.worker):
        assert answered(caller.get(paths.QUEUES), 200) == {"queues": []}


@on("GET", paths.EVENTS)
def others_events_are_not_read(two: Neighbours) -> None:
    page = answered(two.stranger.admin.get(paths.EVENTS, offset=two.offset, limit=50_000), 200)
    assert page["events"] == []
    assert two.stranger.admin.get(paths.EVENTS, tenant=two.owner.name).status_code == 400


@on("GET", paths.ADMIN_QUEUES)
def others_counts_are_not_shown(two: Neighbours) -> None:
    assert answered(two.stranger.admin.get(paths.ADMIN_QUEUES), 200) == {}


@on("GET", paths.ADMIN_QUEUE)
def a_queue_of_the_same_name_is_another_queue(two: Neighbours) -> None:
    mine, unknown = two.stranger.counts("secret"), two.stranger.counts("no-such-queue")
    assert mine | {"command": ""} == unknown | {"command": ""}


@on("POST", paths.PAUSE)
def pausing_a_queue_of_the_same_name_pauses_ones_own(two: Neighbours) -> None:
    assert answered(two.stranger.admin.post(at(paths.PAUSE, "secret")), 200)["tenantId"] == two.stranger.name


@on("POST", paths.RESUME)
def resuming_a_queue_of_the_same_name_resumes_ones_own(two: Neighbours) -> None:
    answered(two.owner.admin.post(at(paths.PAUSE, "paused")), 200)
    answered(two.stranger.admin.post(at(paths.RESUME, "paused")), 200)
    assert two.owner.counts("paused")["paused"] is True


@on("POST", paths.CLEANUP)
def a_cleanup_leaves_others_tasks_alone(two: Neighbours) -> None:
    assert answered(two.stranger.admin.post(paths.CLEANUP, {"before": LATE}), 200)["deleted"] == 0


@on("PUT", paths.TOPIC)
def a_topic_of_the_same_name_is_another_topic(two: Neighbours) -> None:
    made = answered(two.stranger.admin.put(at(paths.TOPIC, "secret"), {"policy": {"maxAttempts": 1}}), 201)
    assert (made["topicId"], made["version"]) == (f"{two.stranger.name}.secret", 1)


@on("GET", paths.TOPIC)
def a_topic_of_others_is_unknown(two: Neighbours) -> None:
    mine = two.stranger.admin.get(at(paths.TOPIC, "secret"))
    unknown = two.stranger.admin.get(at(paths.TOPIC, "no-such-topic"))
    assert (mine.status_code, mine.text.replace("secret", "no-such-topic")) == (404, unknown.text)


@on("DELETE", paths.TOPIC)
def deleting_a_topic_of_the_same_name_deletes_ones_own(two: Neighbours) -> None:
    assert two.stranger.admin.delete(at(paths.TOPIC, "secret")).status_code == 204


@on("GET", paths.DLQ)
def others_dead_tasks_are_not_listed_whatever_the_cursor(two: Neighbours) -> None:
    for query in ({}, {"command": "secret"}, {"error": "MAX_ATTEMPTS"}, {"cursor": two.dead_cursor}):
        assert answered(two.stranger.admin.get(paths.DLQ, **query), 200) == {"tasks": []}


def no_dead_task_is_found(path: str) -> None:
    def check(two: Neighbours) -> None:
        for dry_run in (True, False):
            for choice in ({"all": True}, {"command": "secret"}, {"error": "MAX_ATTEMPTS"}):
                swept = answered(two.stranger.admin.post(path, {**choice, "dryRun": dry_run}), 200)
                assert (swept["matched"], swept["changed"], swept["ids"]) == (0, 0, [])
        ids = [*two.ids, UNKNOWN]
        assert answered(two.stranger.admin.post(path, {"ids": ids, "dryRun": True}), 200)["ids"] == []
        assert answered(two.stranger.admin.post(path, {"ids": ids}), 200)["refused"] == dict.fromkeys(ids, "not-found")

    on("POST", path)(check)


no_dead_task_is_found(paths.DLQ_REPLAY)
no_dead_task_is_found(paths.DLQ_PURGE)


@on("POST", paths.BACKUP)
def an_admin_of_one_tenant_backs_up_nothing(two: Neighbours) -> None:
    refused(two.stranger.admin.post(paths.BACKUP, {"name": "theirs"}), 403, "forbidden")


@on("GET", paths.DELIVERIES)
def others_deliveries_are_not_listed(two: Neighbours) -> None:
    assert answered(two.stranger.admin.get(paths.DELIVERIES), 200)["deliveries"] == []


@on("POST", paths.DELIVERIES_REPLAY)
def others_deliveries_are_not_replayed(two: Neighbours) -> None:
    swept = answered(two.stranger.admin.post(paths.DELIVERIES_REPLAY, {"all": True}), 200)
    assert (swept["matched"], swept["changed"]) == (0, 0)


@on("POST", paths.WEBHOOK_TEST)
def a_test_delivery_is_ones_own(two: Neighbours) -> None:
    made = answered(two.stranger.admin.post(paths.WEBHOOK_TEST, {"url": "https://example.invalid/"}), 202)
    assert two.owner.admin.get(at(paths.DELIVERY, made["id"])).status_code == 404


@on("GET", paths.WEBHOOK_SECRET)
def a_secret_is_ones_own(two: Neighbours) -> None:
    assert two.owner.name not in answered_text(two.stranger.admin.get(paths.WEBHOOK_SECRET))


@on("POST", paths.HEARTBEATS_BATCH)
def leases_of_others_are_not_extended(two: Neighbours) -> None:
    beats = [{"taskId": task_id, "leaseToken": 1, "extendSeconds": 3600} for task_id in two.ids]
    results = answered(two.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": beats}), 200)["results"]
    assert [(each["taskId"], each["code"]) for each in results] == [(task_id, "not-found") for task_id in two.ids]


@on("POST", paths.LEASES_WATCH)
def leases_of_others_are_lost_as_unknown_ones(two: Neighbours) -> None:
    unknown = "01a1ecef-bfc8-7001-8623-984b35e40000"
    ids = [*two.ids, unknown]
    wanted = {"leases": [{"taskId": task_id, "leaseToken": 1} for task_id in ids]}
    ended = answered(two.worker.post(paths.LEASES_WATCH, wanted), 200)["ended"]
    assert [(each["taskId"], each["code"]) for each in ended] == [(task_id, "not-found") for task_id in ids]


@on("GET", paths.WORKERS)
def others_workers_are_not_listed(two: Neighbours) -> None:
    names = {each["subject"] for each in answered(two.stranger.admin.get(paths.WORKERS), 200)["workers"]}
    assert not any(two.owner.name in name for name in names)


@on("DELETE", paths.WORKER)
def nobody_removes_anothers_worker(two: Neighbours) -> None:
    claim = {"commands": ["nothing"], "worker": {"name": "here"}}
    assert two.owner.worker.post(paths.CLAIM, claim).status_code == 204
    assert two.worker.delete(paths.WORKER.replace("{name}", "here")).status_code == 204
    listed = answered(two.owner.admin.get(paths.WORKERS), 200)["workers"]
    assert "here" in [each["name"] for each in listed]


@on("POST", paths.SUBSCRIPTIONS)
def a_subscription_is_ones_own(two: Neighbours) -> None:
    wanted = {"callbackUrl": "https://example.invalid/", "eventTypes": ["secret"]}
    made = answered(two.worker.post(paths.SUBSCRIPTIONS, wanted), 200)["subscriptionId"]
    assert two.owner.worker.delete(at(paths.SUBSCRIPTION, made)).status_code == 404


@on("GET", paths.ADMIN_SUBSCRIPTIONS)
def others_subscriptions_are_not_listed(two: Neighbours) -> None:
    assert answered(two.stranger.admin.get(paths.ADMIN_SUBSCRIPTIONS), 200) == {"subscriptions": []}


def answered_text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.text


def nothing_of_a_tenant(path: str) -> None:
    """Routes that need no token show nothing that a tenant stored."""

    def check(two: Neighbours) -> None:
        text = two.owner.server.request("GET", path, token=None).text
        assert not any(task in text for task in two.ids)

    on("GET", path)(check)


for open_path in (paths.HEALTHZ, paths.READYZ, paths.METRICS, paths.OPENAPI, paths.DOCS, paths.JWKS):
    nothing_of_a_tenant(open_path)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_stranger_gets_nothing_and_changes_nothing_on(route: Route, two: Neighbours) -> None:
    check = CHECKS.get((route.method, route.path))
    assert check is not None, "a new route: say here what a stranger gets from it"
    before = two.snapshot()
    check(two)
    assert two.snapshot() == before


def test_no_check_is_for_a_route_that_is_gone() -> None:
    assert set(CHECKS) == {(route.method, route.path) for route in ROUTES}


def test_the_owner_itself_does_get_what_the_stranger_does_not(two: Neighbours) -> None:
    """Otherwise the checks above would prove nothing."""
    owner = two.owner
    for task in two.ids:
        assert answered(owner.producer.get(at(paths.TASK, task)), 200)["id"] == task
        answered(owner.producer.get(at(paths.HISTORY, task)), 200)
    assert two.snapshot()["events"]
    assert len(answered(owner.admin.get(paths.DLQ, cursor=two.dead_cursor), 200)["tasks"]) == 1
    assert len(answered(owner.producer.get(paths.TASKS, cursor=two.cursor), 200)["tasks"]) == 5
    assert answered(owner.worker.post(at(paths.HEARTBEAT, two.held), {"leaseToken": 1}), 200)["ok"]


def test_names_that_differ_only_in_case_or_dots_are_different_tenants(server: Server) -> None:
    names = [f"Mix.{n}" for n in ("a", "A", "a.", ".a", "a-", "a_")]
    for name in names:
        server.tenant(name).create("c", payload=name)
    for name in names:
        tenant = server.tenant(name)
        [task] = answered(tenant.producer.get(paths.TASKS), 200)["tasks"]
        assert task["payload"] == f'"{name}"'
        assert tenant.claim("c")["id"] == task["id"]


def test_a_tenant_and_a_command_never_read_as_another_pair(server: Server) -> None:
    pairs = [("x.y", "z"), ("x", "y.z"), ("x.y.z", "z"), ("x", "y")]
    for tenant, command in pairs:
        server.tenant(tenant).create(command, payload=f"{tenant} {command}")
    for tenant, command in pairs:
        claimed = server.tenant(tenant).claim(command)
        assert claimed["payload"] == f'"{tenant} {command}"'
        assert server.tenant(tenant).worker.post(paths.CLAIM, {"commands": [command]}).status_code == 204
