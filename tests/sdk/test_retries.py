"""A lost connection, a lost answer and a busy server are not the caller's problem."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.sdk.clients import Connect, token_for
from tests.sdk.proxy import Exchange, Fault, Proxy, answer, cut_answer, hang, lose_answer, lose_request, pass_on
from tests.server.server_process import Server, eventually, start_server

from codeq import Client, NewTask, Status, Task, WaitTimeout, new_tasks
from codeq.errors import (
    InvalidRequest,
    RateLimited,
    Unauthenticated,
    Unavailable,
    Unexpected,
    Unreachable,
)
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.jobs import ReleaseResult

ACCIDENTS: dict[str, Fault] = {
    "the request was lost": lose_request,
    "the answer was lost": lose_answer,
    "the answer was cut in its head": cut_answer(30),
    "the answer was cut in its body": cut_answer(320),
}


def late_answer(exchange: Exchange) -> None:
    """The server has executed it, and the client has given up before the answer arrives."""
    exchange.pass_on()
    hang(exchange)


@pytest.fixture
def token(server: Server) -> str:
    return token_for(server)


@pytest.fixture
def client(proxy: Proxy, connect: Connect, token: str) -> BlockingVerbs:
    return connect(proxy.url, token)


@pytest.fixture
def direct(server: Server, token: str, connect: Connect) -> BlockingVerbs:
    """The same tenant, past the proxy: what is really there."""
    return connect(server.base, token)


def ids_of(queue: BlockingVerbs) -> list[str]:
    return sorted(task.id for task in queue.list(limit=1000).tasks)


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_enqueue_whose_answer_was_lost_exists_once(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs, accident: str
) -> None:
    proxy.script(ACCIDENTS[accident], ACCIDENTS[accident], pass_on, ACCIDENTS[accident])
    tasks = [client.enqueue("work", {"same": True}) for _ in range(3)]
    assert ids_of(direct) == sorted(task.id for task in tasks)
    assert len(set(ids_of(direct))) == 3
    assert len(proxy.requests) == 6


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_many_enqueues_whose_answer_was_lost_exist_once(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs, accident: str
) -> None:
    proxy.script(ACCIDENTS[accident], ACCIDENTS[accident])
    answers = client.enqueue_many(new_tasks("work", [1] * 50))
    tasks = [task for task in answers if isinstance(task, Task)]
    assert ids_of(direct) == sorted(task.id for task in tasks)
    assert len(set(ids_of(direct))) == 50


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_result_whose_answer_was_lost_is_accepted_once(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs, accident: str
) -> None:
    direct.enqueue_many(new_tasks("work", range(3)))
    jobs = direct.claim("work", limit=3)
    proxy.script(ACCIDENTS[accident], pass_on, ACCIDENTS[accident])
    client.complete(jobs[0], "first")
    assert client.complete_many(jobs[1:], ["second", "third"]) == [None, None]
    assert [direct.wait(job.id) for job in jobs] == ["first", "second", "third"]
    for job in jobs:
        assert [event.move for event in direct.history(job.id)] == ["enqueue", "claim", "complete"]


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_nack_whose_answer_was_lost_is_counted_once_and_answered(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs, accident: str
) -> None:
    direct.enqueue("work", 1)
    [job] = direct.claim("work")
    proxy.script(ACCIDENTS[accident], ACCIDENTS[accident])
    assert client.nack(job, "busy", delay=60) == ReleaseResult(False, 60.0)
    task = direct.get(job.id).task
    assert (task.attempts, task.last_error, task.status) == (1, "busy", Status.PENDING)
    assert [event.move for event in direct.history(job.id)] == ["enqueue", "claim", "nack"]


def test_a_job_whose_return_was_not_answered_is_returned_once(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs
) -> None:
    direct.enqueue("work", 1)
    [job] = direct.claim("work")
    proxy.script(lose_answer, lose_answer)
    assert client.abandon(job) == ReleaseResult(False, 0.0)
    assert [event.move for event in direct.history(job.id)] == ["enqueue", "claim", "abandon"]


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_claim_whose_answer_was_lost_gets_the_same_jobs_under_the_same_leases(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs, accident: str
) -> None:
    tasks = [direct.enqueue("work", n) for n in range(3)]
    proxy.script(ACCIDENTS[accident], ACCIDENTS[accident])
    jobs = client.claim("work", limit=2, lease=3600)  # without a wait: the leases are not waited for
    assert [(job.id, job.payload, job.attempt) for job in jobs] == [(tasks[0].id, 0, 1), (tasks[1].id, 1, 1)]
    assert direct.queues()["work"].in_progress == 2
    assert client.complete_many(jobs) == [None, None]
    for job in jobs:
        assert [event.move for event in direct.history(job.id)] == ["enqueue", "claim", "complete"]


def test_a_claim_that_waited_and_whose_answer_never_came_gets_the_same_job(
    proxy: Proxy, connect: Connect, token: str, direct: BlockingVerbs
) -> None:
    task = direct.enqueue("work", 1)
    proxy.script(late_answer)
    [job] = connect(proxy.url, token, timeout=0.2).claim("work", lease=3600, wait=0.5)
    assert (job.id, job.attempt, job.holder.token) == (task.id, 1, 1)
    assert direct.get(job.id).task.deliveries == 1


def test_every_claim_has_a_request_id_of_its_own(proxy: Proxy, client: BlockingVerbs) -> None:
    proxy.script(pass_on, lose_answer)
    client.claim("work")
    client.claim("work")
    bodies = [request.raw.partition(b"\r\n\r\n")[2] for request in proxy.requests]
    first, second, again = [msgspec.msgpack.decode(body)["requestId"] for body in bodies]
    assert first != second == again


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_what_only_looks_is_asked_again(
    proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs, accident: str
) -> None:
    task = direct.enqueue("work", 1)
    proxy.script(ACCIDENTS[accident])
    assert client.get(task.id).task == task
    proxy.script(ACCIDENTS[accident])
    assert [found.id for found in client.list().tasks] == [task.id]


def test_a_request_that_was_cut_on_its_way_is_sent_again(proxy: Proxy, client: BlockingVerbs) -> None:
    proxy.cut_requests.extend([1, 40, 400])
    assert client.enqueue("work", "x" * 5000).status is Status.PENDING
    assert client.queues()["work"].pending == 1


def test_a_connection_that_the_server_has_closed_is_not_noticed(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token, retry_for=0)
    for n in range(4):
        client.enqueue("work", n)
        proxy.close_connections()
        eventually(lambda: proxy.connections() == 0)
    assert client.queues()["work"].pending == 4


def test_a_connection_that_ends_while_it_is_asked_is_tried_once_more_without_a_retry(
    proxy: Proxy, connect: Connect, token: str
) -> None:
    client = connect(proxy.url, token, retry_for=0)
    client.queues()
    proxy.script(lose_request)
    assert client.enqueue("work", 1).status is Status.PENDING
    proxy.script(lose_answer)
    client.enqueue("work", 1)
    assert client.queues()["work"].pending == 2
    proxy.script(lose_request, lose_request)
    with pytest.raises(Unreachable, match="closed"):
        client.enqueue("work", 1)


def test_connections_are_used_again(proxy: Proxy, client: BlockingVerbs) -> None:
    for n in range(20):
        client.enqueue("work", n)
    assert len(client.claim("work", limit=20)) == 20
    assert proxy.accepted == 1


def test_an_error_leaves_the_connection_as_good_as_before(proxy: Proxy, client: BlockingVerbs) -> None:
    for _ in range(5):
        with pytest.raises(InvalidRequest):
            client.set_policy("no spaces!", None)
    assert proxy.accepted == 1


def test_a_server_that_says_close_is_obeyed(proxy: Proxy, connect: Connect) -> None:
    client = connect(proxy.url, retry_for=0)
    said = answer(200, b'{"queues":[]}', kind="application/json", more="connection: close\r\n")
    proxy.script(said, said, said)
    for _ in range(3):
        assert client.queues() == {}
    assert proxy.accepted == 3


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(proxy: Proxy, connect: Connect) -> None:
    ours = b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"queues":[]}'
    strays = b"HTTP/1.1 408 Too Slow\r\ncontent-length: 0\r\n\r\n"
    client = connect(proxy.url, retry_for=0)
    proxy.script(lambda _: ours + strays, answer(200, b'{"queues":[]}', kind="application/json"))
    assert client.queues() == {}
    assert client.queues() == {}
    assert proxy.accepted == 2


def test_what_arrives_on_an_idle_connection_is_no_answer(proxy: Proxy, token: str) -> None:
    with Client(proxy.url, token, retry_for=0) as client:
        assert client.queues() == {}
        proxy.say(b"HTTP/1.1 408 Too Slow\r\ncontent-length: 0\r\n\r\n")
        assert client.queues() == {}
        assert proxy.accepted == 2


def test_callers_wait_as_long_as_a_busy_server_says(proxy: Proxy, client: BlockingVerbs) -> None:
    proxy.script(answer(429, retry_after="1"), answer(503, retry_after="1"), answer(504))
    client.enqueue("work", 1)
    gaps = [later.arrived_s - earlier.arrived_s for earlier, later in pairwise(proxy.requests)]
    assert len(gaps) == 3
    assert gaps[0] >= 1
    assert gaps[1] >= 1


def test_a_wait_longer_than_the_caller_has_is_not_begun(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token, retry_for=20)
    limited = json.dumps({"error": "slow down", "code": "rate-limited"}).encode()
    proxy.script(answer(429, limited, kind="application/json", retry_after="3600"))
    with pytest.raises(RateLimited, match="slow down"):
        client.enqueue("work", 1)
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("retry_after", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "soon", "0"])
def test_a_word_that_is_no_number_of_seconds_is_no_reason_to_give_up(
    proxy: Proxy, client: BlockingVerbs, retry_after: str
) -> None:
    proxy.script(answer(503, retry_after=retry_after))
    assert client.queues() == {}


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_a_server_that_cannot_now_is_asked_again(proxy: Proxy, client: BlockingVerbs, status: int) -> None:
    proxy.script(answer(status), answer(status))
    client.enqueue("work", 1)
    assert len(proxy.requests) == 3


@pytest.mark.parametrize("status", [400, 404, 409, 413, 500, 501, 507])
def test_a_server_that_has_decided_is_not_asked_again(proxy: Proxy, client: BlockingVerbs, status: int) -> None:
    proxy.script(answer(status))
    with pytest.raises(Unexpected, match=str(status)):
        client.enqueue("work", 1)
    assert len(proxy.requests) == 1


def test_in_the_end_the_last_reason_is_raised(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token, retry_for=0.3)
    stopping = json.dumps({"error": "the server is stopping", "code": "unavailable"}).encode()
    proxy.script(*[answer(503, stopping, kind="application/json")] * 50)
    with pytest.raises(Unavailable, match="stopping"):
        client.enqueue("work", 1)
    assert 1 < len(proxy.requests) < 50


def test_nothing_is_retried_when_that_is_not_wanted(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token, retry_for=0)
    proxy.script(answer(503))
    with pytest.raises(Unexpected):
        client.enqueue("work", 1)
    assert len(proxy.requests) == 1
    proxy.down()
    with pytest.raises(Unreachable, match=str(proxy.port)):
        client.enqueue("work", 1)


def test_a_server_that_comes_back_is_found(proxy: Proxy, client: BlockingVerbs) -> None:
    client.enqueue("work", 0)
    proxy.down()
    with ThreadPoolExecutor(1) as pool:
        away = pool.submit(client.enqueue, "work", 1)
        assert not away.done()
        proxy.up()
        assert away.result(30).status is Status.PENDING
    assert client.queues()["work"].pending == 2


def test_a_request_that_vanishes_is_given_up_and_sent_again(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token, timeout=0.3)
    proxy.script(hang)
    assert client.enqueue("work", 1).status is Status.PENDING
    assert client.queues()["work"].pending == 1
    proxy.script(hang)
    hasty = connect(proxy.url, token, timeout=0.2, retry_for=0)
    with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
        hasty.queues()


def test_a_long_poll_may_take_longer_than_the_timeout(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token, timeout=0.4, retry_for=0)
    assert client.claim("work", wait=0.8) == []
    task = client.enqueue("work", 1)
    assert client.get(task.id, wait=1).task.status is Status.PENDING


def test_a_short_wait_is_a_wait_and_not_a_loop(proxy: Proxy, client: BlockingVerbs) -> None:
    task = client.enqueue("work", 1)
    end = client.events(limit=1).end_offset
    client.events(offset=end, wait=0.1)
    client.get(task.id, wait=0.1)
    waits = [request.line for request in proxy.requests if "waitSeconds=1" in request.line]
    assert len(waits) == 2


def test_a_server_that_lets_nobody_wait_is_not_asked_without_a_pause(tmp_path: Path) -> None:
    with (
        start_server(tmp_path, settings={"http": {"wait_max_seconds": 0}}) as hasty,
        Proxy(hasty.port) as proxy,
        Client(proxy.url, token_for(hasty)) as client,
    ):
        task = client.enqueue("work", 1)
        with pytest.raises(WaitTimeout):
            client.wait(task.id, timeout=0.5)
        assert len(proxy.requests) < 40


def test_a_token_is_asked_for_again_when_the_last_one_is_refused(proxy: Proxy, connect: Connect, token: str) -> None:
    given = iter(["expired", token, token])
    client = connect(proxy.url, lambda: next(given), retry_for=0)
    assert client.enqueue("work", 1).status is Status.PENDING
    assert [request.headers["authorization"] for request in proxy.requests] == ["Bearer expired", f"Bearer {token}"]
    client.queues()
    assert len(proxy.requests) == 3


def test_a_token_that_stays_bad_is_asked_for_once_more_and_no_further(proxy: Proxy, connect: Connect) -> None:
    asked: list[int] = []

    def give() -> str:
        asked.append(1)
        return "bad"

    client = connect(proxy.url, give)
    with pytest.raises(Unauthenticated):
        client.enqueue("work", 1)
    assert (len(asked), len(proxy.requests)) == (2, 2)
    with pytest.raises(Unauthenticated):
        connect(proxy.url, "bad").queues()
    assert len(proxy.requests) == 3


def test_an_idempotency_key_of_ones_own_is_kept(proxy: Proxy, client: BlockingVerbs, direct: BlockingVerbs) -> None:
    proxy.script(lose_answer)
    first = client.enqueue("work", 1, idempotency_key="mine")
    assert direct.enqueue("work", 1, idempotency_key="mine") == first
    assert client.enqueue_many([NewTask(command="work", payload=b"1", idempotency_key="mine")] * 2) == [first, first]
    assert ids_of(direct) == [first.id]
