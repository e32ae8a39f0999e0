"""Routes for workers: claim, heartbeat, abandon, nack, result, one by one and in batches."""

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.server.server_process import Tenant, answered, at, eventually, refused, waiting

from codeq.wire import paths

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"
PACKED = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
DONE = {"status": "COMPLETED", "result": {"ok": True}}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def lease_of(task: dict[str, Any]) -> timedelta:
    return moment(task["leaseUntil"]) - moment(task["updatedAt"])


def test_a_claimed_task_says_who_holds_it_until_when(tenant: Tenant) -> None:
    made = tenant.create(payload={"a": 1})
    task = tenant.claim(leaseSeconds=60)
    assert (task["id"], task["payload"], task["status"]) == (made["id"], made["payload"], "IN_PROGRESS")
    assert (task["workerId"], task["leaseToken"]) == (f"{tenant.name}-worker", 1)
    assert (task["attempts"], task["deliveries"], task["lastKnownLocation"]) == (0, 1, "INPROG_SET")
    assert lease_of(task) == timedelta(seconds=60)
    assert tenant.task(task["id"]) == task
    assert tenant.counts()["inProgress"] == 1


def test_nothing_to_claim_is_answered_with_204_and_no_body(tenant: Tenant) -> None:
    for path, body in ((paths.CLAIM, {}), (paths.CLAIM, None), (paths.CLAIM_BATCH, {"count": 5})):
        answer = tenant.worker.post(path, body)
        assert (answer.status_code, answer.content) == (204, b"")
        assert "content-length" not in answer.headers
        assert answer.headers["x-request-id"]


def test_a_claim_sent_again_with_its_request_id_gets_the_same_task(tenant: Tenant) -> None:
    for payload in range(3):
        tenant.create(payload=payload)
    first = tenant.claim(requestId="r1")
    again = tenant.claim(requestId="r1")
    assert (again["id"], again["payload"], again["leaseToken"]) == (first["id"], first["payload"], 1)
    assert tenant.counts()["inProgress"] == 1
    assert tenant.claim(requestId="r2")["id"] != first["id"]


def test_a_batch_claim_sent_again_gets_what_is_left_of_the_batch(tenant: Tenant) -> None:
    for payload in range(4):
        tenant.create(payload=payload)
    wanted = {"commands": ["work"], "count": 3, "requestId": "r1"}
    first = tenant.worker.post(paths.CLAIM_BATCH, wanted).json()["tasks"]
    tenant.worker.post(at(paths.RESULT, first[0]["id"]), DONE)
    again = tenant.worker.post(paths.CLAIM_BATCH, wanted).json()["tasks"]
    assert [task["id"] for task in again] == [task["id"] for task in first[1:]]
    assert {task["leaseToken"] for task in again} == {1}


def test_a_request_id_is_of_one_worker(tenant: Tenant) -> None:
    for _ in range(2):
        tenant.create()
    first = tenant.claim(requestId="r1")
    assert tenant.claim(worker=tenant.worker_named("another"), requestId="r1")["id"] != first["id"]


def test_a_request_id_gets_no_task_of_a_command_that_the_token_does_not_name(tenant: Tenant) -> None:
    tenant.create("secret")
    tenant.claim("secret", requestId="r1")
    restricted = tenant.worker_named(f"{tenant.name}-worker", commands=["work"])
    assert restricted.post(paths.CLAIM, {"requestId": "r1"}).status_code == 204


@pytest.mark.parametrize("request_id", ["", "x" * 65, "a\nb", 7])
def test_a_request_id_that_breaks_a_rule_is_refused(tenant: Tenant, request_id: Any) -> None:
    refused(tenant.worker.post(paths.CLAIM, {"requestId": request_id}), 400, "invalid")


