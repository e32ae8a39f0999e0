"""The demo as people run it: it ends well, reports so in every form, and leaves nothing behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.redis_servers import start_node

pytestmark = pytest.mark.slow

LEFT_S_MAX = 15.0


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from codeq.cli.main import app; app()", "demo", *arguments]


def environment(folder: Path) -> dict[str, str]:
    """Contains settings of another server, to check that they are ignored."""
    return {**os.environ, "TMPDIR": str(folder), "COLUMNS": "150", "CODEQ_HTTP_PORT": "1", "CODEQ_URL": "http://x"}


def ours(folder: Path) -> list[str]:
    """Returns the processes that work in this folder or have it on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == str(folder):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def eventually(is_so: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return is_so()


def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        command_line("--seconds", "6", "--plain", "--no-pipeline"),
        env=environment(tmp_path), capture_output=True, text=True, timeout=140, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    for text in (
        "kill -9 worker-2", "kill -9 server", "dead letters replayed", "tasks cancelled",
        "result callbacks arrived, all signed", "fetched report.csv", "ALL IS WELL",
    ):  # fmt: skip
        assert text in run.stdout
    assert list(tmp_path.iterdir()) == []
    assert eventually(lambda: not ours(tmp_path), LEFT_S_MAX), ours(tmp_path)


def test_the_outcome_is_one_json_document_and_what_it_is_about_can_be_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run = subprocess.run(
        command_line("--seconds", "6", "--tasks", "1000", "--json", "--keep", str(kept), "--no-pipeline"),
        env=environment(tmp_path), capture_output=True, text=True, timeout=140, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["ok"]
    figures = report["figures"]
    assert figures["tasks"] == figures["acknowledged"] >= 1000
    assert (figures["workers_killed"], figures["servers_killed"]) == (1, 1)
    assert min(figures[name] for name in ("retries", "replays", "repeats", "dead", "failed", "cancelled")) > 0
    acknowledged = [json.loads(line)["id"] for line in (kept / "acknowledged.jsonl").read_text().splitlines()]
    assert len(set(acknowledged)) == figures["acknowledged"]
    assert (kept / "data" / "codeq.json").exists()


@pytest.mark.cluster
def test_the_demo_ends_well_on_a_redis_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        command_line("--store", "redis", "--seconds", "8", "--tasks", "1000", "--json", "--no-pipeline"),
        env=environment(tmp_path), capture_output=True, text=True, timeout=140, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["ok"]
    assert (report["figures"]["workers_killed"], report["figures"]["servers_killed"]) == (1, 1)
    assert list(tmp_path.iterdir()) == []
    assert eventually(lambda: not ours(tmp_path), LEFT_S_MAX), ours(tmp_path)


def test_a_demo_on_an_existing_redis_deletes_its_keys_and_no_others(tmp_path: Path) -> None:
    with start_node(tmp_path / "redis", appendonly="yes") as node:
        node.command("SET", "{codeq:0}:n", 7)
        run = subprocess.run(
            command_line("--store", node.url, "--seconds", "6", "--tasks", "900", "--plain", "--no-pipeline"),
            env=environment(tmp_path), capture_output=True, text=True, timeout=140, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        assert node.command("KEYS", "*") == [b"{codeq:0}:n"]


@pytest.mark.spark
@pytest.mark.cluster
def test_the_demo_ends_with_an_audited_lake_and_its_report(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run = subprocess.run(
        command_line("--seconds", "6", "--tasks", "500", "--json", "--report", str(page)),
        env=environment(tmp_path), capture_output=True, text=True, timeout=145, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["lake"]["events"] == report["figures"]["events"]
    assert set(report["lake"]["audit"].values()) <= {"ok", "not checked"}
    assert "</html>" in page.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_stopped_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        command_line("--seconds", "60", "--plain"), env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    with demo, demo.stdout:
        for line in demo.stdout:
            if "kill -9" in line or (" completed " in line and " completed 0 " not in line):
                break
        assert len(ours(tmp_path)) > 10  # itself, a server, five workers with a heartbeat process each
        demo.send_signal(number)
        demo.stdout.read()
        code = demo.wait(30)
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    assert eventually(lambda: not ours(tmp_path), LEFT_S_MAX), ours(tmp_path)
    if number is not signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_a_directory_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    run = subprocess.run(
        command_line("--keep", str(tmp_path)), env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "already exists" in run.stderr
