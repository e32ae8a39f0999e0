"""Routes for producers: create, batch create, cancel."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.server_process import Tenant, answered, at, eventually, refused, start_server

from codeq.domain.limits import BATCH_TASKS_MAX, PAYLOAD_BYTES_MAX
from codeq.wire import paths

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


def new(**fields: Any) -> dict[str, Any]:
    return {"command": "work", "payload": 1, **fields}


def test_a_created_task_is_answered_whole_with_its_payload_as_a_json_string(tenant: Tenant) -> None:
    body = {"command": "resize", "payload": {"to": "world", "n": [1, 2.5, None]}, "priority": 3, "maxAttempts": 7}
    task = answered(tenant.producer.post(paths.TASKS, body), 202)
    assert isinstance(task["payload"], str)
    assert json.loads(task["payload"]) == body["payload"]
    assert (task["command"], task["status"], task["tenantId"]) == ("resize", "PENDING", tenant.name)
    assert (task["priority"], task["attempts"], task["maxAttempts"], task["deliveries"]) == (3, 0, 7, 0)
    assert task["lastKnownLocation"] == "PENDING_LIST"
    assert task["createdAt"] == task["updatedAt"]
    assert not {"workerId", "leaseUntil", "error", "resultKey", "webhook", "visibleAt"} & set(task)
    assert tenant.task(task["id"]) == task


def test_a_payload_is_kept_byte_for_byte(tenant: Tenant) -> None:
    content = b'{"command":"work","payload":{"b" : 1.10,  "a":"\\u00e9\xc3\xa9"}}'
    task = answered(tenant.producer.post(paths.TASKS, content=content), 202)
    assert task["payload"] == '{"b" : 1.10,  "a":"\\u00e9é"}'
    assert tenant.claim()["payload"] == task["payload"]


@pytest.mark.parametrize("payload", [0, False, "", [], {}, "text", [[]], 1e300])
def test_any_json_value_but_null_is_a_payload(tenant: Tenant, payload: Any) -> None:
    assert json.loads(tenant.create(payload=payload)["payload"]) == payload


@pytest.mark.parametrize(("value", "stored"), [(-5, 0), (0, 0), (9, 9), (10, 9), (2**40, 9)])
def test_a_priority_outside_0_to_9_is_taken_as_the_nearest(tenant: Tenant, value: int, stored: int) -> None:
    assert tenant.create(priority=value)["priority"] == stored


@pytest.mark.parametrize(("value", "stored"), [(-1, 5), (0, 5), (1, 1), (100, 100)])
def test_max_attempts_of_0_or_less_are_the_queues_own(tenant: Tenant, value: int, stored: int) -> None:
    assert tenant.create(maxAttempts=value)["maxAttempts"] == stored


def test_a_task_with_a_delay_is_not_handed_out_before_its_time(tenant: Tenant) -> None:
    task = tenant.create(delaySeconds=3600, priority=9)
    assert task["lastKnownLocation"] == "DELAYED_ZSET"
    assert moment(task["visibleAt"]) - moment(task["createdAt"]) == timedelta(hours=1)
    assert tenant.worker.post(paths.CLAIM, {"commands": ["work"]}).status_code == 204
    assert tenant.counts()["delayed"] == 1


def test_a_delay_of_a_fraction_of_a_second_passes_without_anyone_asking(tenant: Tenant) -> None:
    task = tenant.create(delaySeconds=0.2)
    assert eventually(lambda: tenant.task(task["id"])["lastKnownLocation"] == "PENDING_LIST")
    claimed = tenant.claim()
    assert claimed["id"] == task["id"]
    assert moment(claimed["updatedAt"]) >= moment(task["visibleAt"])


def test_run_at_wins_over_delay_seconds_and_may_have_any_offset(tenant: Tenant) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    local = (when + timedelta(hours=-3)).replace(tzinfo=None).isoformat() + "-03:00"
    task = tenant.create(runAt=local, delaySeconds=1)
    assert moment(task["visibleAt"]) == when


def test_run_at_in_the_past_means_at_once(tenant: Tenant) -> None:
    for past in ("2001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"):
        assert tenant.create(runAt=past)["lastKnownLocation"] == "PENDING_LIST"


def test_a_run_at_past_the_last_year_harms_nobody(tmp_path: Path) -> None:
    with start_server(tmp_path) as own:  # not the shared one: it would harm all readers of events
        tenant = own.tenant()
        answer = tenant.producer.post(paths.TASKS, new(runAt="9999-12-31T23:59:59-23:59"))
        assert answer.status_code in (202, 400)
        answered(tenant.producer.get(paths.TASKS), 200)
        answered(own.request("GET", paths.EVENTS), 200)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"payload": 1}, None),
        ({"command": "work"}, None),
        (new(payload=None), None),
        (new(command=""), "command"),
        (new(command="a/b"), "command"),
        (new(command="a b"), "command"),
        (new(command="x" * 65), "command"),
        (new(command="work\n"), None),
        (new(command=7), "command"),
        (new(priority="5"), "priority"),
        (new(priority=1.5), "priority"),
        (new(priority=True), "priority"),
        (new(maxAttempts=101), "maxAttempts"),
        (new(delaySeconds=-1), "delaySeconds"),
        (new(delaySeconds=1e10), "delaySeconds"),
        (new(runAt="tomorrow"), None),
        (new(runAt="2030-01-01"), None),
        (new(runAt="2030-01-01T00:00:00"), None),
        (new(runAt=5), "runAt"),
        (new(idempotencyKey="k" * 256), "idempotencyKey"),
        (new(idempotencyKey="a\nb"), None),
        (new(backoff={"policy": "never"}), None),
        (new(backoff={"policy": "fixed", "baseSeconds": -1}), "backoff.baseSeconds"),
        (new(webhook="https://x\r\nHost: y"), None),
        ([], None),
        ("text", None),
    ],
)
def test_a_field_that_breaks_a_rule_is_refused_by_its_name(tenant: Tenant, body: Any, field: str | None) -> None:
    problem = refused(tenant.producer.post(paths.TASKS, body), 400, "invalid")
    assert problem.get("field") == field
    assert tenant.producer.get(paths.TASKS).json()["tasks"] == []


@pytest.mark.parametrize("field", ["tenantId", "workerId", "status", "attempts", "id", "createdAt", "leaseToken"])
def test_a_producer_cannot_set_what_the_queue_decides(tenant: Tenant, field: str) -> None:
    refused(tenant.producer.post(paths.TASKS, new(**{field: "x"})), 400, "invalid")


@pytest.mark.parametrize("webhook", ["javascript:alert(1)", "file:///etc/passwd", "http://", "nowhere"])
def test_a_webhook_that_is_no_web_address_is_refused(tenant: Tenant, webhook: str) -> None:
    refused(tenant.producer.post(paths.TASKS, new(webhook=webhook)), 400, "invalid")


def test_a_webhook_is_kept_with_the_task(tenant: Tenant) -> None:
    assert tenant.create(webhook="https://example.com/done")["webhook"] == "https://example.com/done"


def test_a_body_that_is_no_json_is_refused(tenant: Tenant) -> None:
    for content in (b"{", b"\xff", b'{"command":"work","payload":NaN}', b'{"command":"work","payload":1}x', b""):
        refused(tenant.producer.post(paths.TASKS, content=content), 400, "invalid")


def test_a_body_in_another_format_or_encoding_is_refused(tenant: Tenant) -> None:
    answer = tenant.producer.post(paths.TASKS, content=b"<a/>", headers={"Content-Type": "application/xml"})
    refused(answer, 415, "unsupported-media")
    answer = tenant.producer.post(paths.TASKS, content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    refused(answer, 415, "unsupported-media")


def test_a_payload_past_the_limit_is_refused_and_one_at_the_limit_is_kept(tenant: Tenant) -> None:
    text = "x" * (PAYLOAD_BYTES_MAX - 2)
    assert len(tenant.create(payload=text)["payload"]) == PAYLOAD_BYTES_MAX
    refused(tenant.producer.post(paths.TASKS, new(payload=text + "y")), 400, "invalid")
    refused(tenant.producer.post(paths.TASKS, new(payload=text * 3)), 413, "too-large")


def test_an_idempotency_key_sent_again_answers_the_first_task(tenant: Tenant) -> None:
    first = tenant.producer.post(paths.TASKS, new(idempotencyKey="k"))
    again = tenant.producer.post(paths.TASKS, new(idempotencyKey="k", priority=5))
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    assert answered(again, 202) == answered(first, 202)
    assert first.json()["idempotencyKey"] == "k"
    assert tenant.counts()["ready"] == 1


def test_the_idempotency_key_may_be_a_header(tenant: Tenant) -> None:
    first = tenant.producer.post(paths.TASKS, new(), headers={"Idempotency-Key": "h"})
    again = tenant.producer.post(paths.TASKS, new(), headers={"idempotency-key": "h"})
    in_body = tenant.producer.post(paths.TASKS, new(idempotencyKey="h"))
    assert again.headers["idempotent-replay"] == in_body.headers["idempotent-replay"] == "true"
    assert first.json()["id"] == again.json()["id"] == in_body.json()["id"]


def test_a_header_and_a_body_that_name_different_keys_are_refused(tenant: Tenant) -> None:
    """(13.24)"""
    both = {"Idempotency-Key": "h"}
    refused(tenant.producer.post(paths.TASKS, new(idempotencyKey="b"), headers=both), 400, "invalid")
    assert answered(tenant.producer.post(paths.TASKS, new(idempotencyKey="h"), headers=both), 202)
    refused(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [new()]}, headers=both), 400, "invalid")
    assert tenant.counts()["ready"] == 1


@pytest.mark.parametrize("second", ["a", "b"])
def test_two_idempotency_headers_are_refused(tenant: Tenant, second: str) -> None:
    """(13.24)"""
    twice = [("Idempotency-Key", "a"), ("idempotency-key", second)]
    refused(tenant.producer.post(paths.TASKS, new(), headers=twice), 400, "invalid")


def test_an_empty_key_is_refused(tenant: Tenant) -> None:
    """(13.24)"""
    refused(tenant.producer.post(paths.TASKS, new(idempotencyKey="")), 400, "invalid")
    refused(tenant.producer.post(paths.TASKS, new(), headers={"Idempotency-Key": ""}), 400, "invalid")
    both = tenant.producer.post(paths.TASKS, new(idempotencyKey=""), headers={"Idempotency-Key": "h"})
    refused(both, 400, "invalid")
    answer = tenant.producer.post(paths.TASKS_BATCH, {"tasks": [new(idempotencyKey=""), new(idempotencyKey=None)]})
    assert [item.get("code") for item in answered(answer, 200)["results"]] == ["invalid", None]


def test_a_header_key_that_breaks_the_rule_is_refused(tenant: Tenant) -> None:
    for key in ("", "k" * 256):
        refused(tenant.producer.post(paths.TASKS, new(), headers={"Idempotency-Key": key}), 400, "invalid")


def test_a_key_used_for_another_payload_or_command_returns_its_task_and_says_so(tenant: Tenant) -> None:
    """(13.24)"""
    first = tenant.create(idempotencyKey="k")
    for other in (new(payload=2, idempotencyKey="k"), new(command="other", idempotencyKey="k")):
        answer = tenant.producer.post(paths.TASKS, other)
        assert answered(answer, 202) == first
        assert answer.headers["idempotent-replay"] == answer.headers["idempotent-mismatch"] == "true"
    assert tenant.counts()["ready"] == 1


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a": 1, "b": [true, "\xc3\xa9", 0.5]}',
        b'{"b":[true,"\xc3\xa9",0.5],"a":1}',
        b' { "a" : 1.0 , "b" : [ true , "\\u00e9" , 5e-1 ] } ',
    ],
)
def test_a_payload_is_compared_as_a_value(tenant: Tenant, payload: bytes) -> None:
    """(13.24)"""
    tenant.create(payload={"a": 1, "b": [True, "é", 0.5]}, idempotencyKey="k")
    content = b'{"command":"work","idempotencyKey":"k","payload":%b}' % payload
    answer = tenant.producer.request("POST", paths.TASKS, content=content)
    answered(answer, 202)
    assert answer.headers["idempotent-replay"] == "true"
    assert "idempotent-mismatch" not in answer.headers


@pytest.mark.parametrize("payload", [{"a": True}, {"a": "1"}, {"a": [1]}, {"a": None}, {"a": 1, "b": None}, {}, [1]])
def test_another_value_is_a_mismatch(tenant: Tenant, payload: object) -> None:
    """(13.24)"""
    tenant.create(payload={"a": 1}, idempotencyKey="k")
    answer = tenant.producer.post(paths.TASKS, new(payload=payload, idempotencyKey="k"))
    assert answer.headers["idempotent-mismatch"] == "true"


def test_a_strict_server_refuses_a_key_used_for_another_task(tmp_path: Path) -> None:
    """(13.24)"""
    with start_server(tmp_path, settings={"idempotency": {"strict": True}}) as server:
        tenant = server.tenant()
        tenant.create(payload={"a": 1, "b": 2}, idempotencyKey="k")
        same = tenant.producer.post(paths.TASKS, new(payload={"b": 2, "a": 1}, idempotencyKey="k"))
        answered(same, 202)
        refused(tenant.producer.post(paths.TASKS, new(idempotencyKey="k")), 422, "idempotency-mismatch")
        batch = {"tasks": [new(idempotencyKey="k"), new()]}
        results = answered(tenant.producer.post(paths.TASKS_BATCH, batch), 200)["results"]
        assert [item.get("code") for item in results] == ["idempotency-mismatch", None]


def test_a_replay_after_the_end_answers_the_task_as_it_is_now_and_runs_nothing(tenant: Tenant) -> None:
    ended = tenant.ended(idempotencyKey="k")
    again = tenant.producer.post(paths.TASKS, new(idempotencyKey="k"))
    assert answered(again, 202) == ended
    assert tenant.counts()["ready"] == 0


def test_one_key_from_many_callers_at_once_makes_one_task(tenant: Tenant) -> None:
    _ = tenant.producer
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: tenant.producer.post(paths.TASKS, new(idempotencyKey="k")), range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotent-replay" in answer.headers for answer in answers) == 49


def test_a_batch_answers_each_item_in_its_place(tenant: Tenant) -> None:
    tenant.create(idempotencyKey="used")
    items = [
        new(payload="a", priority=2),
        new(command="no/such"),
        new(payload=None),
        new(idempotencyKey="used"),
        new(idempotencyKey="used", payload=2),
        7,
        new(payload="z", delaySeconds=60),
        new(unknown=1),
        new(payload="x" * (PAYLOAD_BYTES_MAX + 1)),
    ]
    results = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": items}), 200)["results"]
    codes = [item.get("code") for item in results]
    assert codes == [None, "invalid", "invalid", None, None, "invalid", None, "invalid", "invalid"]
    assert [json.loads(item["task"]["payload"]) for item in results if "task" in item] == ["a", 1, 1, "z"]
    replays = [(item.get("replayed", False), item.get("mismatched", False)) for item in results if "task" in item]
    assert replays == [(False, False), (True, False), (True, True), (False, False)]
    assert all(("task" in item) != ("error" in item) for item in results)
    counts = tenant.counts()
    assert [counts[name] for name in ("ready", "delayed", "inProgress", "dlq")] == [2, 1, 0, 0]


def test_a_batch_of_which_every_item_fails_is_still_answered(tenant: Tenant) -> None:
    results = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [1, 2]}), 200)["results"]
    assert [item["code"] for item in results] == ["invalid", "invalid"]


def test_the_same_key_twice_in_a_batch_makes_one_task(tenant: Tenant) -> None:
    items = [new(idempotencyKey="k"), new(idempotencyKey="k")]
    first, second = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": items}), 200)["results"]
    assert first["task"]["id"] == second["task"]["id"]


def test_a_batch_holds_1_to_1000_tasks(tenant: Tenant) -> None:
    for number in (0, BATCH_TASKS_MAX + 1):
        refused(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [new()] * number}), 400, "invalid")
    results = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [new()] * BATCH_TASKS_MAX}), 200)["results"]
    assert len({item["task"]["id"] for item in results}) == BATCH_TASKS_MAX == tenant.counts()["ready"]


@pytest.mark.parametrize("body", [{}, {"tasks": {}}, {"tasks": [new()], "more": 1}, []])
def test_a_batch_that_is_none_is_refused(tenant: Tenant, body: Any) -> None:
    refused(tenant.producer.post(paths.TASKS_BATCH, body), 400, "invalid")


def test_a_pending_and_a_delayed_task_are_cancelled_at_once(tenant: Tenant) -> None:
    for task in (tenant.create(), tenant.create(delaySeconds=60)):
        cancelled = answered(tenant.producer.post(at(paths.CANCEL, task["id"])), 200)
        assert (cancelled["status"], cancelled["lastKnownLocation"]) == ("CANCELLED", "NONE")
        assert cancelled["endedAt"] == cancelled["updatedAt"]
        assert tenant.task(task["id"]) == cancelled
    assert (tenant.counts()["ready"], tenant.counts()["delayed"]) == (0, 0)
    assert tenant.worker.post(paths.CLAIM, {}).status_code == 204


def test_the_holder_of_a_cancelled_task_learns_of_it(tenant: Tenant) -> None:
    task = tenant.held()
    answered(tenant.producer.post(at(paths.CANCEL, task["id"])), 200)
    for path, body in (
        (paths.HEARTBEAT, {}),
        (paths.NACK, {}),
        (paths.ABANDON, {}),
        (paths.RESULT, {"status": "COMPLETED", "result": {}}),
    ):
        refused(tenant.worker.post(at(path, task["id"]), body), 409, "cancelled")


def test_an_ended_task_cannot_be_cancelled(tenant: Tenant) -> None:
    for task in (tenant.ended(), tenant.dead()):
        refused(tenant.producer.post(at(paths.CANCEL, task["id"])), 409, "already-final")
        assert tenant.task(task["id"]) == task


def test_cancelling_an_unknown_task_is_refused(tenant: Tenant) -> None:
    refused(tenant.producer.post(at(paths.CANCEL, UNKNOWN)), 404, "not-found")


def test_messagepack_says_the_same_as_json(tenant: Tenant) -> None:
    packed = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    content = msgspec.msgpack.encode({"command": "work", "payload": b'{"a": 1}', "priority": 4, "idempotencyKey": "k"})
    made = tenant.producer.post(paths.TASKS, content=content, headers=packed)
    assert (made.status_code, made.headers["content-type"]) == (202, "application/msgpack")
    again = tenant.producer.post(paths.TASKS, content=b'{"command":"work","payload":{"a": 1},"idempotencyKey":"k"}')
    assert msgspec.msgpack.decode(made.content) == answered(again, 202)
    assert again.headers["idempotent-replay"] == "true"

    batch = {"tasks": [{"command": "work", "payload": b"1"}, {"command": "work", "payload": b"{"}, {"command": "x"}]}
    answer = tenant.producer.post(paths.TASKS_BATCH, content=msgspec.msgpack.encode(batch), headers=packed)
    results = msgspec.msgpack.decode(answer.content)["results"]
    assert [item.get("code") for item in results] == [None, "invalid", "invalid"]
    assert results[0]["task"] == tenant.task(results[0]["task"]["id"])


def test_a_refusal_is_packed_for_those_who_ask_for_messagepack(tenant: Tenant) -> None:
    answer = tenant.producer.post(paths.TASKS, new(priority="x"), headers={"Accept": "application/x-msgpack"})
    assert answer.status_code == 400
    assert msgspec.msgpack.decode(answer.content)["field"] == "priority"


def test_broken_messagepack_is_refused(tenant: Tenant) -> None:
    for content in (b"\xc1", b"\x81", b"\x81\xa7command", b""):
        answer = tenant.producer.post(paths.TASKS, content=content, headers={"Content-Type": "application/msgpack"})
        refused(answer, 400, "invalid")
