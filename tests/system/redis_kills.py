"""Kills servers, Redis and the way between its nodes under load, as often as told, and audits what is left.

    python -m tests.system.redis_kills servers --seconds 120      # two servers, 16 workers; one is killed every 3 s
    python -m tests.system.redis_kills redis --kills 20           # AOF always; Redis is killed and started again
    python -m tests.system.redis_kills failover --rounds 10       # `replicated`: partition, then the replica takes over

Every acknowledged task must have ended exactly once, by the event log in Redis, and all that is stored must agree.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.priority.reply_losing_proxy import ReplyLosingProxy
from tests.redis_servers import RedisNode, start_node, start_pair, wait_until
from tests.server.server_process import refused
from tests.system.redis_audit import completed, faults_of
from tests.system.redis_load import RedisLoad, serve

from codeq.wire import paths

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
REPLICATED = {"durability": "replicated", "replicas": 1, "replicas_timeout_seconds": 0.5}
WORKERS_PER_SERVER = 8


class Verdict(NamedTuple):
    faults: list[str]
    text: str


def judge(load: RedisLoad, client: Any, *, shards: int = 1) -> Verdict:
    """Returns whether every acknowledged task has ended once, and all that is stored is consistent."""
    ends = completed(client, shards)
    lost = set(load.acknowledged) - set(ends)
    faults = [f"acknowledged and not ended: {task_id}" for task_id in sorted(lost)]
    faults += [f"ended {times} times: {task_id}" for task_id, times in ends.items() if times != 1]
    faults += faults_of(client, shards)
    return Verdict(
        faults,
        f"{len(load.acknowledged)} acknowledged, {len(lost)} of them lost, {len(ends)} ended, "
        f"{sum(times > 1 for times in ends.values())} of them twice, {len(load.faults)} calls without an answer",
    )


def kill_servers(folder: Path, *, seconds: float, every_s: float = 3.0, workers: int = WORKERS_PER_SERVER) -> Verdict:
    """Kills one of two servers in turn and starts it again, for so long."""
    kills = 0
    with start_node(folder / "redis", **DURABLE) as node, ExitStack() as running:
        servers = [serve(folder, node.url, name=name) for name in "ab"]
        for place in range(2):
            running.callback(lambda place=place: servers[place].kill())  # type: ignore[misc]
        until_s = time.monotonic() + seconds
        with RedisLoad(servers, workers=workers) as load:
            while time.monotonic() < until_s:
                load.more()
                threading.Event().wait(every_s)
                place = kills % 2
                servers[place].kill()
                kills += 1
                servers[place] = serve(folder, node.url, name="ab"[place], port=servers[place].port)
        verdict = judge(load, node.client())
        stopped = [server.stop() for server in servers]
    faults = verdict.faults + [f"a server stopped with {code}" for code in stopped if code]
    return Verdict(faults, f"a server killed {kills} times: {verdict.text}")


def kill_redis(folder: Path, *, kills: int, workers: int = WORKERS_PER_SERVER) -> Verdict:
    """Kills Redis, which syncs every write, and starts it again; both servers must go on by themselves."""
    with start_node(folder / "redis", **DURABLE) as node, ExitStack() as running:
        servers = [running.enter_context(serve(folder, node.url, name=name)) for name in "ab"]
        probe = servers[0].tenant("probe")
        with RedisLoad(servers, workers=workers) as load:
            for _ in range(kills):
                load.more()
                node.kill()
                refused(probe.producer.post(paths.TASKS, {"command": "other", "payload": 1}), 503, "store-unavailable")
                node.start()
        verdict = judge(load, node.client())
        faults = verdict.faults + ["a server has ended" for server in servers if server.process.poll() is not None]
        faults += [f"a server stopped with {code}" for code in [server.stop() for server in servers] if code]
    return Verdict(faults, f"Redis killed {kills} times: {verdict.text}")


def fail_over(folder: Path, *, rounds: int, workers: int = WORKERS_PER_SERVER) -> Verdict:
    """Cuts the primary off from its replica while servers still write to it, then from the servers, and promotes the
    replica. The old primary follows it, so that the next round goes the other way."""
    with (
        start_pair(folder / "redis") as pair,
        ReplyLosingProxy(pair[0].port) as address,
        ReplyLosingProxy(pair[0].port) as to_first,
        ReplyLosingProxy(pair[1].port) as to_second,
        ExitStack() as running,
    ):
        primary, replica = pair
        ways = {primary.port: to_first, replica.port: to_second}
        _follow(replica, primary, ways)
        url = f"redis://127.0.0.1:{address.port}/0"
        servers = [running.enter_context(serve(folder, url, name=name, store=REPLICATED)) for name in "ab"]
        with RedisLoad(servers, workers=workers) as load:
            for _ in range(rounds):
                load.more()
                _partition(primary, ways[primary.port], address)
                replica.command("REPLICAOF", "NO", "ONE")
                address.server_port = replica.port
                address.close_connections()
                address.mend()
                ways[primary.port].close_connections()
                ways[primary.port].mend()
                primary, replica = replica, primary
                _follow(replica, primary, ways)
                load.more(within_s=60)
        verdict = judge(load, primary.client())
        faults = verdict.faults + ["a server has ended" for server in servers if server.process.poll() is not None]
    return Verdict(faults, f"{rounds} partitions and failovers: {verdict.text}")


def _partition(primary: RedisNode, way: ReplyLosingProxy, address: ReplyLosingProxy) -> None:
    """Returns once the primary has writes that its replica will never have, and answers nobody."""
    way.cut()
    before = _offset(primary)
    wait_until(lambda: _offset(primary) > before + 1000, "writes that no replica has")
    address.cut()


def _offset(node: RedisNode) -> int:
    return int(node.command("INFO", "replication")["master_repl_offset"])


def _follow(replica: RedisNode, primary: RedisNode, ways: dict[int, ReplyLosingProxy]) -> None:
    replica.command("REPLICAOF", "127.0.0.1", ways[primary.port].port)
    wait_until(lambda: _is_online(primary), "the replica")


def _is_online(primary: RedisNode) -> bool:
    found = primary.command("INFO", "replication")
    return any(isinstance(value, dict) and value["state"] == "online" for value in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("servers").add_argument("--seconds", type=float, default=120)
    kinds.add_parser("redis").add_argument("--kills", type=int, default=20)
    kinds.add_parser("failover").add_argument("--rounds", type=int, default=10)
    given = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves every `with`, so that no process is left running
    scenarios: dict[str, Callable[..., Verdict]] = {"servers": kill_servers, "redis": kill_redis, "failover": fail_over}
    scenario = scenarios[given.pop("kind")]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="codeq-redis-kills-") as folder:
        verdict = scenario(Path(folder), **given)
    print(f"{verdict.text}; {time.monotonic() - began_s:.0f} s", flush=True)  # noqa: T201
    if verdict.faults:
        sys.exit("\n".join(verdict.faults))


if __name__ == "__main__":
    main()
