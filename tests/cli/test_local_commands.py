"""`codeq doctor`, `bench`, `stats`, `backup` and `restore`: this machine and its directories."""

import contextlib
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import Cli
from tests.server.server_process import eventually, start_server
from tests.server.stores import on_rocksdb

import codeq
from codeq.cli import bench, machine_checks, server_checks
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database, batch
from codeq.wire.local_server import DEV_TOKEN


def states(done: Any) -> dict[str, str]:
    return {check["name"]: check["state"] for check in done.json["checks"]}


def test_doctor_finds_this_machine_and_server_in_order(cli: Cli, tmp_path: Path) -> None:
    done = cli.ok("doctor", "--data", str(tmp_path / "to" / "be" / "made"), "--json")
    seen = states(done)
    for name in ("python", "rocksdb", "disk space", "clock", "server", "ready", "server clock", "token"):
        assert seen[name] == "ok", done.json
    assert {"fsync", "open files", "java"} <= set(seen)
    assert done.json["problems"] == 0
    assert list(tmp_path.iterdir()) == []


def test_doctor_speaks_plainly_and_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--data", str(tmp_path), "--url", "http://127.0.0.1:1")
    assert done.code == 1
    assert "✗ problem  server" in done.out
    assert "→ start it with `codeq serve`" in done.out
    assert "1 problem" in done.out.splitlines()[-1]


def test_doctor_warns_of_a_data_directory_that_others_can_read(cli: Cli, tmp_path: Path) -> None:
    """(13.14)"""
    tmp_path.chmod(0o755)
    assert states(cli.ok("doctor", "--data", str(tmp_path), "--json"))["permissions"] == "warning"
    tmp_path.chmod(0o700)
    assert states(cli.ok("doctor", "--data", str(tmp_path), "--json"))["permissions"] == "ok"


def test_doctor_repairs_a_directory_that_nobody_has_open(cli: Cli, tmp_path: Path) -> None:
    """(13.2)"""
    data = tmp_path / "data"
    with codeq.open(data, sweeping=False) as queue:
        queue.enqueue("work", 1)
        done = cli("doctor", "--data", str(data), "--repair", "--json")
        assert (done.code, states(done)["repair"]) == (1, "problem")
    lose_index(data)
    assert "1 task put back" in cli.ok("doctor", "--data", str(data), "--repair").out
    with codeq.open(data, sweeping=False) as queue:
        assert queue.queues()["work"].in_progress == 1
    assert states(cli.ok("doctor", "--data", str(data), "--json"))["stored records"] == "ok"
    assert cli("doctor", "--data", str(tmp_path / "none"), "--repair").code == 1


def lose_index(data: Path) -> None:
    files = Database(data / "shard-0000" / "rocksdb")
    change = batch()
    for key, _ in files.scan(keys.PENDING, keys.after(keys.PENDING)):
        change.delete(key)
    files.write(change)
    files.close()


def test_doctor_does_not_look_for_a_server_that_nobody_named(cli: Cli, tmp_path: Path) -> None:
    done = cli.ok("doctor", "--data", str(tmp_path), "--json", env={"CODEQ_URL": "", "CODEQ_TOKEN": ""})
    assert "server" not in states(done)


