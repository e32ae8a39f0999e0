"""Routes that read: a task, its result and history, lists of tasks, queues."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import Server, Tenant, answered, at, refused, start_server, waiting

from codeq.server.openapi import QUERY
from codeq.wire import paths

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"


def listed(tenant: Tenant, **query: Any) -> list[str]:
    """Returns the ids of all pages of a listing."""
    found: list[str] = []
    while True:
        page = answered(tenant.producer.get(paths.TASKS, **query), 200)
        found += [task["id"] for task in page["tasks"]]
        if "cursor" not in page:
            return found
        query["cursor"] = page["cursor"]


@pytest.mark.parametrize("path", [paths.TASK, paths.RESULT, paths.HISTORY])
@pytest.mark.parametrize("unknown", [UNKNOWN, "x", "%00", "%FF", "%2e%2e", "A" * 3000])
def test_an_unknown_task_is_not_found(tenant: Tenant, path: str, unknown: str) -> None:
    refused(tenant.producer.get(at(path, unknown)), 404, "not-found")


def test_a_worker_reads_tasks_too(tenant: Tenant) -> None:
    task = tenant.ended()
    for caller in (tenant.worker, tenant.producer, tenant.admin):
        assert answered(caller.get(at(paths.TASK, task["id"])), 200) == task


def test_a_result_that_is_not_there_yet_is_not_found_at_once(tenant: Tenant) -> None:
    task = tenant.held()
    for wait in ("0", "junk", "-5", ""):
        problem = refused(tenant.producer.get(at(paths.RESULT, task["id"]), waitSeconds=wait), 404, "not-found")
        assert problem["error"].startswith("result not found")


def test_a_wait_for_a_result_ends_when_the_task_does(tenant: Tenant) -> None:
    task = tenant.held()
    path = at(paths.RESULT, task["id"])
    with waiting(tenant.producer, "GET", path, params={"waitSeconds": 60}) as reading:
        answered(tenant.worker.post(path, {"status": "COMPLETED", "result": 7}), 200)
        both = answered(reading.result(10), 200)
    assert (both["task"]["status"], both["result"]["result"]) == ("COMPLETED", 7)


def test_a_wait_longer_than_the_longest_is_shortened(tmp_path: Path) -> None:
    """For results, events and claims alike, and as the API is described."""
    far = "9" * 12
    with start_server(tmp_path, settings={"http": {"wait_max_seconds": 0.05}}) as server:
        task = answered(server.request("POST", paths.TASKS, {"command": "work", "payload": 1}), 202)
        result = server.request("GET", at(paths.RESULT, task["id"]), params={"waitSeconds": far})
        refused(result, 404, "not-found")
        events = server.request("GET", paths.EVENTS, params={"waitSeconds": far, "offset": 99})
        assert answered(events, 200)["events"] == []
        claim = {"commands": ["other"], "waitSeconds": int(far)}
        assert server.request("POST", paths.CLAIM, claim).status_code == 204
    assert "maximum" not in QUERY["waitSeconds"]


def test_a_wait_for_a_result_that_does_not_come_ends_with_not_found(tenant: Tenant) -> None:
    task = tenant.create()
    began_s = time.monotonic()
    refused(tenant.producer.get(at(paths.RESULT, task["id"]), waitSeconds=1), 404, "not-found")
    assert time.monotonic() - began_s >= 0.9


def test_a_task_that_ended_without_a_worker_has_a_result_without_a_value(tenant: Tenant) -> None:
    dead = tenant.dead()
    both = answered(tenant.producer.get(at(paths.RESULT, dead["id"])), 200)
    assert both["task"] == dead
    assert both["result"] == {
        "taskId": dead["id"], "status": "FAILED", "error": "MAX_ATTEMPTS", "completedAt": dead["endedAt"],
    }  # fmt: skip


def test_the_history_tells_every_move_of_a_task(tenant: Tenant) -> None:
    task = tenant.create(maxAttempts=2, priority=3)
    for _ in range(2):
        tenant.claim()
        answered(tenant.worker.post(at(paths.NACK, task["id"]), {"delaySeconds": 0, "reason": "no"}), 200)
    answered(tenant.admin.post(paths.DLQ_REPLAY, {"ids": [task["id"]]}), 200)
    answered(tenant.producer.post(at(paths.CANCEL, task["id"])), 200)
    history = answered(tenant.producer.get(at(paths.HISTORY, task["id"])), 200)
    assert history["taskId"] == task["id"]
    events = history["events"]
    moves = ["enqueue", "claim", "nack", "claim", "nack", "replay", "cancel"]
    assert [event["move"] for event in events] == moves
    assert [event["statusBefore"] for event in events] == [None, *[event["statusAfter"] for event in events[:-1]]]
    assert [event["leaseToken"] for event in events] == [0, 1, 1, 2, 2, 2, 2]
    assert [event["attempts"] for event in events] == [0, 0, 1, 1, 2, 0, 0]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert {(event["tenant"], event["command"], event["priority"]) for event in events} == {(tenant.name, "work", 3)}


def test_a_list_has_the_newest_first_and_its_pages_join_without_gap_or_double(tenant: Tenant) -> None:
    made = [tenant.create(payload=n)["id"] for n in range(23)]
    for limit in (1, 5, 23, 1000):
        assert listed(tenant, limit=limit) == made[::-1]
    page = answered(tenant.producer.get(paths.TASKS, limit=5), 200)
    assert page["tasks"] == [tenant.task(task) for task in made[:-6:-1]]


def test_a_task_made_between_two_pages_does_not_disturb_the_walk(tenant: Tenant) -> None:
    made = [tenant.create()["id"] for _ in range(4)]
    first = answered(tenant.producer.get(paths.TASKS, limit=2), 200)
    tenant.create()
    second = answered(tenant.producer.get(paths.TASKS, limit=2, cursor=first["cursor"]), 200)
    assert [task["id"] for task in first["tasks"] + second["tasks"]] == made[::-1]


def test_filters_choose_by_command_status_place_and_error(tenant: Tenant) -> None:
    pending, delayed = tenant.create("wait")["id"], tenant.create("wait", delaySeconds=60)["id"]
    held, ended = tenant.held("hold")["id"], tenant.ended("end")["id"]
    dead = tenant.dead("die")["id"]
    cancelled = tenant.create("stop")["id"]
    answered(tenant.producer.post(at(paths.CANCEL, cancelled)), 200)
    chosen: list[tuple[dict[str, str], set[str]]] = [
        ({"command": "wait"}, {pending, delayed}),
        ({"command": "nothing"}, set()),
        ({"status": "PENDING"}, {pending, delayed}),
        ({"status": "IN_PROGRESS"}, {held}),
        ({"status": "COMPLETED"}, {ended}),
        ({"status": "FAILED"}, {dead}),
        ({"status": "CANCELLED"}, {cancelled}),
        ({"queue": "pending"}, {pending}),
        ({"queue": "delayed"}, {delayed}),
        ({"queue": "in_progress"}, {held}),
        ({"queue": "dead"}, {dead}),
        ({"queue": "none"}, {ended, cancelled}),
        ({"error": "MAX_ATTEMPTS"}, {dead}),
        ({"status": "PENDING", "queue": "delayed", "command": "wait"}, {delayed}),
        ({"status": "COMPLETED", "command": "wait"}, set()),
    ]
    for query, wanted in chosen:
        assert set(listed(tenant, **query)) == wanted, query
        assert set(listed(tenant, **query, limit=1)) == wanted, query


def test_filters_choose_by_the_time_of_creation(tenant: Tenant) -> None:
    task = tenant.create()
    made = datetime.fromisoformat(task["createdAt"])
    before, after = [(made + timedelta(seconds=s)).isoformat() for s in (-1, 1)]
    assert listed(tenant, createdFrom=before, createdTo=after) == [task["id"]]
    assert listed(tenant, createdFrom=after) == listed(tenant, createdTo=before) == []


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "1001"},
        {"limit": "-1"},
        {"limit": "1.5"},
        {"limit": "x"},
        {"status": "RUNNING"},
        {"queue": "left"},
        {"createdFrom": "yesterday"},
        {"createdTo": "2030-01-01T00:00:00"},
        {"cursor": "junk"},
        {"cursor": "../x"},
        {"unknown": "1"},
        {"tenantId": "other"},
        [("limit", "1"), ("limit", "2")],
    ],
)
def test_a_list_that_breaks_a_rule_is_refused(tenant: Tenant, query: Any) -> None:
    refused(tenant.producer.request("GET", paths.TASKS, params=query), 400, "invalid")


def test_queues_are_listed_with_exact_counts(tenant: Tenant) -> None:
    assert answered(tenant.producer.get(paths.QUEUES), 200) == {"queues": []}
    for fields in ({}, {}, {"delaySeconds": 60}):
        tenant.create("b", **fields)
    tenant.held("a")
    tenant.dead("c")
    queues = answered(tenant.producer.get(paths.QUEUES), 200)["queues"]
    ages = [queue.pop("oldestAgeSeconds") for queue in queues]
    assert [tuple(queue.values()) for queue in queues] == [
        ("a", tenant.name, 0, 0, 1, 0, False, 1),
        ("b", tenant.name, 2, 1, 0, 0, False, 0),
        ("c", tenant.name, 0, 0, 0, 1, False, 1),
    ]
    assert list(queues[0]) == ["command", "tenantId", "ready", "delayed", "inProgress", "dlq", "paused", "workers"]
    assert ages[0] == ages[2] == 0
    assert 0 <= ages[1] < 60


def test_a_worker_sees_only_what_its_token_names(tenant: Tenant) -> None:
    seen, hidden = tenant.ended("a")["id"], tenant.ended("b")["id"]
    worker = tenant.worker_named("w", commands=["a"])
    for path in (paths.TASK, paths.RESULT, paths.HISTORY):
        answered(worker.get(at(path, seen)), 200)
        refused(worker.get(at(path, hidden)), 404, "not-found")
    tenant.create("a", delaySeconds=60)
    tenant.create("b")
    assert [queue["command"] for queue in answered(worker.get(paths.QUEUES), 200)["queues"]] == ["a"]
    assert [
        task["id"] for task in answered(worker.get(paths.TASKS, command="a", status="COMPLETED"), 200)["tasks"]
    ] == [seen]
    refused(worker.get(paths.TASKS), 403, "forbidden")
    refused(worker.get(paths.TASKS, command="b"), 403, "forbidden")


def test_a_token_for_every_command_lists_them_all(tenant: Tenant) -> None:
    task = tenant.create()
    assert [found["id"] for found in answered(tenant.worker.get(paths.TASKS), 200)["tasks"]] == [task["id"]]


def test_an_unknown_path_and_a_wrong_method_are_said_to_be_so(server: Server) -> None:
    refused(server.request("GET", "/v1/codeq/nothing"), 404, "not-found")
    refused(server.request("GET", "/v2/codeq/tasks"), 404, "not-found")
    answer = server.request("PATCH", paths.TASKS)
    refused(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
