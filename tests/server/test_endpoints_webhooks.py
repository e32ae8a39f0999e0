"""Routes of deliveries: each answer that they may give. What is sent and retried is tested in tests/webhooks."""

import msgspec
from tests.server.server_process import Tenant, answered, at, refused

from codeq.wire import paths

NOWHERE = "https://hooks.invalid/done"
"""A name that has no address by definition: nothing is connected to."""


def test_a_delivery_is_listed_shown_and_replayed(tenant: Tenant) -> None:
    task = tenant.ended(webhook=NOWHERE)
    [listed] = answered(tenant.admin.get(paths.DELIVERIES), 200)["deliveries"]
    assert (listed["taskId"], listed["url"], listed["body"]) == (task["id"], NOWHERE, None)
    shown = answered(tenant.admin.get(at(paths.DELIVERY, listed["id"])), 200)
    assert shown["body"]["taskId"] == task["id"]
    refused(tenant.admin.get(at(paths.DELIVERY, task["id"])), 404, "not-found")
    done = answered(tenant.admin.post(paths.DELIVERIES_REPLAY, {"all": True}), 200)
    assert done["matched"] == 0


def test_in_messagepack_what_is_sent_is_a_byte_string_that_holds_json(tenant: Tenant) -> None:
    tenant.ended(webhook=NOWHERE)
    [listed] = answered(tenant.admin.get(paths.DELIVERIES), 200)["deliveries"]
    place = at(paths.DELIVERY, listed["id"])
    packed = tenant.admin.request("GET", place, headers={"Accept": "application/msgpack"})
    shown = msgspec.msgpack.decode(packed.content)
    assert msgspec.json.decode(shown["body"]) == answered(tenant.admin.get(place), 200)["body"]


def test_a_delivery_does_not_exist_for_workers(tenant: Tenant) -> None:
    tenant.ended(webhook=NOWHERE)
    [delivery] = answered(tenant.admin.get(paths.DELIVERIES), 200)["deliveries"]
    limited = tenant.worker_named("limited", commands=["other"])
    unknown = "01a1edb9-1e46-7001-861c-1e37de8b0000"
    for worker in (tenant.worker, limited):
        for path in (paths.HEARTBEAT, paths.ABANDON, paths.NACK, paths.RESULT):
            body = {"status": "COMPLETED"} if path == paths.RESULT else {}
            told = [refused(worker.post(at(path, each), body), 404, "not-found") for each in (delivery["id"], unknown)]
            assert told[0]["error"].replace(delivery["id"], unknown) == told[1]["error"]


def test_a_test_is_accepted_if_its_url_is_public(tenant: Tenant) -> None:
    made = answered(tenant.admin.post(paths.WEBHOOK_TEST, {"url": NOWHERE}), 202)
    assert made["command"] == "codeq.test"
    refused(tenant.admin.post(paths.WEBHOOK_TEST, {"url": "http://127.0.0.1/"}), 400, "webhook-refused")
    refused(tenant.admin.post(paths.WEBHOOK_TEST, {"url": "nowhere"}), 400, "invalid")
    for spelling in ("http://0x7f.1/", "http://2130706433/", "http://127.1/"):
        refused(tenant.admin.post(paths.WEBHOOK_TEST, {"url": spelling}), 400, "webhook-refused")


def test_without_a_secret_nothing_is_signed(tenant: Tenant) -> None:
    answer = tenant.admin.get(paths.WEBHOOK_SECRET)
    assert answered(answer, 200) == {"secrets": []}
    assert answer.headers["cache-control"] == "no-store"
