"""A server on Redis is not ready while Redis is away, and goes on by itself when it is back. The Redis of `--dev`."""

import re
import socket
import subprocess
from pathlib import Path

from tests.redis_servers import start_node
from tests.server.server_process import command_line, eventually, start_server

import codeq
from codeq.wire import paths
from codeq.wire.local_server import DEV_TOKEN


def test_a_server_outlives_its_redis_and_is_ready_again(tmp_path: Path) -> None:
    redis = start_node(tmp_path / "redis", appendonly="yes", appendfsync="always")
    with redis as node, start_server(tmp_path / "server", settings={"store": {"url": node.url}}) as server:

        def status() -> int:
            return server.request("GET", paths.READYZ, token=None).status_code

        acme = server.tenant("acme")
        made = acme.create("resize")
        node.kill()
        eventually(lambda: status() == 503, 30)
        assert acme.producer.post(paths.TASKS, {"command": "resize", "payload": 1}).status_code == 503
        node.start()
        eventually(lambda: status() == 200, 30)
        assert acme.claim("resize")["id"] == made["id"]


def test_a_backup_of_a_server_on_redis_is_left_to_redis(tmp_path: Path) -> None:
    settings = {"backup": {"path": str(tmp_path / "backups")}}
    with start_node(tmp_path / "redis") as node:
        settings["store"] = {"url": node.url}
        with start_server(tmp_path / "server", settings=settings) as server:
            answer = server.request("POST", paths.BACKUP, {"name": "nightly"})
    assert answer.status_code == 400
    assert "on Redis" in answer.json()["error"]


def test_the_redis_of_a_development_server_ends_with_it_and_has_its_tasks_afterwards(tmp_path: Path) -> None:
    def start() -> tuple["subprocess.Popen[str]", str, int]:
        arguments = ["serve", "--dev", "--store", "redis", "--data", str(tmp_path / "data"), "--port", "0"]
        process = subprocess.Popen(
            command_line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at (http://[^ ]+), tasks in redis://127\.0\.0\.1:(\d+)/0", line)
        assert found, line
        return process, found[1], int(found[2])

    def answers(port: int) -> bool:
        with socket.socket() as link:
            return link.connect_ex(("127.0.0.1", port)) == 0

    process, url, port = start()
    with process:
        with codeq.Client(url, token=DEV_TOKEN) as client:
            made = client.enqueue("resize", 1)
        process.kill()
    eventually(lambda: not answers(port), 20)
    process, url, port = start()
    with process:
        with codeq.Client(url, token=DEV_TOKEN) as client:
            assert [job.id for job in client.claim("resize")] == [made.id]
        process.terminate()
    assert process.returncode == 0
    assert not answers(port)


def test_a_server_starts_no_redis_without_dev(tmp_path: Path) -> None:
    run = subprocess.run(
        command_line("serve", "--store", "redis"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "with --dev only" in run.stderr
