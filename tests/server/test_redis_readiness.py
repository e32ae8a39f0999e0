"""A server on Redis is not ready while Redis is away, and goes on by itself when it is back."""

from pathlib import Path

from tests.redis_servers import start_node
from tests.server.server_process import eventually, start_server

from codeq.wire import paths


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
