"""`codeq doctor` on a real Redis, and on a server whose tasks are there, says what an acknowledged write survives."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.shell import Cli
from tests.redis_servers import RedisNode, start_node, wait_until
from tests.server.server_process import start_server

from codeq.cli import redis_checks
from codeq.cli.machine_checks import CheckResult
from codeq.store.redis.connection import RedisClient, parse_url
from codeq.store.redis.durability import Durability, DurabilityWatch, NodeSettings, inspect, judge
from codeq.store.redis.keys import ShardKeys
from codeq.wire import paths

SAFE = NodeSettings(version="7.2.4", is_appending=True, fsync="always", eviction="noeviction", replicas=0)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisNode]:
    with start_node(tmp_path / "redis", appendonly="yes", appendfsync="always") as node:
        yield node


def checked(url: str) -> dict[str, CheckResult]:
    return {result.name: result for result in redis_checks.redis(url)}


def test_a_safe_redis_has_no_fault(redis: RedisNode) -> None:
    found = checked(redis.url)
    assert {result.state for result in found.values()} == {"ok"}
    assert "survives kill -9 of Redis and power loss" in found["redis persistence"].detail
    assert found.keys() >= {"redis", "redis eviction", "redis replicas", "redis scripts", "redis round trip"}


def test_what_may_lose_tasks_is_a_problem(redis: RedisNode) -> None:
    redis.command("CONFIG", "SET", "appendonly", "no")
    redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    found = checked(redis.url)
    assert found["redis persistence"].state == found["redis eviction"].state == "problem"
    assert "nothing but a restart of codeQ" in found["redis persistence"].detail


def test_a_replica_that_nobody_waits_for_is_a_warning(redis: RedisNode, tmp_path: Path) -> None:
    with start_node(tmp_path / "replica") as replica:
        replica.command("REPLICAOF", "127.0.0.1", redis.port)
        wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up", "the replica")
        assert checked(redis.url)["redis replicas"].state == "warning"


def test_a_user_who_may_run_no_script_is_told(redis: RedisNode) -> None:
    redis.command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-@scripting")
    found = checked(redis.url.replace("redis://", "redis://reader:secret@"))
    assert found["redis scripts"].state == "problem"


@pytest.mark.parametrize("port", [1, None])
def test_no_password_is_ever_shown(redis: RedisNode, port: int | None) -> None:
    [result] = redis_checks.redis(f"redis://someone:hunter2@127.0.0.1:{port or redis.port}/0")
    assert (result.state, "hunter2" in result.detail) == ("problem", False)
    [result] = redis_checks.redis("http://someone:hunter2@127.0.0.1:1/0")
    assert (result.state, "hunter2" in result.detail) == ("problem", False)


def test_it_is_told_why_redis_cannot_be_used(redis: RedisNode) -> None:
    [refused] = redis_checks.redis(f"redis://someone:hunter2@127.0.0.1:{redis.port}/0")
    assert "invalid username-password pair" in refused.detail
    [away] = redis_checks.redis("redis://127.0.0.1:1/0")
    assert "Connect call failed" in away.detail


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        (SAFE, ["ok", "ok", "ok", "ok"]),
        (NodeSettings(version="6.0.1", is_appending=False, fsync="no", eviction="x", replicas=1),
         ["problem", "problem", "problem", "warning"]),
        (NodeSettings(version="7.0.1", is_appending=True, fsync="everysec", eviction="noeviction", replicas=0),
         ["ok", "warning", "ok", "ok"]),
    ],
)  # fmt: skip
def test_each_setting_is_judged(settings: NodeSettings, states: list[str]) -> None:
    assert [result.state for result in redis_checks.settings(settings)] == states


def test_more_replicas_than_are_attached_are_a_warning() -> None:
    assert "every write will be refused" in judge(SAFE, replicas=1).warnings[0]


def test_replicas_that_calls_do_not_wait_for_are_a_warning() -> None:
    [warning] = judge(replace(SAFE, replicas=2), replicas=1).warnings
    assert "a failover to another one loses what that one lacks; store.replicas: 2" in warning
    assert judge(replace(SAFE, replicas=2), replicas=2).warnings == ()


@pytest.mark.parametrize(
    "arguments", [("serve", "--dev", "--store", "redis://127.0.0.1:1/0"), ("doctor", "--redis", "redis://127.0.0.1:1")]
)
def test_a_missing_package_is_named_with_its_extra(arguments: tuple[str, ...], tmp_path: Path) -> None:
    program = "import sys; sys.modules['redis'] = None; from codeq.cli.main import app; app()"
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "pip install 'codeq-queue[redis]'" in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


def test_a_server_on_redis_says_what_a_write_survives(redis: RedisNode, tmp_path: Path) -> None:
    redis.command("CONFIG", "SET", "appendfsync", "no")
    with start_server(tmp_path / "server", settings={"store": {"url": redis.url}}) as server:
        ready = server.request("GET", paths.READYZ, token=None).json()
        assert (ready["status"], ready["store"], ready["durability"]) == ("ready", "redis", "process")
        assert ready["survives"].startswith("kill -9 of Redis")
        assert "appendfsync is no" in ready["warnings"][0]
        assert "an acknowledged write survives kill -9 of Redis" in server.log_text()
        done = json.loads(Cli(server, "dev", tmp_path / "home")("doctor", "--data", str(tmp_path), "--json").out)
    told = [(check["state"], check["detail"]) for check in done["checks"] if check["name"] == "server durability"]
    assert [state for state, _ in told] == ["ok", "warning"]
    assert "kill -9 of Redis" in told[0][1]


def test_a_change_of_the_settings_is_told_while_the_server_runs(redis: RedisNode) -> None:
    told: list[Durability] = []

    async def change_and_look() -> None:
        client, keys = RedisClient(parse_url(redis.url)), ShardKeys("codeq", 0)
        known = await inspect(client, keys, replicas=0)
        watch = DurabilityWatch(client, keys, replicas=0, known=known, on_change=told.append, every_s=0)
        await watch.look()
        assert told == []
        redis.command("CONFIG", "SET", "appendfsync", "everysec")
        await watch.look()
        await watch.look()
        await client.close()

    asyncio.run(change_and_look())
    assert [found.level for found in told] == ["process"]
