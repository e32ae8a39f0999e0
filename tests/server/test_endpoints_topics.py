"""The policy of a queue has a version, and what is not set follows the server's settings of the day."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.server_process import Tenant, answered, at, refused, start_server

from codeq.wire import paths

WORK = at(paths.TOPIC, "work")


def put(tenant: Tenant, policy: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return tenant.admin.put(WORK, {"policy": policy}, headers=named)


def test_what_is_not_set_follows_the_settings_of_the_next_start(tmp_path: Path) -> None:
    """(13.26) One rule was set, and the queue was paused and resumed, under the settings of the first start."""
    with start_server(tmp_path) as server:
        acme = server.tenant("acme")
        answered(put(acme, {"maxConsumers": 3, "backoff": {"baseSeconds": 1}}), 201)
        for path in (paths.PAUSE, paths.RESUME):
            answered(acme.admin.post(at(path, "work")), 200)
            answered(acme.admin.post(at(path, "paused-once")), 200)
    settings = {
        "retry": {"max_attempts": 7, "backoff_policy": "linear", "backoff_base_seconds": 9},
        "leases": {"default_seconds": 45},
        "retention": {"seconds": 60, "dead_seconds": 120},
    }
    with start_server(tmp_path, settings=settings) as server:
        acme = server.tenant("acme")
        topic = answered(acme.admin.get(WORK), 200)
        assert topic["policy"] == {"maxConsumers": 3, "backoff": {"baseSeconds": 1.0}, "paused": False}
        effective = topic["effectivePolicy"]
        assert effective["backoff"] == {"policy": "linear", "baseSeconds": 1.0, "maxSeconds": 900.0}
        assert (effective["maxAttempts"], effective["leaseSeconds"], effective["maxConsumers"]) == (7, 45, 3)
        assert (effective["retentionSeconds"], effective["deadRetentionSeconds"]) == (60, 120)
        assert acme.create()["maxAttempts"] == acme.create("paused-once")["maxAttempts"] == 7
        answered(put(acme, {"leaseSeconds": 30}), 200)
        assert acme.create()["maxAttempts"] == 7
        without = answered(acme.admin.get(at(paths.ADMIN_QUEUE, "without")), 200)["effectivePolicy"]
        assert (without["maxAttempts"], without["backoff"]["baseSeconds"], without["maxConsumers"]) == (7, 9, 0)


def test_the_second_of_two_operators_is_refused(tenant: Tenant) -> None:
    """(13.26)"""
    created = put(tenant, {"maxAttempts": 3})
    etag = created.headers["etag"]
    assert tenant.admin.get(WORK).headers["etag"] == etag
    first = put(tenant, {"maxAttempts": 3, "maxConsumers": 2}, If_Match=etag)
    assert answered(first, 200)["version"] == 2
    assert first.headers["etag"] != etag
    refused(put(tenant, {"maxAttempts": 3, "leaseSeconds": 9}, If_Match=etag), 412, "policy-changed")
    refused(put(tenant, {"leaseSeconds": 9}, If_None_Match="*"), 412, "policy-changed")
    refused(tenant.admin.request("DELETE", WORK, headers={"If-Match": etag}), 412, "policy-changed")
    topic = answered(tenant.admin.get(WORK), 200)
    assert (topic["policy"], topic["version"]) == ({"maxAttempts": 3, "maxConsumers": 2}, 2)


@pytest.mark.parametrize("tag", ['"1"', 'W/"1"', "*"])
def test_a_version_or_any_may_be_named_instead_of_the_etag(tenant: Tenant, tag: str) -> None:
    """(13.26)"""
    refused(put(tenant, {"maxAttempts": 3}, If_Match=tag), 412, "policy-changed")
    answered(put(tenant, {"maxAttempts": 3}, If_None_Match="*"), 201)
    assert answered(put(tenant, {"maxAttempts": 4}, If_Match=tag), 200)["version"] == 2


def test_a_repeated_call_is_accepted_as_the_first_was(tenant: Tenant) -> None:
    """(13.26) A client whose answer was lost sends the same again."""
    for attempts, header in ((2, {"If_None_Match": "*"}), (3, {"If_Match": '"1"'})):
        [first, again] = [put(tenant, {"maxAttempts": attempts}, **header) for _ in range(2)]
        assert answered(again, 200) == first.json()
    for _ in range(2):
        assert tenant.admin.request("DELETE", WORK, headers={"If-Match": '"2"'}).status_code == 204


@pytest.mark.parametrize(
    "headers",
    [
        [("If-Match", "1")],
        [("If-Match", '""')],
        [("If-Match", '"one"')],
        [("If-Match", '"1", "2"')],
        [("If-Match", '"' + "1" * 30 + '"')],
        [("If-Match", '"1"'), ("If-Match", '"2"')],
        [("If-Match", '"1"'), ("If-None-Match", "*")],
        [("If-None-Match", '"1"')],
        [("If-Match", "\xff")],
        [("If-Match", '"' + "x" * 4000 + '"')],
    ],
)
def test_a_condition_that_cannot_be_read_is_refused(tenant: Tenant, headers: list[tuple[str, str]]) -> None:
    """(13.26)"""
    encoded: Any = [(name, value.encode("latin-1")) for name, value in headers]
    refused(tenant.admin.put(WORK, {"policy": {}}, headers=encoded), 400, "invalid")
    refused(tenant.admin.request("DELETE", WORK, headers=encoded), 400, "invalid")
    refused(tenant.admin.get(WORK), 404, "not-found")
