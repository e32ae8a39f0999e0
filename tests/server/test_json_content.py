"""Payloads and results over HTTP: the same rules in JSON and MessagePack, small and large, alone and in a batch."""

import json
from typing import Any

import msgspec
import pytest
from tests.server.server_process import Server, answered, at, refused

from codeq.wire import paths

PACKED = {"Content-Type": "application/msgpack"}
TOO_DEEP = b"[" * 40 + b"]" * 40
DEEP_ENOUGH = b"[" * 30 + b"]" * 30


def test_a_packed_payload_is_refused_from_the_same_depth_on(server: Server) -> None:
    """(13.22)"""
    producer = server.tenant().producer
    bodies = [{"command": "work", "payload": content} for content in (TOO_DEEP, DEEP_ENOUGH)]
    answers = [producer.request("POST", paths.TASKS, content=msgspec.msgpack.encode(b), headers=PACKED) for b in bodies]
    assert "nested deeper" in refused(answers[0], 400, "invalid")["error"]
    answered(answers[1], 202)

    batch = msgspec.msgpack.encode({"tasks": bodies})
    bad, good = answered(producer.request("POST", paths.TASKS_BATCH, content=batch, headers=PACKED), 200)["results"]
    assert "nested deeper" in bad["error"]
    assert good["task"]["command"] == "work"


def test_a_packed_result_is_refused_from_the_same_depth_on(server: Server) -> None:
    """(13.22)"""
    tenant = server.tenant()
    task = tenant.held()
    path = at(paths.RESULT, task["id"])
    for content, status in ((TOO_DEEP, 400), (DEEP_ENOUGH, 200)):
        body = msgspec.msgpack.encode({"status": "COMPLETED", "result": content})
        assert tenant.worker.request("POST", path, content=body, headers=PACKED).status_code == status


@pytest.mark.parametrize(
    "bad",
    [{"command": "a b", "payload": 1}, {"payload": 1}, 5, {"command": "x", "payload": "x" * (1 << 20)}],
    ids=range(4),
)
def test_a_bad_item_of_a_large_batch_leaves_the_others_alone(server: Server, bad: Any) -> None:
    """A batch of more than a megabyte is split before it is decoded. (13.16)"""
    tenant = server.tenant()
    payload = {"brackets": '[{"\\' * 50_000, "nested": [[[]]] * 30_000}
    good = [{"command": "good", "payload": payload, "priority": i} for i in range(5)]
    body = json.dumps({"tasks": [*good, bad, *good]}, indent=1)
    results = answered(tenant.producer.request("POST", paths.TASKS_BATCH, content=body), 200)["results"]
    assert [result.get("code") for result in results] == [None] * 5 + ["invalid"] + [None] * 5
    assert all(json.loads(r["task"]["payload"]) == payload for r in results if "task" in r)
    assert [r["task"]["priority"] for r in results if "task" in r] == [0, 1, 2, 3, 4] * 2


def test_large_results_of_a_batch_are_stored(server: Server) -> None:
    """(13.16)"""
    tenant = server.tenant()
    ids = [tenant.held(f"work-{i}")["id"] for i in range(3)]
    results = [{"taskId": i, "status": "COMPLETED", "result": {"id": i, "text": "x" * 500_000}} for i in ids]
    answers = answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": results}), 200)["results"]
    assert [answer["result"]["result"]["id"] for answer in answers] == ids
    stored = answered(tenant.producer.get(at(paths.RESULT, ids[0])), 200)["result"]["result"]
    assert stored == results[0]["result"]


def test_a_batch_claim_says_that_its_bytes_were_limited(server: Server) -> None:
    """(13.17)"""
    tenant = server.tenant()
    for _ in range(12):
        tenant.create(payload="x" * 1_000_000)
    first = answered(tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 300}), 200)
    assert first["bytesLimited"] is True
    second = answered(tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 300}), 200)
    assert "bytesLimited" not in second
    assert len(first["tasks"]) + len(second["tasks"]) == 12
