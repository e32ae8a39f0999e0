"""Backups of a running server, made by admins of the platform (13.27)."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.server_process import Caller, Server, answered, eventually, refused, start_server
from tests.server.stores import on_rocksdb
from tests.system.audit import audit

import codeq
from codeq.wire import paths


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Returns a server with three shards, and the directory of its backups, which does not exist yet."""
    folder = tmp_path_factory.mktemp("backed-up")
    backups = folder / "backups"
    with start_server(folder, settings={"backup": {"path": str(backups)}, "store": {"shards": 3}}) as server:
        yield server, backups


def platform(server: Server) -> Caller:
    return Caller(server, server.token("ops", "admin", scopes=["codeq:admin", "codeq:platform"]))


def back_up(server: Server, name: Any) -> httpx.Response:
    return platform(server).post(paths.BACKUP, {"name": name})


@on_rocksdb("a store on Redis is backed up with Redis's own means")
def test_a_backup_of_a_working_server_has_all_that_was_acknowledged(
    backed_up: tuple[Server, Path], tmp_path: Path
) -> None:
    server, backups = backed_up
    acme = server.tenant()
    created = {acme.create(payload=number)["id"] for number in range(50)}
    held = acme.held("held")
    stop = threading.Event()

    def produce() -> None:
        other = server.tenant()
        while not stop.is_set():
            other.create(payload="x" * 1000)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        made = answered(back_up(server, "monday"), 200)
    finally:
        stop.set()
        producer.join()
    assert made["name"] == "monday"
    assert made["tasks"] >= 51
    assert made["bytes"] == sum(file.stat().st_size for file in (backups / "monday").rglob("*") if file.is_file())
    codeq.restore(backups / "monday", tmp_path / "restored")
    assert audit(tmp_path / "restored") == []
    with codeq.open(tmp_path / "restored", tenant=acme.name, sweeping=False) as queue:
        found = {task.id: task.status for task in queue.list(limit=1000).tasks}
    assert created | {held["id"]} == set(found)
    assert found[held["id"]] is codeq.Status.IN_PROGRESS


@on_rocksdb("a store on Redis is backed up with Redis's own means")
def test_only_the_owner_can_read_a_backup(backed_up: tuple[Server, Path]) -> None:
    server, backups = backed_up
    answered(back_up(server, "private"), 200)
    modes = {path: path.stat().st_mode & 0o777 for path in [backups, *backups.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/tmp/x", ".hidden", "a\\b", "a\0b", "a\n", "ä", "x" * 65, 7, None, ["a"]]
)
def test_a_backup_has_a_plain_name(backed_up: tuple[Server, Path], name: Any) -> None:
    server, backups = backed_up
    refused(back_up(server, name), 400, "invalid")
    assert not [path for path in backups.parent.iterdir() if path.name == "x"]


@on_rocksdb("a store on Redis is backed up with Redis's own means")
def test_a_backup_is_not_overwritten(backed_up: tuple[Server, Path]) -> None:
    server, backups = backed_up
    answered(back_up(server, "once"), 200)
    refused(back_up(server, "once"), 409, "conflict")
    (backups / "stray").write_text("not a backup")
    refused(back_up(server, "stray"), 409, "conflict")


def test_only_admins_of_the_platform_back_up(backed_up: tuple[Server, Path]) -> None:
    server, backups = backed_up
    acme = server.tenant()
    for caller in (acme.admin, acme.producer, acme.worker):
        assert caller.post(paths.BACKUP, {"name": "theirs"}).status_code in (401, 403)
    refused(server.request("POST", paths.BACKUP, {"name": "theirs"}, token=None), 401, "unauthenticated")
    assert not (backups / "theirs").exists()


def test_a_server_without_a_directory_for_backups_makes_none(server: Server) -> None:
    assert "backup.path" in refused(back_up(server, "monday"), 404, "not-found")["error"]


def test_backups_that_cannot_be_written_say_so_and_harm_nothing(tmp_path: Path) -> None:
    (tmp_path / "backups").write_text("a file where a directory should be")
    with start_server(tmp_path, settings={"backup": {"path": str(tmp_path / "backups")}}) as server:
        problem = refused(back_up(server, "monday"), 503, "unavailable")
        assert str(tmp_path) not in problem["error"]
        assert str(tmp_path) in server.log_text()
        assert server.tenant().create()["status"] == "PENDING"


@on_rocksdb("a store on Redis is backed up with Redis's own means")
def test_one_backup_is_made_at_a_time_and_goes_on_when_its_caller_leaves(tmp_path: Path) -> None:
    """The copy is held before its end, until the test writes into a pipe."""
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    (tmp_path / "sitecustomize.py").write_text(
        "from codeq.store import data_dir\n"
        "publish = data_dir._publish\n"
        "def held(*args):\n"
        f"    open({str(hold)!r}).read()\n"
        "    publish(*args)\n"
        "data_dir._publish = held\n"
    )
    path = f"{tmp_path}:{Path(codeq.__file__).parents[1]}"
    backups = tmp_path / "backups"
    settings = {"backup": {"path": str(backups)}}
    with start_server(tmp_path / "server", settings=settings, env={"PYTHONPATH": path}) as server:
        with pytest.raises(httpx.ReadTimeout):
            platform(server).post(paths.BACKUP, {"name": "slow"}, timeout=1)
        refused(back_up(server, "second"), 409, "conflict")
        assert server.tenant().create()["status"] == "PENDING", "other calls go on"
        hold.write_text("go")
        eventually((backups / "slow" / "codeq.json").exists)
        eventually(lambda: [path.name for path in backups.iterdir()] == ["slow"])
