"""The page for probes: whether the worker really takes tasks."""

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.server_process import Server, eventually
from tests.worker.blackhole_proxy import BlackholeProxy
from tests.worker.handlers import lines, may_go_on
from tests.worker.workers import Tenant, at_work, make_worker

import codeq
from codeq.errors import InvalidRequest


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


def ask(address: str, path: str = "/") -> tuple[int, Any]:
    try:
        answer = httpx.get(f"http://{address}{path}", trust_env=False)
    except httpx.TransportError:
        return 0, None
    return answer.status_code, answer.text if path == "/metrics" else answer.json()


def test_a_worker_that_consumes_is_healthy_and_counts_what_it_did(
    either: codeq.Client, address: str, tmp_path: Path
) -> None:
    queue = either
    worker = make_worker({"echo": {}, "fail": {"max_attempts": 1}, "progress": {}}, health=address)
    with at_work(worker, queue):
        assert queue.wait(queue.enqueue("echo", 1).id, 10) == 1
        dead = queue.enqueue("fail", 1)
        eventually(lambda: queue.get(dead.id).task.is_dead)
        running = queue.enqueue("progress", str(tmp_path / "file"))
        eventually(lambda: ask(address)[1]["progress"] == {running.id: "50% half way ?"})
        status, said = ask(address)
        assert (status, said["status"], said["held"]) == (200, "ok", 1)
        assert (said["completed"], said["retried"], said["failed"]) == (1, 1, 0)
        assert said["commands"] == ["echo", "fail", "progress"]
        status, text = ask(address, "/metrics")
        assert status == 200
        assert "# TYPE codeq_worker_completed_total counter\ncodeq_worker_completed_total 1\n" in text
        assert "codeq_worker_healthy 1\n" in text
        assert "codeq_worker_held 1\n" in text
        assert 'codeq_worker_tasks_total{command="echo",outcome="completed"} 1\n' in text
        assert 'codeq_worker_tasks_total{command="fail",outcome="retried"} 1\n' in text
        assert 'codeq_worker_tasks_total{command="fail",outcome="dead"} 1\n' in text
        assert 'codeq_worker_task_seconds_count{command="echo"} 1\n' in text
        assert 'codeq_worker_task_seconds_bucket{command="echo",le="1800"} 1\n' in text
        assert 'codeq_worker_task_seconds_bucket{command="echo",le="+Inf"} 1\n' in text
        assert 'codeq_worker_task_seconds_count{command="progress"}' not in text  # it has not ended
        may_go_on(tmp_path / "file")
        assert queue.wait(running.id, 10) == "done"
    assert ask(address) == (0, None)


def test_a_worker_without_word_from_its_queue_is_not_healthy_until_it_hears_again(
    server: Server, tenant: Tenant, address: str
) -> None:
    worker = make_worker({"echo": {}}, health=address, silence=1)
    with BlackholeProxy(server.port) as proxy, tenant.at(proxy.url) as client, at_work(worker, client):
        eventually(lambda: ask(address)[0] == 200)
        proxy.cut()
        eventually(lambda: ask(address)[0] == 503)
        assert ask(address)[1]["status"] == "no word from the queue"
        assert "codeq_worker_healthy 0\n" in ask(address, "/metrics")[1]
        proxy.restore()
        eventually(lambda: ask(address)[0] == 200, 30)
        assert tenant.client.wait(tenant.client.enqueue("echo", 1).id, 20) == 1


@pytest.mark.slow
def test_a_worker_that_is_busy_with_all_it_can_hold_is_healthy(
    either: codeq.Client, address: str, tmp_path: Path
) -> None:
    queue = either
    worker = make_worker({"hold_up": {}}, health=address, silence=1, concurrency=1)
    task = queue.enqueue("hold_up", str(tmp_path / "file"))
    with at_work(worker, queue):
        eventually(lambda: lines(tmp_path / "file"))
        eventually(lambda: ask(address)[1]["silent_seconds"] > 1.5)
        assert ask(address)[0] == 200
        may_go_on(tmp_path / "file")
        assert queue.wait(task.id, 10) == "done"


def test_a_worker_that_stops_is_not_healthy(embedded: codeq.Queue, address: str, tmp_path: Path) -> None:
    queue = embedded.for_tenant("stopping")
    task = queue.enqueue("hold_up", str(tmp_path / "file"))
    with at_work(make_worker({"hold_up": {}}, health=address), queue) as working:
        eventually(lambda: lines(tmp_path / "file"))
        working.cancel()
        eventually(lambda: ask(address)[0] == 503)
        assert ask(address)[1]["status"] == "stopping"
        may_go_on(tmp_path / "file")
        assert queue.wait(task.id, 10) == "done"


def test_nonsense_that_is_sent_to_the_page_harms_nobody(embedded: codeq.Queue, address: str) -> None:
    queue = embedded.for_tenant("nonsense")
    with at_work(make_worker({"echo": {}}, health=address), queue):
        eventually(lambda: ask(address)[0] == 200)
        for said in (b"\r\n\r\n", b"GET\r\n\r\n", b"\0" * 100_000, b"GET / HT"):
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5) as link:
                link.sendall(said)
        assert ask(address)[0] == 200


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", "127.0.0.1:99999", "no such host:80", "127.0.0.1:-1"])
def test_an_address_that_cannot_be_served_is_refused_at_the_start(address: str, embedded: codeq.Queue) -> None:
    with pytest.raises(InvalidRequest, match="health"):
        make_worker({"echo": {}}, health=address).run(embedded.for_tenant("address"))


def test_an_address_in_use_is_refused_at_the_start(embedded: codeq.Queue) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = make_worker({"echo": {}}, health=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(InvalidRequest, match="cannot serve health"):
            worker.run(embedded.for_tenant("taken"))
