"""Routes for admins: queues, policies that take effect, pauses, dead letters, cleanup."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.server.server_process import Caller, Server, Tenant, answered, at, eventually, refused, waiting

from codeq.wire import paths

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"
DONE = {"status": "COMPLETED", "result": {}}
DEFAULTS = {
    "priorityTiers": [], "maxAttempts": 5, "retentionSeconds": 86_400,
    "deadRetentionSeconds": 86_400, "maxConsumers": 0, "maxDeliveries": 100, "leaseSeconds": 300.0,
    "backoff": {"policy": "exp_full_jitter", "baseSeconds": 5.0, "maxSeconds": 900.0}, "onExpiry": "backoff",
    "paused": False,
}  # fmt: skip


def put(tenant: Tenant, topic: str = "work", **policy: Any) -> dict[str, Any]:
    answer = tenant.admin.put(at(paths.TOPIC, topic), {"policy": policy})
    assert answer.status_code in (200, 201), answer.text
    stored: dict[str, Any] = answer.json()
    return stored


def is_gone(tenant: Tenant, task_id: str) -> bool:
    return tenant.producer.get(at(paths.TASK, task_id)).status_code == 404


# Queues


def test_all_queues_are_a_flat_map_of_the_original_key_names(tenant: Tenant) -> None:
    tenant.create("b")
    tenant.create("b", delaySeconds=60)
    tenant.held("a")
    tenant.dead("c")
    prefix = {command: f"codeq:q:{command}:{tenant.name}" for command in "abc"}
    assert answered(tenant.admin.get(paths.ADMIN_QUEUES), 200) == {
        f"{prefix['a']}:pending": 0, f"{prefix['a']}:delayed": 0, f"{prefix['a']}:inprog": 1, f"{prefix['a']}:dlq": 0,
        f"{prefix['b']}:pending": 1, f"{prefix['b']}:delayed": 1, f"{prefix['b']}:inprog": 0, f"{prefix['b']}:dlq": 0,
        f"{prefix['c']}:pending": 0, f"{prefix['c']}:delayed": 0, f"{prefix['c']}:inprog": 0, f"{prefix['c']}:dlq": 1,
    }  # fmt: skip


def test_an_admin_of_the_platform_sees_the_queues_of_all(server: Server) -> None:
    ours, theirs = server.tenant(), server.tenant()
    ours.create("ours")
    theirs.create("theirs")
    platform_admin = Caller(server, server.token("ops", "admin", scopes=["codeq:admin", "codeq:platform"]))
    keys = set(answered(platform_admin.get(paths.ADMIN_QUEUES), 200))
    assert {f"codeq:q:ours:{ours.name}:pending", f"codeq:q:theirs:{theirs.name}:pending"} <= keys


def test_the_counts_of_one_queue_are_exact(tenant: Tenant) -> None:
    empty = {"ready": 0, "delayed": 0, "inProgress": 0, "dlq": 0, "oldestAgeSeconds": 0, "paused": False, "workers": 0}
    assert tenant.counts() == {"command": "work", "tenantId": tenant.name, **empty, "effectivePolicy": DEFAULTS}
    tenant.dead()
    tenant.held()
    for delay in (0, 0, 0, 60, 60):
        tenant.create(delaySeconds=delay)
    counts = tenant.counts()
    assert [counts[name] for name in ("ready", "delayed", "inProgress", "dlq")] == [3, 2, 1, 1]
    oldest = counts["oldestAgeSeconds"]
    assert eventually(lambda: tenant.counts()["oldestAgeSeconds"] > oldest)


@pytest.mark.parametrize("path", [paths.ADMIN_QUEUE, paths.PAUSE, paths.RESUME, paths.TOPIC])
@pytest.mark.parametrize("name", ["a%2Fb", "a%20b", "%00", "x" * 65, "{x}", "%0A"])
def test_a_name_that_is_none_is_refused(tenant: Tenant, path: str, name: str) -> None:
    method = "GET" if path in (paths.ADMIN_QUEUE, paths.TOPIC) else "POST"
    answer = tenant.admin.request(method, at(path, name))
    if name == "a%2Fb":
        assert answer.status_code in (400, 404, 405)
    else:
        refused(answer, 400, "invalid")


# Topics


def test_a_topic_is_created_kept_and_forgotten(tenant: Tenant) -> None:
    path = at(paths.TOPIC, "work")
    refused(tenant.admin.get(path), 404, "not-found")
    made = answered(tenant.admin.put(path, {"policy": {"maxAttempts": 7, "priorityTiers": [9, 0, 5]}}), 201)
    assert made["topicId"] == f"{tenant.name}.work"
    assert (made["tenantId"], made["topicName"], made["version"]) == (tenant.name, "work", 1)
    assert made["policy"] == {"maxAttempts": 7, "priorityTiers": [0, 5, 9]}
    assert made["effectivePolicy"] == DEFAULTS | made["policy"]
    assert made["createdAt"] == made["updatedAt"]
    assert answered(tenant.admin.get(path), 200) == made
    assert tenant.admin.delete(path, deletionPolicy="Delete").status_code == 204
    refused(tenant.admin.get(path), 404, "not-found")
    assert tenant.admin.delete(path).status_code == 204, "deleting what is not there is no mistake"


def test_an_identical_put_keeps_the_version_and_another_raises_it(tenant: Tenant) -> None:
    path = at(paths.TOPIC, "work")
    first = answered(tenant.admin.put(path, {"policy": {"maxAttempts": 7}}), 201)
    assert answered(tenant.admin.put(path, {"policy": {"maxAttempts": 7}}), 200) == first
    changed = answered(tenant.admin.put(path, {"policy": {"maxAttempts": 8}}), 200)
    assert (changed["version"], changed["createdAt"]) == (2, first["createdAt"])
    assert changed["updatedAt"] > first["updatedAt"]


def test_a_put_replaces_the_policy_as_a_whole(tenant: Tenant) -> None:
    everything: dict[str, Any] = {
        "priorityTiers": [1], "maxAttempts": 2, "deadLetterTopicRef": "graves", "retentionSeconds": 60,
        "deadRetentionSeconds": 120, "maxConsumers": 3, "maxDeliveries": 4, "leaseSeconds": 1.5,
        "backoff": {"policy": "linear", "baseSeconds": 1.0, "maxSeconds": 2.0}, "onExpiry": "immediate", "paused": True,
    }  # fmt: skip
    stored = put(tenant, **everything)
    assert stored["policy"] == stored["effectivePolicy"] == everything
    stored = put(tenant, paused=None)
    assert (stored["policy"], stored["effectivePolicy"]) == ({}, DEFAULTS)


def test_a_put_of_one_rule_sets_no_other(tenant: Tenant) -> None:
    """(13.26)"""
    for rule in ({"retentionSeconds": 60}, {"leaseSeconds": 1.5}, {"maxConsumers": 3}):
        stored = put(tenant, **rule)
        assert (stored["policy"], stored["effectivePolicy"]) == (rule, DEFAULTS | rule)
    stored = put(tenant, backoff={"baseSeconds": 1})
    assert stored["policy"] == {"backoff": {"baseSeconds": 1.0}}
    assert stored["effectivePolicy"]["backoff"] == {
        "policy": "exp_full_jitter",
        "baseSeconds": 1.0,
        "maxSeconds": 900.0,
    }


@pytest.mark.parametrize(
    "policy",
    [
        {"maxAttempts": 0},
        {"maxAttempts": 101},
        {"priorityTiers": [1, 1]},
        {"priorityTiers": [11]},
        {"priorityTiers": list(range(11))},
        {"deadLetterTopicRef": "work"},
        {"deadLetterTopicRef": "x" * 64},
        {"retentionSeconds": -1},
        {"retentionSeconds": 2**40},
        {"maxConsumers": -1},
        {"maxConsumers": 10_001},
        {"maxDeliveries": 0},
        {"leaseSeconds": 0},
        {"leaseSeconds": 43_201},
        {"backoff": {"policy": "never"}},
        {"backoff": {"baseSeconds": -1}},
        {"onExpiry": "never"},
        {"paused": "yes"},
        {"unknown": 1},
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused(tenant: Tenant, policy: dict[str, Any]) -> None:
    refused(tenant.admin.put(at(paths.TOPIC, "work"), {"policy": policy}), 400, "invalid")
    refused(tenant.admin.get(at(paths.TOPIC, "work")), 404, "not-found")


@pytest.mark.parametrize("content", [b"[]", b"{}{}", b'{"policy":{}} {"policy":{}}', b'{"tenantId":"x"}', b"\xff"])
def test_a_topic_that_is_none_is_refused(tenant: Tenant, content: bytes) -> None:
    refused(tenant.admin.put(at(paths.TOPIC, "work"), content=content), 400, "invalid")


@pytest.mark.parametrize("query", [{"deletionPolicy": "Keep"}, {"deletionPolicy": "delete"}, {"force": "1"}])
def test_a_delete_that_asks_for_something_else_is_refused(tenant: Tenant, query: dict[str, str]) -> None:
    put(tenant)
    refused(tenant.admin.delete(at(paths.TOPIC, "work"), **query), 400, "invalid")
    answered(tenant.admin.get(at(paths.TOPIC, "work")), 200)


def test_the_policys_max_attempts_and_lease_hold_for_new_tasks_of_that_queue_alone(tenant: Tenant) -> None:
    put(tenant, maxAttempts=2, leaseSeconds=45)
    assert tenant.create()["maxAttempts"] == 2
    assert tenant.create(maxAttempts=9)["maxAttempts"] == 9
    assert tenant.create("other")["maxAttempts"] == 5
    task = tenant.claim()
    lease = datetime.fromisoformat(task["leaseUntil"]) - datetime.fromisoformat(task["updatedAt"])
    assert lease == timedelta(seconds=45)
    assert tenant.admin.delete(at(paths.TOPIC, "work")).status_code == 204
    assert tenant.create()["maxAttempts"] == 5


def test_the_policys_backoff_delays_a_nack(tenant: Tenant) -> None:
    put(tenant, backoff={"policy": "linear", "baseSeconds": 10, "maxSeconds": 15})
    task = tenant.held()
    assert answered(tenant.worker.post(at(paths.NACK, task["id"]), {}), 200)["delaySeconds"] == 10
    own = tenant.held(backoff={"policy": "fixed", "baseSeconds": 3})
    assert answered(tenant.worker.post(at(paths.NACK, own["id"]), {}), 200)["delaySeconds"] == 3


def test_the_policys_retention_lets_ended_tasks_go_by_themselves(tenant: Tenant) -> None:
    put(tenant, retentionSeconds=0, deadRetentionSeconds=86_400)
    kept, waiting = tenant.dead(), tenant.create("other")
    task = tenant.held(idempotencyKey="k")
    answered(tenant.worker.post(at(paths.RESULT, task["id"]), DONE), 200)
    assert eventually(lambda: is_gone(tenant, task["id"]))
    again = tenant.create(idempotencyKey="k")
    assert again["id"] != task["id"], "the key went with the task"
    assert not is_gone(tenant, kept["id"])
    assert not is_gone(tenant, waiting["id"])


def test_the_policys_dead_retention_lets_dead_tasks_go_by_themselves(tenant: Tenant) -> None:
    put(tenant, retentionSeconds=86_400, deadRetentionSeconds=0)
    kept = tenant.ended()
    task = tenant.held(maxAttempts=1)
    answered(tenant.worker.post(at(paths.NACK, task["id"]), {}), 200)
    assert eventually(lambda: is_gone(tenant, task["id"]))
    assert tenant.counts()["dlq"] == 0
    assert not is_gone(tenant, kept["id"])


def test_the_policys_max_consumers_bound_what_is_in_progress(tenant: Tenant) -> None:
    put(tenant, maxConsumers=2)
    for n in range(4):
        tenant.create(payload=n)
    held = answered(tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 10}), 200)["tasks"]
    assert len(held) == 2
    assert tenant.worker.post(paths.CLAIM, {"commands": ["work"]}).status_code == 204
    body = {"commands": ["work"], "waitSeconds": 30}
    with waiting(tenant.worker, "POST", paths.CLAIM, body) as claim:
        answered(tenant.worker.post(at(paths.RESULT, held[0]["id"]), DONE), 200)
        third = answered(claim.result(10), 200)
    assert third["payload"] == "2"
    assert tenant.counts()["inProgress"] == 2


def test_the_policys_max_deliveries_end_a_task_that_goes_round_in_circles(tenant: Tenant) -> None:
    put(tenant, maxDeliveries=2)
    task = tenant.create()
    answers = []
    for _ in range(2):
        tenant.claim()
        answers.append(answered(tenant.worker.post(at(paths.ABANDON, task["id"]), {}), 200)["status"])
    assert answers == ["requeued", "dlq"]
    assert tenant.task(task["id"])["error"] == "MAX_DELIVERIES"


def test_a_paused_queue_takes_tasks_and_hands_out_none_until_it_is_resumed(tenant: Tenant) -> None:
    paused = answered(tenant.admin.post(at(paths.PAUSE, "work")), 200)
    assert (paused["command"], paused["paused"], paused["ready"]) == ("work", True, 0)
    task, other = tenant.create(), tenant.create("other")
    assert tenant.worker.post(paths.CLAIM, {"commands": ["work"]}).status_code == 204
    assert tenant.claim("work", "other")["id"] == other["id"]
    body = {"commands": ["work"], "waitSeconds": 30}
    with waiting(tenant.worker, "POST", paths.CLAIM, body) as claim:
        assert answered(tenant.admin.post(at(paths.RESUME, "work")), 200)["paused"] is False
        assert answered(claim.result(10), 200)["id"] == task["id"]


def test_a_pause_keeps_the_policy_and_counts_as_a_change_of_it_once(tenant: Tenant) -> None:
    put(tenant, maxAttempts=3)
    for _ in range(2):
        answered(tenant.admin.post(at(paths.PAUSE, "work")), 200)
    topic = answered(tenant.admin.get(at(paths.TOPIC, "work")), 200)
    assert (topic["version"], topic["policy"]["maxAttempts"], topic["policy"]["paused"]) == (2, 3, True)
    tenant.create()
    [queue] = answered(tenant.producer.get(paths.QUEUES), 200)["queues"]
    assert queue["paused"] is True


def test_pausing_a_queue_without_a_policy_leaves_the_defaults(tenant: Tenant) -> None:
    answered(tenant.admin.post(at(paths.PAUSE, "work")), 200)
    topic = answered(tenant.admin.get(at(paths.TOPIC, "work")), 200)
    assert (topic["policy"], topic["version"]) == ({"paused": True}, 1)
    answered(tenant.admin.post(at(paths.RESUME, "work")), 200)
    topic = answered(tenant.admin.get(at(paths.TOPIC, "work")), 200)
    assert (topic["policy"], topic["effectivePolicy"], topic["version"]) == ({"paused": False}, DEFAULTS, 2)


# Cleanup


def test_a_cleanup_forgets_ended_tasks_whose_time_comes_before(tenant: Tenant) -> None:
    ended, dead = tenant.ended("a"), tenant.dead("b")
    kept = [tenant.create("c")["id"], tenant.held("d")["id"]]
    nothing = answered(tenant.admin.post(paths.CLEANUP), 200)
    assert (nothing["deleted"], nothing["limit"]) == (0, 1000)
    tomorrow = (datetime.now(UTC) + timedelta(days=2)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    cleaned = answered(tenant.admin.post(paths.CLEANUP, {"before": tomorrow, "limit": 50}), 200)
    assert cleaned == {"deleted": 2, "before": tomorrow, "limit": 50}
    assert is_gone(tenant, ended["id"])
    assert is_gone(tenant, dead["id"])
    assert not any(is_gone(tenant, task) for task in kept)


def test_a_cleanup_stops_at_its_limit(tenant: Tenant) -> None:
    for n in range(3):
        tenant.ended(payload=n)
    body = {"before": "2100-01-01T00:00:00Z", "limit": 2}
    assert answered(tenant.admin.post(paths.CLEANUP, body), 200)["deleted"] == 2
    assert answered(tenant.admin.post(paths.CLEANUP, body), 200)["deleted"] == 1


def test_a_limit_of_0_is_the_usual_one_and_is_echoed_as_it_came(tenant: Tenant) -> None:
    tenant.ended()
    cleaned = answered(tenant.admin.post(paths.CLEANUP, {"before": "2100-01-01T00:00:00Z", "limit": 0}), 200)
    assert (cleaned["deleted"], cleaned["limit"]) == (1, 0)


@pytest.mark.parametrize(
    "body",
    [{"before": "soon"}, {"before": "2100-01-01"}, {"limit": -1}, {"limit": 10**6}, {"limit": "5"}, {"all": True}],
)
def test_a_cleanup_that_breaks_a_rule_is_refused(tenant: Tenant, body: dict[str, Any]) -> None:
    refused(tenant.admin.post(paths.CLEANUP, body), 400, "invalid")


# Dead letters


def dead_in_three_queues(tenant: Tenant) -> dict[str, list[str]]:
    return {command: [tenant.dead(command)["id"] for _ in range(2)] for command in ("a", "b", "c")}


def listed(tenant: Tenant, **query: Any) -> list[str]:
    found: list[str] = []
    while True:
        page = answered(tenant.admin.get(paths.DLQ, **query), 200)
        found += [task["id"] for task in page["tasks"]]
        if "cursor" not in page:
            return found
        query["cursor"] = page["cursor"]


def test_dead_tasks_are_listed_whole_and_page_by_page(tenant: Tenant) -> None:
    dead = dead_in_three_queues(tenant)
    tenant.ended("a")
    everything = {task for ids in dead.values() for task in ids}
    for limit in (1, 4, 1000):
        found = listed(tenant, limit=limit)
        assert (set(found), len(found)) == (everything, 6)
    assert listed(tenant, command="b") == listed(tenant, command="b", limit=1) == dead["b"]
    assert listed(tenant, command="none") == []
    [first] = answered(tenant.admin.get(paths.DLQ, command="a", limit=1), 200)["tasks"]
    assert first == tenant.task(dead["a"][0])
    assert (first["error"], first["lastError"], first["lastKnownLocation"]) == ("MAX_ATTEMPTS", "broken", "DLQ_SET")


def test_dead_tasks_are_chosen_by_their_error(tenant: Tenant) -> None:
    put(tenant, "circle", maxDeliveries=1)
    circled = tenant.held("circle")
    answered(tenant.worker.post(at(paths.ABANDON, circled["id"]), {}), 200)
    tried = tenant.dead("try")
    assert listed(tenant, error="MAX_DELIVERIES") == [circled["id"]]
    assert listed(tenant, error="MAX_ATTEMPTS") == [tried["id"]]
    swept = answered(tenant.admin.post(paths.DLQ_REPLAY, {"error": "MAX_DELIVERIES"}), 200)
    assert swept == {"matched": 1, "changed": 1, "dryRun": False, "ids": [circled["id"]]}
    assert listed(tenant) == [tried["id"]]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"command": "a/b"}, {"cursor": "junk"}, {"status": "FAILED"}])
def test_a_list_of_dead_tasks_that_breaks_a_rule_is_refused(tenant: Tenant, query: dict[str, str]) -> None:
    refused(tenant.admin.get(paths.DLQ, **query), 400, "invalid")


def test_a_replayed_task_has_fresh_attempts_and_goes_on_where_it_was(tenant: Tenant) -> None:
    dead = tenant.dead()
    ended = tenant.ended("other")
    body = {"ids": [dead["id"], ended["id"], UNKNOWN]}
    swept = answered(tenant.admin.post(paths.DLQ_REPLAY, body), 200)
    assert swept == {
        "matched": 1, "changed": 1, "dryRun": False, "ids": [dead["id"]],
        "refused": {ended["id"]: "not-dead", UNKNOWN: "not-found"},
    }  # fmt: skip
    again = tenant.claim()
    assert (again["id"], again["attempts"], again["deliveries"], again["leaseToken"]) == (dead["id"], 0, 1, 2)
    assert (again["lastError"], "error" in again) == ("broken", False)
    answered(tenant.worker.post(at(paths.RESULT, dead["id"]), DONE), 200)


def test_replay_wakes_a_waiting_worker(tenant: Tenant) -> None:
    dead = tenant.dead()
    body = {"commands": ["work"], "waitSeconds": 30}
    with waiting(tenant.worker, "POST", paths.CLAIM, body) as claim:
        answered(tenant.admin.post(paths.DLQ_REPLAY, {"all": True}), 200)
        assert answered(claim.result(10), 200)["id"] == dead["id"]


def test_a_dry_run_tells_and_changes_nothing(tenant: Tenant) -> None:
    dead = dead_in_three_queues(tenant)
    everything = listed(tenant)
    choices: list[tuple[dict[str, Any], list[str]]] = [
        ({"ids": [*dead["a"], UNKNOWN]}, dead["a"]),
        ({"command": "b"}, dead["b"]),
        ({"error": "MAX_ATTEMPTS", "command": "c"}, dead["c"]),
        ({"all": True}, everything),
        ({"all": True, "limit": 3}, everything[:3]),
    ]
    for path in (paths.DLQ_REPLAY, paths.DLQ_PURGE):
        for choice, ids in choices:
            swept = answered(tenant.admin.post(path, {**choice, "dryRun": True}), 200)
            assert swept == {"matched": len(ids), "changed": 0, "dryRun": True, "ids": ids}
    assert listed(tenant) == everything


def test_dead_tasks_are_replayed_by_command_and_all(tenant: Tenant) -> None:
    dead = dead_in_three_queues(tenant)
    by_command = answered(tenant.admin.post(paths.DLQ_REPLAY, {"command": "b"}), 200)
    assert (by_command["changed"], by_command["ids"]) == (2, dead["b"])
    assert tenant.counts("b")["ready"] == 2
    one = answered(tenant.admin.post(paths.DLQ_REPLAY, {"all": True, "limit": 1}), 200)
    assert (one["matched"], one["changed"]) == (1, 1)
    rest = answered(tenant.admin.post(paths.DLQ_REPLAY, {"all": True}), 200)
    assert (rest["matched"], rest["changed"]) == (3, 3)
    assert listed(tenant) == []


def test_dead_tasks_are_purged_by_id_command_and_all(tenant: Tenant) -> None:
    dead = dead_in_three_queues(tenant)
    running = tenant.held("d")["id"]
    swept = answered(tenant.admin.post(paths.DLQ_PURGE, {"ids": [dead["a"][0], running, UNKNOWN]}), 200)
    assert (swept["ids"], swept["refused"]) == ([dead["a"][0]], {running: "not-dead", UNKNOWN: "not-found"})
    assert answered(tenant.admin.post(paths.DLQ_PURGE, {"command": "b"}), 200)["changed"] == 2
    assert answered(tenant.admin.post(paths.DLQ_PURGE, {"all": True}), 200)["changed"] == 3
    assert listed(tenant) == []
    assert all(is_gone(tenant, task) for ids in dead.values() for task in ids)
    assert not is_gone(tenant, running)


def test_purging_dead_tasks_by_id_leaves_tasks_alone_that_are_not_dead(tenant: Tenant) -> None:
    ended = tenant.ended()
    dry = answered(tenant.admin.post(paths.DLQ_PURGE, {"ids": [ended["id"]], "dryRun": True}), 200)
    swept = answered(tenant.admin.post(paths.DLQ_PURGE, {"ids": [ended["id"]]}), 200)
    assert (dry["matched"], swept["matched"]) == (0, 0)
    assert not is_gone(tenant, ended["id"])


@pytest.mark.parametrize("path", [paths.DLQ_REPLAY, paths.DLQ_PURGE])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"all": False},
        {"ids": []},
        {"ids": ["x"], "all": True},
        {"ids": ["x"], "command": "a"},
        {"all": True, "command": "a"},
        {"ids": ["x"] * 1001},
        {"command": "a/b"},
        {"all": True, "limit": 0},
        {"all": True, "limit": 100_001},
        {"all": "yes"},
        {"everything": True},
    ],
)
def test_a_choice_of_dead_tasks_must_be_one_and_clear(tenant: Tenant, path: str, body: dict[str, Any]) -> None:
    dead = tenant.dead()
    refused(tenant.admin.post(path, body), 400, "invalid")
    assert tenant.task(dead["id"]) == dead
