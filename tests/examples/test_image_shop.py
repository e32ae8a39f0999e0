"""The image shop at work: whatever happens to handlers, worker and server, every order ends as it should, once."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples.image_shop.tasks import Bill, Order, Thumbnail, bill, fetch, resize
from tests.server.server_process import Server, eventually, launch, start_server

import codeq
from codeq.wire.local_server import DEV_TOKEN

ROOT = Path(__file__).parents[2]
ONCE = ["enqueue", "claim", "complete"]


@contextmanager
def shop_worker(server: Server, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    env = {**os.environ, "CODEQ_URL": server.base, "CODEQ_TOKEN": DEV_TOKEN, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.image_shop.worker"], cwd=ROOT, env=env, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with start_server(tmp_path / "server") as running:
        yield running


@pytest.fixture
def queue(server: Server) -> Iterator[codeq.Client]:
    with codeq.Client(server.base, DEV_TOKEN) as client:
        yield client


def moves(queue: codeq.Client, task: codeq.Task | str) -> list[str]:
    return [event.move for event in queue.history(task)]


@pytest.mark.slow
def test_handlers_of_every_kind_survive_what_they_do(server: Server, queue: codeq.Client, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    crash, poison = queue.enqueue(resize, "crash.png"), queue.enqueue(resize, image="poison.png", width=5)
    slow, gone = queue.enqueue(fetch, "http://x/slow"), queue.enqueue(fetch, "http://x/gone")
    unknown = queue.enqueue(bill, Order(customer="unknown", images=["a"]))
    stranger = queue.enqueue("bill", {"customer": 5}, max_attempts=1)
    with shop_worker(server, log):
        made = queue.wait(crash, 60)
        assert (type(made), made.image, made.width) == (Thumbnail, "crash.png", 640)
        assert queue.wait(slow, 30) == len("http://x/slow")
        for task, error in ((gone, "FileNotFoundError"), (unknown, "no such customer")):
            with pytest.raises(codeq.TaskFailed, match=error):
                queue.wait(task, 30)
        with pytest.raises(codeq.TaskFailed):
            queue.wait(poison, 30)
        with pytest.raises(codeq.TaskFailed):
            queue.wait(stranger, 30)
        eventually(lambda: log.read_text().count("\ndead: ") == 2, 20)
        # Last and alone: the worker does not read the answer of a claim while the lock is held, and those leases lapse.
        locked = queue.enqueue(bill, Order(customer="locked", images=["a"]))
        assert queue.wait(locked, 30) == Bill(customer="locked", cents=250)
    assert moves(queue, crash).count("nack") == 1
    assert moves(queue, locked) == ONCE
    dead = queue.get(poison).task
    assert (dead.is_dead, dead.attempts) == (True, 3)
    assert 'raise ValueError("this image cannot be read")' in (dead.last_error or "")
    assert "SIGSEGV" in log.read_text()
    assert "PayloadInvalid" in (queue.get(stranger).task.last_error or "")


@pytest.mark.slow
def test_the_web_application_orders_waits_and_cancels(
    server: Server, queue: codeq.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEQ_URL", server.base)
    monkeypatch.setenv("CODEQ_TOKEN", DEV_TOKEN)
    from examples.image_shop.web import app  # noqa: PLC0415 - it reads nothing at import, but FastAPI is slow to load

    async def visit() -> None:
        web: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
        async with app.router.lifespan_context(app), web:
            ordered = await web.post("/orders", json={"customer": "ada", "images": ["cat.png", "slow.png"]})
            assert ordered.status_code == 202
            cat, slow = ordered.json()["thumbnails"]
            found = (await web.get(f"/thumbnails/{cat}", params={"wait": 30})).json()
            assert (found["status"], found["image"]) == ("done", "cat.png")
            await asyncio.to_thread(eventually, lambda: queue.get(slow).task.status == "IN_PROGRESS", 20)
            assert (await web.get(f"/thumbnails/{slow}")).json()["status"] == "waiting"
            assert (await web.delete(f"/thumbnails/{slow}")).json() == {"status": "CANCELLED"}
            assert (await web.delete(f"/thumbnails/{slow}")).status_code == 409
            assert (await web.get(f"/thumbnails/{slow}", params={"wait": 5})).status_code == 410
            assert (await web.get("/thumbnails/unknown")).status_code == 404
            assert (await web.post("/orders", json={"customer": "ada", "images": []})).status_code == 422

    with shop_worker(server, tmp_path / "worker.log"):
        asyncio.run(visit())
        eventually(lambda: "was lost: cancelled" in (tmp_path / "worker.log").read_text(), 10)


@pytest.mark.slow
def test_a_deploy_a_kill_and_a_restart_of_the_server_lose_nothing(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with start_server(tmp_path / "server") as server, codeq.Client(server.base, DEV_TOKEN) as queue:
        tasks = [queue.enqueue(resize, f"{number}.png") for number in range(30)]
        with shop_worker(server, log) as first:
            queue.wait(tasks[0], 60)
            first.send_signal(signal.SIGTERM)  # a deploy: what runs is finished, the rest is handed back
            assert first.wait(30) == 0
        assert {queue.get(task).task.attempts for task in tasks} == {0}
        slow = queue.enqueue(resize, "slow.png")
        with shop_worker(server, log) as second:
            eventually(lambda: queue.get(slow).task.status == "IN_PROGRESS", 30)
            second.kill()
        with shop_worker(server, log):
            queue.wait(tasks[3], 60)
            server.stop()
            with launch(tmp_path / "server", port=server.port) as again, codeq.Client(again.base, DEV_TOKEN) as later:
                for task in tasks:
                    assert later.wait(task, 60).image.endswith(".png")
                assert later.wait(slow, 60).image == "slow.png"
                assert [moves(later, task).count("complete") for task in [*tasks, slow]] == [1] * 31