@pytest.mark.parametrize("verb", [paths.NACK, paths.ABANDON])
def test_a_task_given_back_twice_is_answered_as_the_first_time(tenant: Tenant, verb: str) -> None:
    held = tenant.held()
    body = {"leaseToken": held["leaseToken"], **({"delaySeconds": 60, "reason": "busy"} if verb == paths.NACK else {})}
    answers = [tenant.worker.post(at(verb, held["id"]), body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert tenant.task(held["id"])["attempts"] == int(verb == paths.NACK)


def test_a_lease_of_0_is_the_queues_own(tenant: Tenant) -> None:
    for lease in (0, -1):
        tenant.create()
        assert lease_of(tenant.claim(leaseSeconds=lease)) == timedelta(seconds=300)


def test_the_worker_is_who_the_token_says_whatever_the_body_says(tenant: Tenant) -> None:
    tenant.create()
    assert tenant.claim(workerId="somebody else")["workerId"] == f"{tenant.name}-worker"


def test_higher_priorities_come_first_and_equal_ones_in_turn(tenant: Tenant) -> None:
    for place, priority in enumerate((0, 9, 5, 9, 0)):
        tenant.create(payload=place, priority=priority)
    assert [json.loads(tenant.claim()["payload"]) for _ in range(5)] == [1, 3, 2, 0, 4]


def test_a_claim_without_commands_takes_from_every_queue_of_the_tenant(tenant: Tenant) -> None:
    made = {tenant.create(command)["id"] for command in ("a", "b", "c")}
    batch = answered(tenant.worker.post(paths.CLAIM_BATCH, {"count": 10}), 200)
    assert {task["id"] for task in batch["tasks"]} == made


def test_a_claim_takes_only_from_the_commands_it_names(tenant: Tenant) -> None:
    tenant.create("a")
    wanted = tenant.create("b")
    assert tenant.claim("b", "c")["id"] == wanted["id"]
    assert tenant.worker.post(paths.CLAIM, {"commands": ["b", "c"]}).status_code == 204


def test_a_batch_claim_takes_up_to_count_in_order(tenant: Tenant) -> None:
    made = [tenant.create(payload=n)["id"] for n in range(5)]
    body = {"commands": ["work"], "count": 3}
    first = answered(tenant.worker.post(paths.CLAIM_BATCH, body), 200)["tasks"]
    rest = answered(tenant.worker.post(paths.CLAIM_BATCH, body), 200)["tasks"]
    assert [task["id"] for task in first + rest] == made


@pytest.mark.parametrize("count", [0, -1, 1001, 1.5, "3", None])
def test_a_count_that_is_none_of_1_to_1000_is_refused(tenant: Tenant, count: Any) -> None:
    refused(tenant.worker.post(paths.CLAIM_BATCH, {"count": count}), 400, "invalid")


@pytest.mark.parametrize(
    "body",
    [
        {"commands": ["a/b"]},
        {"commands": "work"},
        {"commands": [f"c{n}" for n in range(65)]},
        {"leaseSeconds": 43_201},
        {"leaseSeconds": "5"},
        {"waitSeconds": "5"},
        {"unknown": 1},
        [],
    ],
)
def test_a_claim_that_breaks_a_rule_is_refused(tenant: Tenant, body: Any) -> None:
    refused(tenant.worker.post(paths.CLAIM, body), 400, "invalid")


def test_a_wait_of_an_age_is_taken_as_the_longest(tenant: Tenant) -> None:
    tenant.create()
    assert tenant.claim(waitSeconds=1e308)


def test_a_waiting_claim_is_served_when_a_task_arrives(tenant: Tenant) -> None:
    with waiting(tenant.worker, "POST", paths.CLAIM, {"commands": ["work"], "waitSeconds": 30}) as claim:
        made = tenant.create()
        assert answered(claim.result(10), 200)["id"] == made["id"]


def test_a_waiting_batch_claim_is_served_when_a_task_arrives(tenant: Tenant) -> None:
    with waiting(tenant.worker, "POST", paths.CLAIM_BATCH, {"count": 5, "waitSeconds": 30}) as claim:
        made = tenant.create()
        assert [task["id"] for task in answered(claim.result(10), 200)["tasks"]] == [made["id"]]


def test_a_wait_for_nothing_ends_with_204(tenant: Tenant) -> None:
    assert tenant.worker.post(paths.CLAIM, {"waitSeconds": 0.2}).status_code == 204


def test_a_heartbeat_extends_the_lease_and_never_shortens_it(tenant: Tenant) -> None:
    task = tenant.claim() if tenant.create() else {}
    longer = answered(tenant.worker.post(at(paths.HEARTBEAT, task["id"]), {"extendSeconds": 3600}), 200)
    assert longer["ok"] is True
    assert moment(longer["leaseUntil"]) > moment(task["leaseUntil"]) + timedelta(minutes=50)
    shorter = answered(tenant.worker.post(at(paths.HEARTBEAT, task["id"]), {"extendSeconds": 1}), 200)
    assert shorter["leaseUntil"] == longer["leaseUntil"] == tenant.task(task["id"])["leaseUntil"]


def test_a_heartbeat_without_a_body_extends_by_the_queues_lease(tenant: Tenant) -> None:
    tenant.create()
    task = tenant.claim(leaseSeconds=1)
    answer = answered(tenant.worker.post(at(paths.HEARTBEAT, task["id"])), 200)
    assert moment(answer["leaseUntil"]) >= moment(task["updatedAt"]) + timedelta(seconds=300)


def test_a_lease_that_runs_out_is_taken_back_and_counted(tenant: Tenant) -> None:
    answered(tenant.admin.put(at(paths.TOPIC, "work"), {"policy": {"onExpiry": "immediate"}}), 201)
    tenant.create()
    first = tenant.claim(leaseSeconds=0.1)
    second = tenant.claim(waitSeconds=10, worker=tenant.worker_named("another"))
    assert (second["id"], second["leaseToken"], second["deliveries"], second["attempts"]) == (first["id"], 2, 2, 1)
    assert second["lastError"] == "LEASE_EXPIRED"
    refused(tenant.worker.post(at(paths.RESULT, first["id"]), DONE), 403, "not-owner")
    refused(tenant.worker.post(at(paths.HEARTBEAT, first["id"]), {}), 403, "not-owner")


def test_a_lease_that_runs_out_for_the_last_time_leaves_the_task_dead(tenant: Tenant) -> None:
    task = tenant.create(maxAttempts=1)
    tenant.claim(leaseSeconds=0.1)
    assert eventually(lambda: tenant.counts()["dlq"])
    dead = tenant.task(task["id"])
    assert (dead["status"], dead["error"], dead["lastError"]) == ("FAILED", "MAX_ATTEMPTS", "LEASE_EXPIRED")


def test_an_abandoned_task_goes_to_the_back_of_the_queue_uncounted(tenant: Tenant) -> None:
    first = tenant.held()
    tenant.create(payload=2)
    assert answered(tenant.worker.post(at(paths.ABANDON, first["id"])), 200) == {"status": "requeued"}
    back = tenant.task(first["id"])
    assert (back["status"], back["attempts"], back["deliveries"]) == ("PENDING", 0, 1)
    assert not {"workerId", "leaseUntil"} & set(back)
    assert [json.loads(tenant.claim()["payload"]) for _ in range(2)] == [2, 1]


def test_a_nack_delays_by_the_backoff_and_keeps_its_reason(tenant: Tenant) -> None:
    task = tenant.held(backoff={"policy": "fixed", "baseSeconds": 60, "maxSeconds": 900})
    answer = answered(tenant.worker.post(at(paths.NACK, task["id"]), {"reason": "no luck"}), 200)
    assert answer == {"status": "requeued", "delaySeconds": 60.0}
    back = tenant.task(task["id"])
    assert (back["status"], back["lastKnownLocation"], back["attempts"]) == ("PENDING", "DELAYED_ZSET", 1)
    assert back["lastError"] == "no luck"
    assert not {"error", "workerId"} & set(back)
    assert moment(back["visibleAt"]) - moment(back["updatedAt"]) == timedelta(minutes=1)


@pytest.mark.parametrize(("delay", "location"), [(0, "PENDING_LIST"), (2.5, "DELAYED_ZSET"), (1e6, "DELAYED_ZSET")])
def test_a_nack_may_say_its_own_delay(tenant: Tenant, delay: float, location: str) -> None:
    task = tenant.held()
    answer = answered(tenant.worker.post(at(paths.NACK, task["id"]), {"delaySeconds": delay}), 200)
    assert answer == {"status": "requeued", "delaySeconds": min(delay, 86_400)}
    assert tenant.task(task["id"])["lastKnownLocation"] == location


def test_a_task_is_delivered_exactly_max_attempts_times_before_it_is_dead(tenant: Tenant) -> None:
    task = tenant.create(maxAttempts=3)
    answers = []
    for number in range(3):
        claimed = tenant.claim()
        assert (claimed["attempts"], claimed["deliveries"], claimed["leaseToken"]) == (number, number + 1, number + 1)
        body = {"delaySeconds": 0, "reason": f"try {number}"}
        answers.append(answered(tenant.worker.post(at(paths.NACK, task["id"]), body), 200))
    assert [answer["status"] for answer in answers] == ["requeued", "requeued", "dlq"]
    assert answers[-1]["delaySeconds"] == 0
    dead = tenant.task(task["id"])
    assert (dead["status"], dead["error"], dead["lastError"]) == ("FAILED", "MAX_ATTEMPTS", "try 2")
    assert (dead["attempts"], dead["lastKnownLocation"]) == (3, "DLQ_SET")
    assert tenant.worker.post(paths.CLAIM, {}).status_code == 204
    assert tenant.counts()["dlq"] == 1


@pytest.mark.parametrize("body", [{"delaySeconds": -1}, {"delaySeconds": "1"}, {"reason": 5}, {"leaseToken": -1}, []])
def test_a_nack_that_breaks_a_rule_is_refused(tenant: Tenant, body: Any) -> None:
    task = tenant.held()
    refused(tenant.worker.post(at(paths.NACK, task["id"]), body), 400, "invalid")
    assert tenant.task(task["id"]) == task


def test_a_result_ends_the_task_and_can_be_fetched(tenant: Tenant) -> None:
    task = tenant.held()
    outcome = {"status": "COMPLETED", "result": {"answer": [42]}, "leaseToken": task["leaseToken"]}
    result = answered(tenant.worker.post(at(paths.RESULT, task["id"]), outcome), 200)
    ended = tenant.task(task["id"])
    assert result == {
        "taskId": task["id"], "status": "COMPLETED", "result": {"answer": [42]}, "completedAt": ended["endedAt"],
    }  # fmt: skip
    assert (ended["status"], ended["resultKey"], ended["lastKnownLocation"]) == ("COMPLETED", "codeq:results", "NONE")
    assert "leaseUntil" not in ended
    assert answered(tenant.producer.get(at(paths.RESULT, task["id"])), 200) == {"task": ended, "result": result}


def test_a_workers_failed_is_final_and_not_dead(tenant: Tenant) -> None:
    task = tenant.held()
    outcome = {"status": "FAILED", "error": "no such file", "result": {"tried": 1}}
    result = answered(tenant.worker.post(at(paths.RESULT, task["id"]), outcome), 200)
    assert (result["status"], result["error"], result["result"]) == ("FAILED", "no such file", {"tried": 1})
    ended = tenant.task(task["id"])
    assert (ended["status"], ended["error"], ended["lastKnownLocation"]) == ("FAILED", "no such file", "NONE")
    assert tenant.counts()["dlq"] == 0


def test_the_same_result_again_answers_the_stored_one(tenant: Tenant) -> None:
    task = tenant.held()
    first = answered(tenant.worker.post(at(paths.RESULT, task["id"]), DONE), 200)
    other = DONE | {"result": {"ok": "changed"}, "leaseToken": task["leaseToken"]}
    assert answered(tenant.worker.post(at(paths.RESULT, task["id"]), other), 200) == first
    batch = {"results": [{"taskId": task["id"], **other}]}
    [repeated] = answered(tenant.worker.post(paths.RESULTS_BATCH, batch), 200)["results"]
    assert repeated == {"taskId": task["id"], "result": first}


def test_another_verdict_on_an_ended_task_is_refused(tenant: Tenant) -> None:
    task = tenant.ended()
    answer = tenant.worker.post(at(paths.RESULT, task["id"]), {"status": "FAILED", "error": "no"})
    refused(answer, 409, "not-in-progress")
    refused(tenant.worker.post(at(paths.NACK, task["id"]), {}), 409, "not-in-progress")
    refused(tenant.worker.post(at(paths.ABANDON, task["id"]), {}), 409, "not-in-progress")
    refused(tenant.worker.post(at(paths.HEARTBEAT, task["id"]), {}), 409, "not-in-progress")
    assert tenant.task(task["id"]) == task


VERBS = [(paths.HEARTBEAT, {}), (paths.ABANDON, {}), (paths.NACK, {}), (paths.RESULT, DONE)]


@pytest.mark.parametrize(("path", "body"), VERBS)
def test_a_worker_that_does_not_hold_the_task_is_refused(tenant: Tenant, path: str, body: dict[str, Any]) -> None:
    task = tenant.held()
    refused(tenant.worker_named("another").post(at(path, task["id"]), body), 403, "not-owner")
    older = body | {"leaseToken": task["leaseToken"] + 1}
    refused(tenant.worker.post(at(path, task["id"]), older), 403, "not-owner")
    assert tenant.task(task["id"]) == task


@pytest.mark.parametrize(("path", "body"), VERBS)
def test_a_late_worker_cannot_touch_the_next_delivery(tenant: Tenant, path: str, body: dict[str, Any]) -> None:
    first = tenant.held()
    answered(tenant.worker.post(at(paths.NACK, first["id"]), {"delaySeconds": 0}), 200)
    second = tenant.claim()
    refused(tenant.worker.post(at(path, first["id"]), body | {"leaseToken": first["leaseToken"]}), 403, "not-owner")
    assert tenant.task(first["id"]) == second


def test_a_late_result_after_another_delivery_ended_the_task_is_refused(tenant: Tenant) -> None:
    first = tenant.held()
    answered(tenant.worker.post(at(paths.ABANDON, first["id"]), {}), 200)
    another = tenant.worker_named("another")
    tenant.claim(worker=another)
    answered(another.post(at(paths.RESULT, first["id"]), DONE), 200)
    refused(tenant.worker.post(at(paths.RESULT, first["id"]), DONE), 403, "not-owner")


@pytest.mark.parametrize(("path", "body"), VERBS)
def test_a_task_that_nobody_holds_is_not_in_progress(tenant: Tenant, path: str, body: dict[str, Any]) -> None:
    task = tenant.create()
    refused(tenant.worker.post(at(path, task["id"]), body), 409, "not-in-progress")
    assert tenant.task(task["id"]) == task


@pytest.mark.parametrize(("path", "body"), VERBS)
@pytest.mark.parametrize("unknown", [UNKNOWN, "x", "..", "%00", "A" * 3000, UNKNOWN.upper()])
def test_an_unknown_task_is_not_found(tenant: Tenant, path: str, body: dict[str, Any], unknown: str) -> None:
    if unknown == "..":
        unknown = "%2e%2e"
    refused(tenant.worker.post(at(path, unknown), body), 404, "not-found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"status": "DONE", "result": {}},
        {"status": "PENDING", "result": {}},
        {"status": "CANCELLED"},
        {"status": "FAILED"},
        {"status": "FAILED", "error": ""},
        {"status": 5},
        DONE | {"more": 1},
        DONE | {"artifacts": [{"name": "a", "contentBase64": "!"}]},
        DONE | {"leaseToken": "1"},
    ],
)
def test_a_result_that_breaks_a_rule_is_refused(tenant: Tenant, body: dict[str, Any]) -> None:
    task = tenant.held()
    refused(tenant.worker.post(at(paths.RESULT, task["id"]), body), 400, "invalid")
    assert tenant.task(task["id"]) == task


def test_a_batch_of_results_answers_each_in_its_place(tenant: Tenant) -> None:
    for n in range(4):
        tenant.create(payload=n)
    held = [tenant.claim()["id"] for _ in range(4)]
    waiting = tenant.create()["id"]
    items = [
        {"taskId": held[0], **DONE},
        {"taskId": held[1], "status": "FAILED", "error": "no"},
        {"taskId": held[2], "status": "UNSURE"},
        {"taskId": held[3], **DONE, "leaseToken": 9},
        {"taskId": waiting, **DONE},
        {"taskId": UNKNOWN, **DONE},
        {"taskId": held[0], **DONE},
    ]
    results = answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": items}), 200)["results"]
    assert [item["taskId"] for item in results] == [item["taskId"] for item in items]
    codes = [item.get("code") for item in results]
    assert codes == [None, None, "invalid", "not-owner", "not-in-progress", "not-found", None]
    assert [results[n]["result"]["status"] for n in (0, 1, 6)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert results[0] == results[6]
    assert all(("result" in item) != ("error" in item) for item in results)
    assert Counter(tenant.task(task)["status"] for task in held) == {"COMPLETED": 1, "FAILED": 1, "IN_PROGRESS": 2}


def test_a_batch_of_heartbeats_extends_each_lease_that_its_worker_holds(tenant: Tenant) -> None:
    for n in range(4):
        tenant.create(payload=n)
    tasks = [tenant.claim() for _ in range(4)]
    answered(tenant.producer.post(at(paths.CANCEL, tasks[2]["id"])), 200)
    waiting = tenant.create()["id"]
    items = [
        {"taskId": tasks[0]["id"], "leaseToken": 1, "extendSeconds": 3600, "progress": "half"},
        {"taskId": tasks[1]["id"], "leaseToken": 9, "extendSeconds": 3600},
        {"taskId": tasks[2]["id"], "leaseToken": 1},
        {"taskId": tasks[3]["id"], "extendSeconds": 0.01},
        {"taskId": waiting},
        {"taskId": UNKNOWN},
        {"taskId": tasks[0]["id"]},
    ]
    results = answered(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": items}), 200)["results"]
    assert [item["taskId"] for item in results] == [item["taskId"] for item in items]
    codes = [item.get("code") for item in results]
    assert codes == [None, "not-owner", "cancelled", "invalid", "not-in-progress", "not-found", None]
    assert all(("leaseUntil" in item) != ("error" in item) for item in results)
    extended = tenant.task(tasks[0]["id"])
    assert moment(extended["leaseUntil"]) > moment(tasks[0]["leaseUntil"]) + timedelta(minutes=50)
    assert results[0]["leaseUntil"] == results[6]["leaseUntil"] == extended["leaseUntil"]
    assert (extended["progress"], extended["lastMove"]) == ("half", "claim")
    assert [tenant.task(tasks[n]["id"]) for n in (1, 3)] == [tasks[1], tasks[3]]


def test_a_thousand_leases_are_extended_in_one_call(tenant: Tenant) -> None:
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [{"command": "work", "payload": 1}] * 1000}), 200)
    tasks = answered(tenant.worker.post(paths.CLAIM_BATCH, {"count": 1000}), 200)["tasks"]
    beats = [
        {"taskId": task["id"], "leaseToken": task["leaseToken"], "extendSeconds": 3600, "progress": "é" * 200}
        for task in tasks
    ]
    results = answered(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": beats}), 200)["results"]
    assert [item["taskId"] for item in results] == [task["id"] for task in tasks]
    last = tenant.task(tasks[-1]["id"])
    assert results[-1]["leaseUntil"] == last["leaseUntil"] > tasks[-1]["leaseUntil"]


@pytest.mark.parametrize("beats", [[], [{"taskId": "x"}] * 1001, [1], [{}], {}, [{"taskId": "x", "progress": 1}]])
def test_a_batch_of_heartbeats_that_is_none_is_refused(tenant: Tenant, beats: Any) -> None:
    refused(tenant.worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": beats}), 400, "invalid")


@pytest.mark.parametrize("results", [[], [DONE] * 1001, [1], [DONE], {}])
def test_a_batch_of_results_that_is_none_is_refused(tenant: Tenant, results: Any) -> None:
    refused(tenant.worker.post(paths.RESULTS_BATCH, {"results": results}), 400, "invalid")


@pytest.mark.parametrize("request_format", ["json", "msgpack"])
def test_messagepack_and_json_go_through_a_whole_cycle_alike(tenant: Tenant, request_format: str) -> None:
    """Calls every hot endpoint in one format, and compares the response with what the other format reads."""
    is_packed = request_format == "msgpack"

    def post(path: str, body: dict[str, Any]) -> Any:
        if not is_packed:
            return answered(tenant.worker.post(path, body), 200)
        answer = tenant.worker.post(path, content=msgspec.msgpack.encode(body), headers=PACKED)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/msgpack")
        return msgspec.msgpack.decode(answer.content)

    result: Any = b'{"a": [1, "\xc3\xa9"]}' if is_packed else {"a": [1, "é"]}
    made = [tenant.create(payload={"n": n}) for n in range(3)]
    one = post(paths.CLAIM, {"commands": ["work"], "leaseSeconds": 30})
    assert one == tenant.task(made[0]["id"])
    rest = post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 5})["tasks"]
    assert rest == [tenant.task(task["id"]) for task in made[1:]]
    assert post(at(paths.HEARTBEAT, one["id"]), {"extendSeconds": 60})["ok"] is True
    [beat] = post(paths.HEARTBEATS_BATCH, {"heartbeats": [{"taskId": one["id"], "extendSeconds": 90}]})["results"]
    assert beat == {"taskId": one["id"], "leaseUntil": tenant.task(one["id"])["leaseUntil"]}
    ended = post(at(paths.RESULT, one["id"]), {"status": "COMPLETED", "result": result, "leaseToken": 1})
    items = [
        {"taskId": rest[0]["id"], "status": "COMPLETED", "result": result},
        {"taskId": UNKNOWN, "status": "FAILED"},
    ]
    done, missing = post(paths.RESULTS_BATCH, {"results": items})["results"]
    assert missing["code"] == "not-found"
    assert post(at(paths.NACK, rest[1]["id"]), {"delaySeconds": 0})["status"] == "requeued"
    again = post(paths.CLAIM, {})
    assert post(at(paths.ABANDON, again["id"]), {}) == {"status": "requeued"}

    for record in (ended, done["result"]):
        if is_packed:
            assert isinstance(record["result"], bytes)
            record["result"] = json.loads(record["result"])
        stored = answered(tenant.producer.get(at(paths.RESULT, record["taskId"])), 200)
        assert stored["result"] == record
        packed = tenant.producer.request(
            "GET", at(paths.RESULT, record["taskId"]), headers={"Accept": "application/msgpack"}
        )
        other = msgspec.msgpack.decode(packed.content)
        assert json.loads(other["result"].pop("result")) == record["result"]
        assert other["task"] == stored["task"]
