"""Every program in examples/ is run as its docstring says, against a real server."""

import asyncio
import csv
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.server_process import Server, start_server

import codeq
from codeq.wire.local_server import DEV_TOKEN

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("examples")) as running:
        yield running


@pytest.fixture
def queue(server: Server) -> Iterator[codeq.Client]:
    with codeq.Client(server.base, DEV_TOKEN) as client:
        yield client


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "CODEQ_URL": server.base, "CODEQ_TOKEN": DEV_TOKEN}


def run(server: Server, *arguments: str, within_s: float = 60) -> str:
    program, *rest = arguments
    done = subprocess.run(
        [sys.executable, EXAMPLES / program, *rest],
        env=environment(server), capture_output=True, text=True, timeout=within_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(server: Server, program: str) -> Iterator[None]:
    """A worker that runs meanwhile, and stops in peace when it is told to."""
    process = subprocess.Popen([sys.executable, EXAMPLES / program], env=environment(server), stderr=subprocess.PIPE)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said.decode()
    finally:
        process.kill()
        process.communicate()


def load(program: str) -> Any:
    spec = importlib.util.spec_from_file_location(program.removesuffix(".py"), EXAMPLES / program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Site(BaseHTTPRequestHandler):
    """A web site that is busy the first time, and has one page."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status = 404 if self.path == "/gone" else 503 if self.asked.count("/busy") == 1 else 200
        self.send_response(status)
        self.send_header("retry-after", "0")
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - its name there


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def test_the_index_names_every_example() -> None:
    named = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(named) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_says_how_to_run_it(program: Path) -> None:
    opening = program.read_text().partition('"""')[2].partition('"""')[0]
    assert "CODEQ_TOKEN=dev-token" in opening
    assert program.stem in opening


def test_cpu_worker_counts_in_a_process_and_fails_what_cannot_be_done(server: Server, queue: codeq.Client) -> None:
    task = queue.enqueue("count_primes", {"below": 100_000})
    hopeless = queue.enqueue("count_primes", {"below": 0})
    with running(server, "cpu_worker.py"):
        assert queue.wait(task.id, 40) == {"below": 100_000, "primes": 9592}
        with pytest.raises(codeq.TaskFailed, match="no primes below 0"):
            queue.wait(hopeless.id, 20)


def test_async_worker_fetches_retries_and_gives_up(server: Server, queue: codeq.Client, site: str) -> None:
    busy = queue.enqueue("fetch", {"url": f"{site}/busy"})
    gone = queue.enqueue("fetch", {"url": f"{site}/gone"})
    with running(server, "async_worker.py"):
        assert queue.wait(busy.id, 40)["bytes"] == 5
        with pytest.raises(codeq.TaskFailed, match="404"):
            queue.wait(gone.id, 20)
    assert [event.move for event in queue.history(busy.id)].count("nack") == 1


def test_two_periodic_producers_enqueue_once_per_period(server: Server, queue: codeq.Client) -> None:
    command = [sys.executable, str(EXAMPLES / "periodic_producer.py"), "send_digest", "--every", "0.5", "--times", "4"]
    copies = [subprocess.Popen(command, env=environment(server), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [copy.communicate(timeout=60)[0].split()[1::2] for copy in copies]
    assert [copy.returncode for copy in copies] == [0, 0]
    assert [len(ids) for ids in said] == [4, 4]
    made = queue.list(command="send_digest").tasks
    assert {task.id for task in made} == {*said[0], *said[1]}
    periods = [queue.get(task.id).payload["period"] for task in made]
    assert len(set(periods)) == len(periods)


def test_csv_import_may_be_repeated_and_goes_on_where_it_was(
    server: Server, queue: codeq.Client, tmp_path: Path
) -> None:
    file = tmp_path / "customers.csv"
    rows = [{"name": f"customer {n}", "city": "Zürich, CH"} for n in range(1200)]

    def write(count: int) -> None:
        with file.open("w", newline="", encoding="utf-8") as out:
            table = csv.DictWriter(out, ["name", "city"])
            table.writeheader()
            table.writerows(rows[:count])

    write(700)
    assert "700 rows" in run(server, "csv_import.py", str(file), "import_customer")
    write(1200)
    assert "1200 rows" in run(server, "csv_import.py", str(file), "import_customer")
    assert queue.queues()["import_customer"].pending == 1200
    [job] = queue.claim("import_customer", limit=1)
    assert job.payload == rows[0]


def test_fastapi_producer_takes_orders_and_waits_for_results(
    server: Server, queue: codeq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEQ_URL", server.base)
    monkeypatch.setenv("CODEQ_TOKEN", DEV_TOKEN)
    app = load("fastapi_producer.py").app

    async def visit() -> None:
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://a") as web:
            again = {"Idempotency-Key": "order-1"}
            first, second = [await web.post("/primes", json={"below": 30}, headers=again) for _ in range(2)]
            assert first.status_code == 202
            assert first.json() == second.json()
            place = f"/primes/{first.json()['id']}"
            assert (await web.get(place)).status_code == 202
            [job] = await asyncio.to_thread(lambda: queue.claim("count_primes", wait=5))
            waiting = asyncio.create_task(web.get(place, params={"wait": 20}))
            await asyncio.to_thread(lambda: queue.complete(job, {"below": 30, "primes": 10}))
            assert (await waiting).json() == {"status": "done", "below": 30, "primes": 10}
            assert (await web.get("/primes/unknown")).status_code == 404
            assert (await web.post("/primes", json={"below": 1})).status_code == 422

    asyncio.run(visit())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.cluster
def test_spark_quickstart_goes_from_a_dataframe_to_the_verdict(server: Server, queue: codeq.Client) -> None:
    said = run(server, "spark_quickstart.py", within_s=300)
    assert "200 tasks enqueued" in said
    assert "200 tasks completed" in said
    assert re.search(r"\| *count_words\| *200\| *200\|", said)
    assert "every promise was kept" in said
    tasks = queue.list(command="count_words", limit=1000).tasks
    assert [task.status for task in tasks] == [codeq.Status.COMPLETED] * 200
