"""A worker waits for the end of its leases: it hears of a cancellation at once, and of nothing of others."""

import threading
from typing import Any

import pytest
from tests.server.server_process import Server

from codeq.domain.limits import WATCHED_LEASES_MAX
from codeq.wire import paths


def leases(*jobs: Any, wait: float = 0) -> dict[str, Any]:
    return {"leases": [{"taskId": job["id"], "leaseToken": job["leaseToken"]} for job in jobs], "waitSeconds": wait}


def test_a_watch_returns_when_a_task_is_cancelled_and_says_so(server: Server) -> None:
    tenant = server.tenant()
    made = [tenant.create("work", number) for number in range(2)]
    jobs = [tenant.claim("work") for _ in made]
    assert tenant.worker.post(paths.LEASES_WATCH, leases(*jobs)).json() == {"ended": []}
    said: list[Any] = []
    watching = threading.Thread(
        target=lambda: said.append(tenant.worker.post(paths.LEASES_WATCH, leases(*jobs, wait=30)).json())
    )
    watching.start()
    tenant.producer.post(paths.CANCEL.replace("{id}", jobs[1]["id"]), {})
    watching.join(25)
    assert said == [{"ended": [{"taskId": jobs[1]["id"], "code": "cancelled"}]}]


def test_the_leases_of_others_are_lost_like_those_that_never_were(server: Server) -> None:
    mine, theirs = server.tenant(), server.tenant()
    theirs.create("work", 1)
    job = theirs.claim("work")
    unknown = {**job, "id": job["id"][:-5] + "00000"}
    said = mine.worker.post(paths.LEASES_WATCH, leases(job, unknown, wait=30)).json()
    assert [end["code"] for end in said["ended"]] == ["not-found", "not-found"]


@pytest.mark.parametrize("count", [0, WATCHED_LEASES_MAX + 1])
def test_a_call_watches_a_bounded_number_of_leases(server: Server, count: int) -> None:
    body = {"leases": [{"taskId": "x", "leaseToken": 1}] * count}
    assert server.tenant().worker.post(paths.LEASES_WATCH, body).status_code == 400
