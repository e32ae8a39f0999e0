"""Result callbacks of a running server: who is called, with what, how often, and what operators see."""

import threading
from typing import Any

import pytest
from tests.server.server_process import Server, Tenant, answered, at, eventually, start_server
from tests.webhooks.conftest import SECRET, SETTINGS
from tests.webhooks.http_receiver import HttpReceiver

import codeq
from codeq.wire import paths, times


def deliveries(tenant: Tenant, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answered(tenant.admin.get(paths.DELIVERIES, **query), 200)["deliveries"]
    return found


def wait_for(tenant: Tenant, state: str, number: int = 1) -> list[dict[str, Any]]:
    return eventually(lambda: found if len(found := deliveries(tenant, state=state)) >= number else [], 30)


def test_a_result_is_sent_signed_and_is_then_delivered(tenant: Tenant, receiver: HttpReceiver) -> None:
    task = tenant.ended(result={"x": [1, None]}, webhook=receiver.url())
    [got] = receiver.wait()
    assert codeq.verify_webhook(got.headers, got.body, SECRET) == {
        "taskId": task["id"],
        "eventType": "work",
        "status": "COMPLETED",
        "result": {"x": [1, None]},
        "error": None,
        "artifacts": [],
        "completedAt": got.json["completedAt"],
        "attempts": 0,
        "lastError": None,
    }
    [delivery] = wait_for(tenant, "delivered")
    assert (delivery["id"], delivery["taskId"], delivery["command"]) == (got.id, task["id"], "work")
    shown = answered(tenant.admin.get(at(paths.DELIVERY, got.id)), 200)
    assert (shown["response"]["status"], shown["body"]) == (204, got.json)
    assert len(receiver.got()) == 1


def test_every_way_to_end_a_task_calls_back_once(tenant: Tenant, receiver: HttpReceiver) -> None:
    hook = receiver.url()
    ended = {
        tenant.ended(webhook=hook)["id"]: ("COMPLETED", None),
        tenant.dead(webhook=hook)["id"]: ("FAILED", "MAX_ATTEMPTS"),
    }
    failed = tenant.held(webhook=hook)["id"]
    answered(tenant.worker.post(at(paths.RESULT, failed), {"status": "FAILED", "error": "no"}), 200)
    cancelled = tenant.create("other", webhook=hook)["id"]
    answered(tenant.producer.post(at(paths.CANCEL, cancelled)), 200)
    batched = tenant.held(webhook=hook)["id"]
    outcomes = [{"taskId": batched, "status": "COMPLETED", "result": {}}]
    answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": outcomes}), 200)
    expired = tenant.create("expiring", webhook=hook, maxAttempts=1)["id"]
    tenant.claim("expiring", leaseSeconds=0.1)
    ended |= {
        failed: ("FAILED", "no"),
        cancelled: ("CANCELLED", None),
        batched: ("COMPLETED", None),
        expired: ("FAILED", "MAX_ATTEMPTS"),
    }
    got = receiver.wait(len(ended))
    assert {one.json["taskId"]: (one.json["status"], one.json["error"]) for one in got} == ended
    wait_for(tenant, "delivered", len(ended))
    assert len(receiver.got()) == len({one.id for one in got}) == len(ended)


def test_a_task_without_webhook_calls_nobody(tenant: Tenant) -> None:
    tenant.ended()
    assert deliveries(tenant) == []


def test_a_replayed_task_that_ends_again_calls_back_again(tenant: Tenant, receiver: HttpReceiver) -> None:
    task = tenant.dead(webhook=receiver.url())
    receiver.wait()
    answered(tenant.admin.post(paths.DLQ_REPLAY, {"ids": [task["id"]]}), 200)
    tenant.claim()
    answered(tenant.worker.post(at(paths.RESULT, task["id"]), {"status": "COMPLETED", "result": 1}), 200)
    first, second = receiver.wait(2)
    assert (first.json["status"], second.json["status"]) == ("FAILED", "COMPLETED")
    assert first.id != second.id


def test_check_64_a_failing_receiver_is_tried_again_with_the_same_id_and_a_fresh_signature(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    receiver.answer("/hook", lambda number: (500 if number < 3 else 200, {}))
    tenant.ended(webhook=receiver.url())
    got = receiver.wait(3)
    assert len({one.id for one in got}) == 1
    assert len({one.body for one in got}) == 1
    for one in got:
        codeq.verify_webhook(one.headers, one.body, SECRET)
    [delivery] = wait_for(tenant, "delivered")
    assert (delivery["attempts"], delivery["lastError"]) == (2, "HTTP 500")


def test_a_delivery_is_dead_after_its_attempts_and_can_be_replayed(tenant: Tenant, receiver: HttpReceiver) -> None:
    receiver.answer("/hook", lambda number: (302 if number <= 5 else 200, {"location": receiver.url("/other")}))
    tenant.ended(webhook=receiver.url())
    [dead] = wait_for(tenant, "dead")
    assert (dead["attempts"], dead["maxAttempts"], dead["lastError"]) == (5, 5, "HTTP 302")
    assert len(receiver.got()) == 5
    assert receiver.got("/other") == []
    assert answered(tenant.admin.get(paths.DLQ), 200)["tasks"] == [], "it is not among the tasks of users"
    assert [one["id"] for one in deliveries(tenant, state="dead", error="302")] == [dead["id"]]
    assert deliveries(tenant, state="dead", error="500") == []
    dry = answered(tenant.admin.post(paths.DELIVERIES_REPLAY, {"all": True, "dryRun": True}), 200)
    assert (dry["matched"], dry["changed"]) == (1, 0)
    done = answered(tenant.admin.post(paths.DELIVERIES_REPLAY, {"ids": [dead["id"], "nonsense"]}), 200)
    assert (done["changed"], done["refused"]) == (1, {"nonsense": "not-found"})
    receiver.wait(6)
    assert wait_for(tenant, "delivered")[0]["id"] == dead["id"]


def test_check_61_a_receiver_that_is_gone_is_not_tried_again(tenant: Tenant, receiver: HttpReceiver) -> None:
    receiver.answer("/hook", lambda _: (410, {}))
    tenant.ended(webhook=receiver.url())
    [dead] = wait_for(tenant, "dead")
    assert (dead["attempts"], dead["lastError"]) == (1, "HTTP 410")
    assert len(receiver.got()) == 1


def test_check_61_retry_after_is_honoured(tenant: Tenant, receiver: HttpReceiver) -> None:
    receiver.answer("/hook", lambda _: (503, {"retry-after": "600"}))
    tenant.ended(webhook=receiver.url())
    [delivery] = wait_for(tenant, "delayed")
    wait_ms = times.parse(delivery["nextAttemptAt"]) - times.parse(delivery["updatedAt"])
    assert 599_000 <= wait_ms <= 601_000


def test_a_private_webhook_is_refused_with_a_code(tenant: Tenant) -> None:
    for webhook in ("http://10.0.0.1/", "http://localhost/", "http://[::1]/", "http://127.0.0.2/"):
        refusal = tenant.producer.post(paths.TASKS, {"command": "work", "payload": 1, "webhook": webhook})
        assert answered(refusal, 400)["code"] == "webhook-refused"
    batch = {
        "tasks": [{"command": "work", "payload": 1, "webhook": "http://10.0.0.1/"}, {"command": "a", "payload": 1}]
    }
    results = answered(tenant.producer.post(paths.TASKS_BATCH, batch), 200)["results"]
    assert [item.get("code") for item in results] == ["webhook-refused", None]


def test_a_server_refuses_webhooks_to_itself_by_default_also_in_dev_mode(server: Server, tmp_path: Any) -> None:
    with start_server(tmp_path) as plain:
        tenant = plain.tenant()
        for webhook in (plain.base, f"http://localhost:{plain.port}/", f"http://[::ffff:127.0.0.1]:{plain.port}/"):
            refusal = tenant.producer.post(paths.TASKS, {"command": "work", "payload": 1, "webhook": webhook})
            assert answered(refusal, 400)["code"] == "webhook-refused"


def test_a_test_is_sent_as_all_deliveries_are(tenant: Tenant, receiver: HttpReceiver) -> None:
    made = answered(tenant.admin.post(paths.WEBHOOK_TEST, {"url": receiver.url()}), 202)
    [got] = receiver.wait()
    assert got.id == made["id"]
    assert got.json["result"] == {"test": True}
    refusal = tenant.admin.post(paths.WEBHOOK_TEST, {"url": "http://169.254.169.254/"})
    assert answered(refusal, 400)["code"] == "webhook-refused"


def test_secrets_are_shown_to_admins_alone(tenant: Tenant) -> None:
    assert answered(tenant.admin.get(paths.WEBHOOK_SECRET), 200)["secrets"] == [SECRET]
    for caller in (tenant.producer, tenant.worker):
        assert caller.get(paths.WEBHOOK_SECRET).status_code == 403


def test_only_admins_of_the_tenant_reach_deliveries(tenant: Tenant, receiver: HttpReceiver) -> None:
    tenant.ended(webhook=receiver.url())
    [got] = receiver.wait()
    other = tenant.server.tenant()
    assert other.admin.get(at(paths.DELIVERY, got.id)).status_code == 404
    assert deliveries(other) == []
    done = answered(other.admin.post(paths.DELIVERIES_REPLAY, {"ids": [got.id]}), 200)
    assert done["refused"] == {got.id: "not-found"}
    assert tenant.producer.get(paths.DELIVERIES).status_code == 403
    assert tenant.producer.get(at(paths.TASK, got.id)).status_code == 404
    assert tenant.producer.post(at(paths.CANCEL, got.id)).status_code == 404
    assert tenant.worker.get(at(paths.TASK, got.id)).status_code == 404
    assert tenant.worker.post(paths.CLAIM, {"commands": ["$webhooks"]}).status_code == 400
    refused = tenant.producer.post(paths.TASKS, {"command": "$webhooks", "payload": {}})
    assert refused.status_code == 400
    assert tenant.admin.get(at(paths.DELIVERY, tenant.ended()["id"])).status_code == 404


@pytest.mark.parametrize(
    "body", [{}, {"ids": []}, {"all": True, "error": "x"}, {"ids": ["a"], "all": True}, {"limit": 1}, {"x": 1}]
)
def test_a_bad_selection_is_refused(tenant: Tenant, body: Any) -> None:
    assert tenant.admin.post(paths.DELIVERIES_REPLAY, body).status_code == 400


def test_bad_filters_are_refused(tenant: Tenant) -> None:
    for query in ({"state": "x"}, {"limit": "0"}, {"cursor": "x"}, {"nothing": "x"}):
        assert tenant.admin.get(paths.DELIVERIES, **query).status_code == 400


def test_check_63_a_slow_receiver_of_one_tenant_does_not_delay_anothers(server: Server, receiver: HttpReceiver) -> None:
    hold = threading.Event()
    receiver.answer("/slow", lambda _: (200 if hold.wait(20) else 500, {}))
    slow, quick = server.tenant(), server.tenant()
    try:
        for _ in range(40):  # more than the slots of a tenant
            slow.ended(webhook=receiver.url("/slow"))
        receiver.wait(1, "/slow")
        for number in range(5):
            quick.ended(webhook=receiver.url("/quick"))
            receiver.wait(number + 1, "/quick")
        assert len(receiver.got("/slow")) <= 8, "no more at once than host_concurrency_max"
    finally:
        hold.set()
    receiver.wait(40, "/slow")


def test_hosts_that_fail_again_and_again_get_a_pause(server: Server, receiver: HttpReceiver) -> None:
    tenant = server.tenant()
    receiver.answer("/hook", lambda _: (500, {}))
    for _ in range(10):
        tenant.ended(webhook=receiver.url())
    eventually(lambda: "codeq_webhook_breakers_open 1.0" in server.request("GET", paths.METRICS).text or None)
    delayed = eventually(lambda: found if len(found := deliveries(tenant, state="delayed")) == 10 else [])
    assert all(one["attempts"] < 5 for one in delayed), "an open breaker uses up no attempts"
    other = server.tenant()
    receiver.answer("/hook", lambda _: (204, {}))
    other.ended(webhook=receiver.url())
    wait_for(other, "delivered")


def test_deliveries_are_counted(server: Server, receiver: HttpReceiver) -> None:
    tenant = server.tenant()
    receiver.answer("/gone", lambda _: (410, {}))
    tenant.ended("counted", webhook=receiver.url())
    tenant.ended("counted", webhook=receiver.url("/gone"))
    wait_for(tenant, "delivered")
    wait_for(tenant, "dead")
    text = server.request("GET", paths.METRICS).text
    for outcome in ("success", "failure"):
        line = f'codeq_webhook_deliveries_total{{command="counted",kind="task_result",outcome="{outcome}"}} 1.0'
        assert line in text


def test_what_is_not_sent_at_shutdown_is_sent_after_the_next_start(tmp_path: Any, receiver: HttpReceiver) -> None:
    hold = threading.Event()
    receiver.answer("/hook", lambda _: (200 if hold.wait(20) else 500, {}))
    settings = {"webhooks": SETTINGS | {"timeout_seconds": 60}, "http": {"shutdown_seconds": 1}}
    try:
        with start_server(tmp_path, settings=settings) as server:
            tenant = server.tenant("acme")
            for _ in range(12):
                tenant.ended(webhook=receiver.url())
            receiver.wait(8)
            server.stop()
    finally:
        hold.set()
    with start_server(tmp_path, settings=settings) as server:
        tenant = server.tenant("acme")
        found = wait_for(tenant, "delivered", 12)
        assert all(one["attempts"] == 0 for one in found), "handing back counts no attempt"
        assert len({one.id for one in receiver.got()}) == 12


def test_trace_headers_of_the_task_are_sent(tenant: Tenant, receiver: HttpReceiver) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
    body = {"command": "work", "payload": 1, "webhook": receiver.url()}
    answered(tenant.producer.post(paths.TASKS, body, headers=trace), 202)
    task = tenant.claim()
    answered(tenant.worker.post(at(paths.RESULT, task["id"]), {"status": "COMPLETED", "result": 1}), 200)
    [got] = receiver.wait()
    assert {name: got.headers[name] for name in trace} == trace


def test_secrets_are_in_no_log_and_no_answer(server: Server, tenant: Tenant, receiver: HttpReceiver) -> None:
    tenant.ended(webhook=receiver.url())
    receiver.wait()
    for path in (paths.READYZ, paths.HEALTHZ, paths.METRICS, paths.OPENAPI):
        assert SECRET not in server.request("GET", path).text
    assert SECRET not in server.log_text()
