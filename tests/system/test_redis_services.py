"""Servers on Redis behind Sentinel, and over TLS as a user of their own: primaries die, connections are cut."""

import subprocess
from pathlib import Path

import pytest
from tests.priority.reply_losing_proxy import ReplyLosingProxy
from tests.redis_servers import RedisNode, free_port, in_step, server_binary, start_node, start_sentinels, wait_until
from tests.server.server_process import eventually
from tests.system.redis_kills import DURABLE, REPLICATED, Verdict, judge
from tests.system.redis_load import RedisLoad, serve

pytestmark = pytest.mark.slow
FAILOVERS, CUTS = 2, 6
RULES = ["~{codeq:*", "resetchannels", "&codeq:*", "+@all", "-@admin", "-@dangerous", "+info", "+config|get"]
"""What the guide allows the user of codeQ."""


def assert_clean(verdict: Verdict) -> None:
    assert verdict.faults == []
    print(verdict.text)  # noqa: T201


@pytest.mark.cluster
def test_primaries_that_die_behind_sentinel_lose_nothing_that_a_replica_confirmed(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    options = {"repl_diskless_sync_delay": 0}
    with (
        start_node(folder / "0", **options) as first,
        start_node(folder / "1", **options) as second,
        start_node(folder / "2", **options) as third,
    ):
        for replica in (second, third):
            replica.command("REPLICAOF", "127.0.0.1", first.port)
        wait_until(lambda: in_step(first, replicas=2), "two replicas")
        with start_sentinels(folder, first, replicas=2) as sentinels:
            hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
            url = f"redis+sentinel://{hosts}/{sentinels[0].service}/0"
            with serve(tmp_path, url, store=REPLICATED) as server:
                with RedisLoad([server], retry_s=90) as load:
                    for _ in range(FAILOVERS):
                        load.more()
                        primary = next(node for node in (first, second, third) if is_primary(node))
                        primary.kill()
                        load.more(within_s=90)  # on another one, which has a replica that confirms
                        primary.start()
                        wait_until(lambda primary=primary: not is_primary(primary), "the old primary", 60)  # type: ignore[misc]
                assert server.process.poll() is None
                primary = next(node for node in (first, second, third) if is_primary(node))
                assert_clean(judge(load, primary.client()))


def is_primary(node: RedisNode) -> bool:
    return bool(node.command("INFO", "replication")["role"] == "master")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The folder of a certificate for `localhost`, and of its key."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost", *files], check=True, capture_output=True)
    return tmp_path


def test_a_user_over_tls_whose_connections_are_cut_again_and_again_loses_nothing(
    tmp_path: Path, certificate: Path
) -> None:
    if not has_tls():
        pytest.skip(f"{server_binary()} was built without TLS")
    tls_port = free_port()
    files = dict.fromkeys(("tls_cert_file", "tls_ca_cert_file"), certificate / "cert.pem")
    tls = {"tls_port": tls_port, "tls_auth_clients": "no", "tls_key_file": certificate / "key.pem", **files}
    with start_node(tmp_path / "redis", **DURABLE, **tls) as node, ReplyLosingProxy(tls_port) as proxy:
        node.command("ACL", "SETUSER", "tasks", "on", ">secret", *RULES)
        ca = certificate / "cert.pem"
        url = f"rediss://tasks:secret@localhost:{proxy.port}/0?ssl_ca_certs={ca}"
        with serve(tmp_path, url) as server:
            with RedisLoad([server]) as load:
                for number in range(CUTS):
                    load.more(30)
                    if number % 2:
                        lost = proxy.lost
                        proxy.lose_replies = True
                        eventually(lambda lost=lost: proxy.lost > lost)  # type: ignore[misc]
                        proxy.lose_replies = False
                    else:
                        proxy.close_connections()
            assert server.process.poll() is None
        assert_clean(judge(load, node.client()))


def has_tls() -> bool:
    tried = subprocess.run(
        [server_binary(), "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nonexistent"],
        capture_output=True, text=True, check=False, timeout=10,
    )  # fmt: skip
    return "Bad directive" not in tried.stdout + tried.stderr
