"""Clients that close their half of the connection, and clients that are gone: who gets an answer, who keeps a lease."""

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.server.connections import RawConnection, connect, create, head, look
from tests.server.server_process import Server, Tenant, at, eventually, start_server

from codeq.wire import paths


def claim(tenant: Tenant, *, wait_s: float = 0, count: int = 0, request_id: str | None = None) -> bytes:
    """Returns a claim of one task, or a batch of `count`."""
    wanted = {
        "commands": ["work"],
        "waitSeconds": wait_s,
        "requestId": request_id,
        **({"count": count} if count else {}),
    }
    body = msgspec.json.encode(wanted)
    path = paths.CLAIM_BATCH if count else paths.CLAIM
    return head("POST", path, f"Content-Length: {len(body)}", token=tenant.worker.token) + body


def half_close(client: RawConnection) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def reset(client: RawConnection) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def assert_all_return(tenant: Tenant, tasks: int) -> None:
    """Asserts that all tasks can be claimed, with no attempt counted, long before the leases of others would end."""
    claimed: dict[str, int] = {}

    def claim_rest() -> bool:
        wanted = {"commands": ["work"], "count": tasks - len(claimed), "waitSeconds": 1}
        answer = tenant.worker.post(paths.CLAIM_BATCH, wanted)
        if answer.status_code == 200:
            claimed.update({task["id"]: task["attempts"] for task in answer.json()["tasks"]})
        return len(claimed) == tasks

    eventually(claim_rest, 30)
    assert set(claimed.values()) == {0}


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("leave", [RawConnection.close, reset])
def test_a_claim_without_wait_whose_client_hangs_up_returns_its_tasks(
    server: Server, leave: Callable[[RawConnection], None], count: int
) -> None:
    """(13.5)"""
    tenant = server.tenant()
    for n in range(5):
        tenant.create(payload=n)
    tenant.worker.get(paths.QUEUES)  # the token is known, so that the claim is not held up by checking it
    for _ in range(10):
        with connect(server.port) as client:
            client.send(claim(tenant, count=count))
            leave(client)
    assert_all_return(tenant, 5)


@pytest.mark.parametrize("leave", [RawConnection.close, reset])
def test_a_claim_sent_again_keeps_its_task_whatever_becomes_of_the_first_connection(
    server: Server, leave: Callable[[RawConnection], None]
) -> None:
    """The server may see that the first client has gone before or after it has answered the second."""
    tenant = server.tenant()
    tenant.worker.get(paths.QUEUES)
    for n in range(20):
        made = tenant.create(payload=n)
        with connect(server.port) as client:
            client.send(claim(tenant, request_id=f"r{n}"))
            leave(client)
        held = tenant.claim(requestId=f"r{n}", waitSeconds=5)
        for _ in range(3):
            server.request("GET", paths.HEALTHZ)
        body = {"status": "COMPLETED", "leaseToken": held["leaseToken"]}
        assert tenant.worker.post(at(paths.RESULT, held["id"]), body).status_code == 200
        task = tenant.task(made["id"])
        assert (task["status"], task["attempts"]) == ("COMPLETED", 0)


@pytest.mark.parametrize("count", [0, 3])
def test_a_half_closed_client_gets_the_tasks_that_it_claimed_and_keeps_their_leases(server: Server, count: int) -> None:
    """(13.5)"""
    tenant = server.tenant()
    made = {tenant.create(payload=n)["id"] for n in range(count or 1)}
    with connect(server.port) as client:
        client.send(claim(tenant, count=count))
        half_close(client)
        answer = client.answer()
        assert answer.status == 200
        tasks = answer.json["tasks"] if count else [answer.json]
        assert {task["id"] for task in tasks} == made
        assert client.is_closed()
    assert tenant.counts()["inProgress"] == len(made)


def test_a_half_closed_client_gets_the_answers_to_everything_that_it_sent(server: Server) -> None:
    """(13.5)"""
    tenant = server.tenant()
    requests = [
        (create("X-Request-Id: r0", token=tenant.producer.token), 202),
        (look("X-Request-Id: r1"), 200),
        (create("X-Request-Id: r2", body=b'{"command":"work","payload":1}', token=tenant.producer.token), 202),
        (claim(tenant), 200),
        (look("X-Request-Id: r4", path=paths.QUEUES, token=tenant.producer.token), 200),
    ]
    with connect(server.port) as client:
        client.send(b"".join([data for data, _ in requests]))
        half_close(client)
        assert [client.answer().status for _ in requests] == [status for _, status in requests]
        assert client.is_closed()


def test_a_half_closed_client_with_much_sent_ahead_gets_every_answer(server: Server) -> None:
    with connect(server.port) as client:
        client.send(b"".join([look(f"X-Request-Id: n{n}") for n in range(2000)]))
        half_close(client)
        assert [client.answer().request_id for _ in range(2000)] == [f"n{n}" for n in range(2000)]
        assert client.is_closed()


@pytest.mark.parametrize("route", ["claim", "result", "events"])
def test_a_long_poll_of_a_half_closed_client_is_answered_without_waiting(server: Server, route: str) -> None:
    """(13.5)"""
    tenant = server.tenant()
    held = tenant.held()
    last = server.request("GET", paths.EVENTS, params={"shard": 0, "offset": 1}).json()["nextOffset"]
    request, status = {
        "claim": (claim(tenant, wait_s=25), 204),
        "result": (look(path=f"{paths.TASKS}/{held['id']}/result?waitSeconds=25", token=tenant.producer.token), 404),
        "events": (look(path=f"{paths.EVENTS}?shard=0&offset={last + 100_000}&waitSeconds=25"), 200),
    }[route]
    with connect(server.port, within_s=10) as client:
        client.send(request)
        half_close(client)
        assert client.answer().status == status
        assert client.is_closed()


@pytest.mark.parametrize("sent", [create()[:-3], look()[:-5], look()[:-2] + b"X-Y"])
def test_a_request_that_a_half_close_cuts_off_is_refused(server: Server, sent: bytes) -> None:
    with connect(server.port) as client:
        client.send(look() + sent)
        half_close(client)
        assert client.answer().status == 200
        assert client.answer().status == 400
        assert client.is_closed()


def test_a_long_poll_is_freed_when_its_client_leaves_after_sending_the_next_request(server: Server) -> None:
    """(13.12)"""
    tenant = server.tenant()
    for leave in (RawConnection.close, reset):
        with connect(server.port) as client:
            client.send(claim(tenant, wait_s=25), look())
            for _ in range(3):
                server.request("GET", paths.HEALTHZ)  # when these have answers, the claim is waiting
            leave(client)
        for _ in range(3):
            server.request("GET", paths.HEALTHZ)
    made = tenant.create()
    claimed = tenant.claim()
    assert (claimed["id"], claimed["leaseToken"]) == (made["id"], 1)


def test_a_claim_returns_its_tasks_also_where_no_disk_is_waited_for(tmp_path: Path) -> None:
    """The answer may be on its way before the server sees that the client has gone. (13.5)"""
    with start_server(tmp_path, settings={"store": {"durability": "process"}}) as server:
        tenant = server.tenant()
        tenant.create()
        tenant.worker.get(paths.QUEUES)
        for _ in range(10):
            with connect(server.port) as client:
                client.send(claim(tenant))
                client.close()
        assert_all_return(tenant, 1)
