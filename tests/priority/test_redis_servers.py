"""The servers of the tests themselves: the same after a restart, and never left behind."""

import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.redis_servers import bundled_binary, server_binary, start_cluster, start_node, wait_until

ROOT = Path(__file__).parents[2]
STARTER = """
import sys, time
from pathlib import Path
from tests.redis_servers import RedisNode
node = RedisNode(Path(sys.argv[1]))
node.start()
print(node.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("binary", [server_binary(), bundled_binary()])
def test_a_node_keeps_its_port_and_its_files_over_a_kill(tmp_path: Path, binary: str) -> None:
    with start_node(tmp_path, binary=binary, appendonly="yes", appendfsync="always") as node:
        port, pid = node.port, node.pid
        node.command("SET", "a", "1")
        node.kill()
        node.start()
        assert (node.port, node.command("GET", "a")) == (port, b"1")
        assert node.pid != pid
        node.stop()
        assert not psutil.pid_exists(node.pid)


def test_a_node_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert psutil.pid_exists(pid)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not psutil.pid_exists(pid), "the end of redis-server")


def test_a_cluster_of_the_older_server_has_all_slots_and_moves_one(tmp_path: Path) -> None:
    with start_cluster(tmp_path, masters=3, binary=bundled_binary()) as cluster:
        slot = cluster.slot("{a}key")
        home = cluster.owner(slot)
        home.command("SET", "{a}key", "1")
        away = cluster.other(home)
        cluster.move_slot(slot, to=away)
        assert cluster.owner(slot) is away
        assert away.command("GET", "{a}key") == b"1"
