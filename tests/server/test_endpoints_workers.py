"""Who works, over HTTP: claims list the worker, admins see the list, and everybody sees that nobody works."""

from typing import Any

import pytest
from tests.server.server_process import Tenant, answered, at, refused

from codeq.wire import paths

ANN = {"name": "ann@box:7", "host": "box", "pid": 7, "version": "1.2", "slots": 4, "commands": ["work", "mail"]}


def listed(tenant: Tenant) -> list[dict[str, Any]]:
    answer = answered(tenant.admin.get(paths.WORKERS), 200)
    assert answer["complete"]
    workers: list[dict[str, Any]] = answer["workers"]
    return workers


def test_a_worker_is_listed_with_what_it_tells_and_what_it_holds(tenant: Tenant) -> None:
    assert listed(tenant) == []
    task = tenant.create()
    claimed = answered(tenant.worker.post(paths.CLAIM, {"commands": ["work"], "worker": ANN}), 200)
    [found] = listed(tenant)
    assert found.pop("firstSeenAt") == found.pop("lastSeenAt")
    assert found == {**ANN, "subject": f"{tenant.name}-worker", "holds": 1, "tasks": [task["id"]]}
    assert (claimed["workerId"], claimed["workerName"]) == (f"{tenant.name}-worker", "ann@box:7")


def test_every_event_of_a_delivery_names_the_worker_and_the_subject(tenant: Tenant) -> None:
    task = tenant.create()
    answered(tenant.worker.post(paths.CLAIM, {"commands": ["work"], "worker": ANN}), 200)
    answered(tenant.worker.post(at(paths.RESULT, task["id"]), {"status": "COMPLETED"}), 200)
    events = answered(tenant.producer.get(at(paths.HISTORY, task["id"])), 200)["events"]
    assert [(each["move"], each["workerId"], each.get("workerName")) for each in events] == [
        ("enqueue", None, None),
        ("claim", f"{tenant.name}-worker", "ann@box:7"),
        ("complete", f"{tenant.name}-worker", "ann@box:7"),
    ]


def test_the_worker_of_an_older_client_is_called_as_it_says_if_that_is_a_name(tenant: Tenant) -> None:
    for number, said in enumerate(["host-1", "two words", "", "n" * 500, "x\n"]):
        tenant.create(f"c{number}")
        claimed = tenant.claim(f"c{number}", workerId=said)
        assert claimed.get("workerName") == ("host-1" if said == "host-1" else None)


def test_that_nobody_works_on_a_command_is_told_to_everybody(tenant: Tenant) -> None:
    for command in ("work", "mail", "other"):
        tenant.create(command)
    answered(tenant.worker.post(paths.CLAIM, {"commands": ["work"], "worker": ANN}), 200)
    for caller in (tenant.producer, tenant.worker, tenant.admin):
        queues = answered(caller.get(paths.QUEUES), 200)["queues"]
        assert {queue["command"]: queue["workers"] for queue in queues} == {"mail": 1, "other": 0, "work": 1}


def test_a_worker_that_stops_leaves_the_list_and_no_other_can_remove_it(tenant: Tenant) -> None:
    tenant.worker.post(paths.CLAIM, {"commands": ["work"], "worker": ANN})
    place = at(paths.WORKER, "ann%40box%3A7")
    for _ in range(2):
        assert tenant.worker_named("another").delete(place).status_code == 204
    assert [each["name"] for each in listed(tenant)] == ["ann@box:7"]
    refused(tenant.producer.delete(place), 401, "unauthenticated")
    assert tenant.worker.delete(place).status_code == 204
    assert listed(tenant) == []


def test_the_list_is_for_admins_of_the_tenant(tenant: Tenant) -> None:
    tenant.worker.post(paths.CLAIM, {"worker": ANN})
    refused(tenant.producer.get(paths.WORKERS), 403, "forbidden")
    refused(tenant.worker.get(paths.WORKERS), 403, "forbidden")
    assert listed(Tenant(tenant.server, f"{tenant.name}-b")) == []


def test_a_worker_does_not_work_on_commands_that_its_token_does_not_name(tenant: Tenant) -> None:
    tenant.worker_named("limited", commands=["work"]).post(paths.CLAIM, {"worker": ANN})
    assert [each["commands"] for each in listed(tenant)] == [["work"]]


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"name": ""}, {"name": "a b"}, {"name": "a\n"}, {"name": "a/b"}, {"name": "n" * 101}, {"name": 7},
        {"name": "a", "pid": -1}, {"name": "a", "pid": 1 << 63}, {"name": "a", "slots": 1e9},
        {"name": "a", "host": "\0"},
        {"name": "a", "version": "v" * 101}, {"name": "a", "commands": ["../x"]}, {"name": "a", "more": 1},
        {"name": "a", "commands": [f"c{number}" for number in range(65)]}, "ann", [],
    ],
)  # fmt: skip
def test_a_worker_that_tells_what_cannot_be_shown_is_refused(tenant: Tenant, bad: Any) -> None:
    refused(tenant.worker.post(paths.CLAIM, {"worker": bad}), 400, "invalid")
    assert listed(tenant) == []
