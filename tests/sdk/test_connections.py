"""Where a client connects, and who may share what: addresses, certificates, threads, processes, cancelled calls."""

import asyncio
import contextlib
import datetime
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.sdk.clients import Connect, token_for
from tests.sdk.proxy import Proxy, hang, lose_answer, pass_on
from tests.server.server_process import Server, eventually

from codeq import AsyncClient, Client, Status, Task
from codeq.errors import InvalidRequest, StoreClosed, Unreachable


@pytest.fixture
def token(server: Server) -> str:
    return token_for(server)


def test_a_server_below_a_path_is_reached(server: Server, connect: Connect, token: str) -> None:
    with Proxy(server.port, prefix="/queues/codeq") as proxy:
        for url in (proxy.url, proxy.url + "/"):
            client = connect(url, token, retry_for=0)
            assert client.get(client.enqueue("work", 1).id).task.status is Status.PENDING
            assert client.list(command="work", limit=1).tasks


def test_a_path_that_is_not_plain_is_written_as_it_must_be(server: Server, connect: Connect, token: str) -> None:
    with Proxy(server.port, prefix="/caf%C3%A9") as proxy:
        client = connect(proxy.url.replace("%C3%A9", "é"), token, retry_for=0)
        assert client.queues() == {}


def test_an_address_of_the_new_kind_is_reached(server: Server, connect: Connect, token: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            proxy = stack.enter_context(Proxy(server.port, host="::1"))
        except OSError:
            pytest.skip("this machine has no IPv6")
        client = connect(proxy.url, token, retry_for=0)
        assert client.enqueue("work", 1).status is Status.PENDING
        assert {request.headers["host"] for request in proxy.requests} == {f"[::1]:{proxy.port}"}


BAD_URLS = [
    "ftp://127.0.0.1",
    "127.0.0.1:8080",
    "http://",
    "http://:80",
    "http://host:port",
    "http://host:0",
    "http://host:70000",
    "http://[::1",
    "http://host?x=1",
    "http://host#x",
    "http://user:secret@host",
    "http://ho st",
    "http://host/a b",
    "http://host\r\nx-evil: 1",
    "http://host/\r\nx-evil: 1",
    " http://host",
    "http://" + "a" * 70 + ".org",
    "http://a..b",
    "http://127.0.0.1:8080/v1/codeq",  # every call adds this
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_what_is_no_address_is_refused_at_once(connect: Connect, url: str) -> None:
    with pytest.raises(InvalidRequest):
        connect(url)


@pytest.mark.parametrize("token", ["a\nb", "a\r\nx-evil: 1", "tök", "a\tb", b"bytes", 5, lambda: "a\nb", lambda: None])
def test_what_is_no_token_is_refused_at_once(connect: Connect, token: object) -> None:
    with pytest.raises(InvalidRequest, match="token"):
        connect("http://127.0.0.1:1", token)


def test_a_token_that_turns_bad_later_is_refused_too(proxy: Proxy, connect: Connect) -> None:
    tokens = iter(["good", "x\r\nevil: 1"])
    client = connect(proxy.url, lambda: next(tokens))
    with pytest.raises(InvalidRequest, match="token"):
        client.queues()


def test_a_client_without_a_token_says_what_it_needs(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CODEQ_TOKEN", raising=False)
    with pytest.raises(InvalidRequest, match="CODEQ_TOKEN"):
        connect("http://192.0.2.1:1", None)


def test_a_server_on_this_machine_is_offered_the_token_for_development_and_no_other_is(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CODEQ_TOKEN", raising=False)
    monkeypatch.delenv("CODEQ_URL", raising=False)
    for url in ("", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        assert Client(url, None).options["token"] == AsyncClient(url, None).options["token"] == "dev-token"
    for url in ("http://127.0.0.1.example.org", "http://localhost.example.org", "http://0.0.0.0:1"):
        with pytest.raises(InvalidRequest, match="needs a token"):
            connect(url, None)


def test_url_and_token_come_from_the_environment(
    server: Server, connect: Connect, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEQ_URL", server.base)
    monkeypatch.setenv("CODEQ_TOKEN", token)
    assert connect("", None, retry_for=0).queues() == {}
    monkeypatch.setenv("CODEQ_URL", "")
    assert Client().url == "http://127.0.0.1:8080"


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"retry_for": -1}, {"timeout": "long"}])
def test_times_that_make_no_sense_are_refused(connect: Connect, options: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        connect("http://127.0.0.1:1", **options)


def test_a_name_that_nobody_has_is_unreachable(connect: Connect) -> None:
    with pytest.raises(Unreachable, match="no-such-host"):
        connect("http://no-such-host.invalid", retry_for=0).queues()


def test_a_closed_client_says_so_and_holds_no_connection(proxy: Proxy, connect: Connect, token: str) -> None:
    client = connect(proxy.url, token)
    client.queues()
    client.close()
    client.close()
    eventually(lambda: proxy.connections() == 0)
    with pytest.raises(StoreClosed):
        client.queues()


def test_a_call_that_ends_after_the_client_was_closed_leaves_no_connection(proxy: Proxy, token: str) -> None:
    client = Client(proxy.url, token)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.claim, "work", wait=1)
        eventually(lambda: proxy.requests)
        client.close()
        assert waiting.result(30) == []
    eventually(lambda: proxy.connections() == 0)


class Authority:
    """Signs certificates, and writes itself and them to files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "An authority of the tests")])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = made.add_extension(usage, True)
        self.ca_file = str(folder / "ca.pem")
        signed = made.sign(self._key, hashes.SHA256())
        Path(self.ca_file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def context(self, names: list[x509.GeneralName]) -> ssl.SSLContext:
        """What a server with a certificate for these names speaks."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")]), key)
        signed = builder.add_extension(x509.SubjectAlternativeName(names), False).sign(self._key, hashes.SHA256())
        file = self._folder / "server.pem"
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(plain + signed.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )


LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def test_a_server_with_a_certificate_is_reached(server: Server, connect: Connect, token: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with Proxy(server.port, tls=authority.context([LOOPBACK])) as proxy:
        client = connect(proxy.url, token, ca_file=authority.ca_file, retry_for=0)
        for n in range(5):
            client.enqueue("work", n)
        assert [job.payload for job in client.claim("work", limit=5)] == [0, 1, 2, 3, 4]
        assert proxy.accepted == 1
        proxy.close_connections()
        eventually(lambda: proxy.connections() == 0)
        client.enqueue("work", "x" * 300_000)
        proxy.script(lose_answer)
        client.enqueue("work", 6)
        assert client.queues()["work"].pending == 2


def test_a_certificate_that_is_not_to_be_trusted_is_not_asked_twice(
    server: Server, connect: Connect, token: str, tmp_path: Path
) -> None:
    ours, another = Authority(tmp_path / "ours"), Authority(tmp_path / "another")
    wrong_name = ours.context([x509.DNSName("example.org")])
    cases = [(another.context([LOOPBACK]), ours.ca_file), (wrong_name, ours.ca_file), (ours.context([LOOPBACK]), None)]
    for tls, ca_file in cases:
        with Proxy(server.port, tls=tls) as proxy:
            client = connect(proxy.url, token, ca_file=ca_file, retry_for=60)
            with pytest.raises(Unreachable, match=r"(?i)certificate"):
                client.enqueue("work", 1)
            assert (proxy.accepted, proxy.requests) == (1, [])


def test_a_file_that_holds_no_certificates_is_refused_at_once(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    for ca_file in (tmp_path / "none", tmp_path / "text"):
        with pytest.raises(InvalidRequest, match="certificates"):
            connect("https://127.0.0.1:1", ca_file=str(ca_file))


def test_a_plain_server_behind_an_https_address_is_unreachable(server: Server, connect: Connect, token: str) -> None:
    with pytest.raises(Unreachable, match="may begin with http://"):
        connect(server.base.replace("http:", "https:"), token, retry_for=0, timeout=5).queues()


def test_threads_share_a_client(proxy: Proxy, token: str) -> None:
    with Client(proxy.url, token) as client, ThreadPoolExecutor(16) as pool:
        proxy.script(*[lose_answer if n % 10 == 0 else pass_on for n in range(100)])
        gate = threading.Barrier(16)

        def produce(thread: int) -> list[Task]:
            gate.wait(10)
            return [client.enqueue("work", [thread, n]) for n in range(20)]

        tasks = [task for made in pool.map(produce, range(16)) for task in made]
        assert len({task.id for task in tasks}) == 320
        found = [client.get(task.id).payload for task in tasks[::20]]
        assert found == [[thread, 0] for thread in range(16)]
        assert client.queues()["work"].pending == 320
        assert proxy.accepted <= 16 + 2 * 10


def test_a_forked_child_shares_neither_connections_nor_keys(proxy: Proxy, token: str) -> None:
    client = Client(proxy.url, token)
    client.enqueue("work", "same")
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            theirs.sendall(b"".join(client.enqueue("work", "same").id.encode() for _ in range(3)))
        finally:
            os._exit(0)
    theirs.close()
    made = [client.enqueue("work", "same").id for _ in range(3)]
    said = b""
    with ours:
        while piece := ours.recv(1000):
            said += piece
    os.waitpid(child, 0)
    assert len(said) == 3 * 36
    assert len({*made, said[:36], said[36:72], said[72:]}) == 6
    assert client.queues()["work"].pending == 7
    assert proxy.accepted == 2
    client.close()


def has_more_than(proxy: Proxy, seen: int) -> bool:
    return len(proxy.requests) > seen


def test_a_cancelled_call_leaves_no_half_used_connection(proxy: Proxy, token: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, token, retry_for=0) as client:
            task = await client.enqueue("work", "mine")
            proxy.script(hang)
            for _ in range(3):
                seen = len(proxy.requests)
                call = asyncio.create_task(client.claim("none", wait=20))
                await asyncio.to_thread(eventually, partial(has_more_than, proxy, seen))
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert (await client.get(task.id)).payload == "mine"

    asyncio.run(main())


def test_many_calls_at_once_each_hear_their_own_answer(proxy: Proxy, token: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, token) as client:
            tasks = await asyncio.gather(*[client.enqueue("work", n) for n in range(100)])
            found = await asyncio.gather(*[client.get(task.id) for task in tasks])
            assert [kept.payload for kept in found] == list(range(100))
            before = proxy.accepted
            await asyncio.gather(*[client.get(task.id) for task in tasks[:50]])
            assert proxy.accepted <= before + 1

    asyncio.run(main())


def test_a_client_outlives_the_event_loop_it_was_used_on(proxy: Proxy, token: str) -> None:
    program = f"""
import asyncio, codeq
client = codeq.AsyncClient({proxy.url!r}, {token!r}, retry_for=0)
assert asyncio.run(client.queues()) == {{}}
assert asyncio.run(client.queues()) == {{}}
asyncio.run(client.close())
"""  # in a process of its own, because asyncio complains of the connection that the first loop left open
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_client_says_the_same_when_it_is_awaited(proxy: Proxy, token: str) -> None:
    client = Client(proxy.url, token, timeout=3)

    async def main() -> None:
        async with client.as_async() as same:
            assert (await same.get(client.enqueue("work", 1).id)).payload == 1

    asyncio.run(main())
    client.close()
