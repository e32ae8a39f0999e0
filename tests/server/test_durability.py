"""Everything that the server acknowledged survives kill -9, whatever it was doing."""

import random
import threading
from pathlib import Path

import httpx
import pytest
import redis
from tests.contract.redis_engines import durable_node_url
from tests.server.server_process import Server, at, launch
from tests.server.stores import ENGINE, on_rocksdb, prefix_of
from tests.system.audit import audit
from tests.system.disks import fill, small_disk
from tests.system.redis_audit import faults_of

from codeq.server.main import EXIT_STORE_FAILED
from codeq.wire import paths

KILLS = 8


class Callers:
    """Producers and workers that record what was acknowledged to them, until the server is killed."""

    def __init__(self, server: Server) -> None:
        self._base = server.base
        self._producer = server.token("acme", "producer")
        self._worker = server.token("acme", "worker")
        self.created: set[str] = set()
        self.completed: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._produce,) * 3 + (self._work,) * 3
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self._base, timeout=10, trust_env=False, headers=headers)

    def _produce(self) -> None:
        with self._client(self._producer) as client:
            try:
                for number in range(100_000):
                    answer = client.post(paths.TASKS, json={"command": "work", "payload": number})
                    if answer.status_code == 202:
                        self.created.add(answer.json()["id"])
                    batch = [
                        {"command": "work", "payload": n, "idempotencyKey": f"{id(client)}-{number}-{n}"}
                        for n in range(5)
                    ]
                    answer = client.post(paths.TASKS_BATCH, json={"tasks": batch})
                    if answer.status_code == 200:
                        self.created |= {item["task"]["id"] for item in answer.json()["results"]}
            except httpx.TransportError:
                return

    def _work(self) -> None:
        with self._client(self._worker) as client:
            try:
                while True:
                    answer = client.post(paths.CLAIM_BATCH, json={"commands": ["work"], "count": 4, "waitSeconds": 1})
                    for task in answer.json()["tasks"] if answer.status_code == 200 else []:
                        token = task["leaseToken"]
                        outcome = {"status": "COMPLETED", "result": {"token": token}, "leaseToken": token}
                        done = client.post(at(paths.RESULT, task["id"]), json=outcome)
                        if done.status_code == 200:
                            self.completed[task["id"]] = token
            except httpx.TransportError:
                return


@pytest.mark.slow
def test_what_was_acknowledged_survives_being_killed_again_and_again(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    created: set[str] = set()
    completed: dict[str, int] = {}
    settings = {"leases": {"grace_seconds": 0.0, "default_seconds": 2.0}, "retention": {"seconds": 86_400}}
    for _ in range(KILLS):
        server = launch(tmp_path, settings=settings)
        try:
            check(server, created, completed, seed)
            callers = Callers(server)
            callers.start()
            threading.Event().wait(0.2 + dice.random())
        finally:
            server.kill()
        callers.join()
        created |= callers.created
        completed |= callers.completed
        assert stored_faults(server.data) == [], f"seed {seed}"
    assert len(created) > 50
    assert len(completed) > 20
    with launch(tmp_path, settings=settings) as server:
        check(server, created, completed, seed)


def stored_faults(data: Path) -> list[str]:
    """Returns what is inconsistent in what a killed server left, read without its store."""
    if ENGINE == "rocksdb":
        return audit(data)
    with redis.Redis.from_url(durable_node_url()) as client:
        return faults_of(client, prefix=prefix_of(data))


def check(server: Server, created: set[str], completed: dict[str, int], seed: int) -> None:
    tenant = server.tenant("acme")
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
        page = tenant.producer.get(paths.TASKS, **query).json()
        found |= {task["id"]: task["status"] for task in page["tasks"]}
        cursor = page.get("cursor")
        if cursor is None:
            break
    assert not created - set(found), f"lost, seed {seed}"
    assert {task_id for task_id in completed if found[task_id] != "COMPLETED"} == set(), f"undone, seed {seed}"
    for task_id, token in list(completed.items())[:20]:
        result = tenant.producer.get(at(paths.RESULT, task_id)).json()["result"]["result"]
        assert result == {"token": token}, f"another's result, seed {seed}"


@on_rocksdb("fills the disk of a data directory; a full Redis has a test in tests/system")
def test_a_failed_write_is_answered_with_503_and_ends_the_server_so_that_it_can_start_again(tmp_path: Path) -> None:
    with small_disk(tmp_path, 96) as disk:
        server = launch(tmp_path, data=disk / "data")
        tenant = server.tenant("acme")
        kept = tenant.create(payload=1)
        filler = fill(disk, 0)
        answer = tenant.producer.post(paths.TASKS, {"command": "work", "payload": "x" * 1_000_000})
        assert answer.status_code in (503, 507)
        if answer.status_code == 507:  # free space was checked in time: nothing has failed, and nothing is lost
            assert server.request("GET", paths.HEALTHZ).status_code == 200
            server.kill()
        else:
            assert answer.json()["code"] == "failed"
            assert str(tmp_path) not in answer.text
            assert server.process.wait(20) == EXIT_STORE_FAILED
            server.kill()  # only its client is left to close
        filler.unlink()
        with launch(tmp_path, data=disk / "data") as again:
            assert again.tenant("acme").task(kept["id"])["status"] == "PENDING"