def test_doctor_finds_a_token_that_is_not_accepted(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--data", str(tmp_path), "--token", "wrong", "--json")
    assert (done.code, states(done)["token"], states(done)["server"]) == (1, "problem", "ok")


def test_doctor_notices_clocks_that_differ() -> None:
    assert server_checks._clock("Thu, 01 Jan 2015 00:00:00 GMT").state == "problem"
    assert server_checks._clock("noon").state == "warning"


def test_doctor_notices_few_files_memory_disks_and_slow_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert machine_checks.open_files().state == "problem"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert machine_checks.open_files().state == "warning"
    monkeypatch.setattr(machine_checks, "_filesystem", lambda _: "tmpfs")
    assert machine_checks.disk_sync(tmp_path).state == "warning"
    monkeypatch.setattr(machine_checks, "_filesystem", lambda _: "ext4")
    monkeypatch.setattr(machine_checks, "_sync_times", lambda _: [0.2])
    assert "faster disk" in (machine_checks.disk_sync(tmp_path).advice or "")
    monkeypatch.setattr(machine_checks, "_sync_times", lambda _: [0.000_001])
    assert "too fast" in (machine_checks.disk_sync(tmp_path).advice or "")


def test_doctor_finds_java_or_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("codeq.pipeline.java._from_package", lambda: None)
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    for version, state in (
        ('openjdk version "21.0.1"', "ok"),
        ('java version "1.8.0_292"', "warning"),
        ("?", "warning"),
    ):
        java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        java.chmod(0o755)
        assert machine_checks.java().state == state
        assert (machine_checks.java().advice is None) == (state == "ok")


def test_bench_measures_three_ways_and_leaves_nothing_behind(cli: Cli) -> None:
    done = cli.ok("bench", "--tasks", "60", "--batch", "20", "--payload-bytes", "50", "--json").json
    assert [run["tasks"] for run in done["runs"]] == [60, 60, 120]
    assert all(run["tasksPerSecond"] > 0 and run["p50Ms"] <= run["p99Ms"] for run in done["runs"])
    assert done["forgotten"] is True
    assert cli.ok("queue", "list", "--json").json == {"queues": []}
    assert cli.ok("queue", "policy", done["command"], "--json").json["policy"] is None


def test_bench_without_an_admin_completes_what_it_made(cli: Cli) -> None:
    scopes = ["codeq:create", "codeq:claim", "codeq:result"]
    token = {"CODEQ_TOKEN": cli.server.token(cli.tenant, "worker", scopes=scopes)}
    done = cli.ok("bench", "--tasks", "10", "--batch", "5", "--json", env=token).json
    assert done["forgotten"] is False
    assert {task["status"] for task in cli.ok("task", "list", "--json").json["tasks"]} == {"COMPLETED"}


def test_an_interrupted_bench_leaves_nothing_to_do(cli: Cli) -> None:
    process = cli.start("bench", "--tasks", "100000", "--json")
    eventually(lambda: cli.ok("queue", "list", "--json").json["queues"])
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=30), process.returncode) == (("", ""), 130)
    assert cli.ok("queue", "list", "--json").json == {"queues": []}


def test_a_bench_interrupted_while_it_claims_leaves_nothing_to_do(cli: Cli) -> None:
    with codeq.Client(cli.server.base, cli.env["CODEQ_TOKEN"]) as client:
        with contextlib.suppress(KeyboardInterrupt), bench._cleanup(client, "bench-1"):
            client.enqueue("bench-1", 1)
            assert client.claim("bench-1")
            raise KeyboardInterrupt
        assert client.queues() == {}


def test_bench_spares_other_peoples_servers(cli: Cli) -> None:
    done = cli("bench", "--url", "https://codeq.example.org")
    assert (done.code, "--yes-this-is-my-server" in done.err) == (2, True)


def test_a_directory_is_counted_copied_and_put_back(cli: Cli, tmp_path: Path) -> None:
    data, copy, again = (str(tmp_path / name) for name in ("data", "copy", "again"))
    with codeq.open(data) as queue:
        queue.enqueue("work", 1)
    assert cli.ok("stats", data, "--json").json["queues"][0]["ready"] == 1
    assert cli.ok("backup", data, copy).out == f"copied {data} to {copy}\n"
    assert cli.ok("restore", copy, again, "--json").json == {"from": copy, "to": again}
    assert cli.ok("stats", again).out.splitlines()[1].split()[:3] == ["default", "work", "1"]
    assert "tenant other has no tasks" in cli.ok("stats", again, "--tenant", "other").out


@on_rocksdb("a store on Redis is backed up with Redis's own means")
def test_a_running_server_is_backed_up_by_name(cli: Cli, tmp_path: Path) -> None:
    """(13.27)"""
    with start_server(tmp_path, settings={"backup": {"path": str(tmp_path / "backups")}}) as server:
        server.tenant("acme").create()
        where = ("--url", server.base, "--token", DEV_TOKEN)
        made = cli.ok("backup", *where, "monday", "--json").json
        assert (made["name"], made["tasks"], made["bytes"] > 0) == ("monday", 1, True)
        again = cli("backup", *where, "monday", "--json")
        assert again.error["code"] == "conflict"
        assert cli("backup", *where, "../x").code == 1
        assert cli("backup", *where, str(server.data), str(tmp_path / "x")).code == 2
    assert cli.ok("stats", str(tmp_path / "backups" / "monday"), "--tenant", "acme", "--json").json["queues"]


@on_rocksdb("a server on Redis has no files to lock")
def test_a_directory_that_is_none_or_is_open_is_said_so(cli: Cli, tmp_path: Path) -> None:
    done = cli("stats", str(tmp_path))
    assert (done.code, "is not a codeQ data directory" in done.err) == (3, True)
    assert cli("backup", str(tmp_path), str(tmp_path / "x")).code == 3
    locked = cli("stats", str(cli.server.data), "--json")
    assert (locked.code, locked.error["code"]) == (1, "locked")
