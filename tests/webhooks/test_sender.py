"""One webhook on its way: it goes to the address that was checked, signed, and no receiver can hold it up."""

import asyncio
import hashlib
import hmac
import ssl
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpcore
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from standardwebhooks.webhooks import Webhook as StandardWebhook
from tests.webhooks.receiver import Received, answering, raw_receiver, read_request, status

from codeq.domain.webhooks import WebhookRules, read_allow_list
from codeq.server.webhooks.lookups import LookUps, Resolve
from codeq.server.webhooks.secrets import Secrets
from codeq.server.webhooks.sender import Answer, Sender, SendFailed, Webhook
from codeq.server.webhooks.settings import WebhookSettings
from codeq.wire.webhooks import secret_of

SECRET, OLD = secret_of(b"s" * 32), secret_of(b"o" * 32)
LOOPBACK = WebhookRules(read_allow_list("127.0.0.1"))
PUBLIC = "93.184.216.34"
"""Never dialled: the network of these tests only notes where it was to go."""


class NotedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to nothing, and notes the addresses."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        self.addresses.append(host)
        raise httpcore.ConnectError("noted")


def webhook(url: str, body: bytes = b"{}", **headers: str) -> Webhook:
    return Webhook(tenant="acme", id="msg_1", url=url, body=body, headers=headers)


def sender(rules: WebhookRules = LOOPBACK, *, resolve: Resolve | None = None, **options: Any) -> Sender:
    lookups = LookUps(resolve) if resolve else LookUps()
    return Sender(rules, options.pop("secrets", Secrets(shared=SECRET)), lookups=lookups, **options)


async def send(url: str, **options: Any) -> Answer:
    async with asyncio.timeout(20):
        return await sender(**options).send(webhook(url))


async def failure(url: str, **options: Any) -> SendFailed:
    with pytest.raises(SendFailed) as failed:
        await send(url, **options)
    return failed.value


def test_check_64_signatures_verify_with_standard_webhooks_and_with_a_plain_hmac() -> None:
    got: list[Received] = []

    async def run() -> None:
        async with raw_receiver(answering(status(204), got)) as url:
            secrets = Secrets(shared=f"{SECRET} {OLD}")
            assert (await sender(secrets=secrets).send(webhook(url, b'{"a":1}', traceparent="00-x"))).is_success

    asyncio.run(run())
    [request] = got
    for secret in (SECRET, OLD):  # while they rotate, both are valid
        assert StandardWebhook(secret).verify(request.body, request.headers) == {"a": 1}
    signed = f"{request.headers['x-codeq-timestamp']}.".encode() + request.body
    assert request.headers["x-codeq-signature"] == hmac.new(b"s" * 32, signed, hashlib.sha256).hexdigest()
    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["traceparent"] == "00-x"
    assert request.headers["content-type"] == "application/json"
    assert request.path == "/hook"


def test_a_text_is_its_own_key_as_in_the_original() -> None:
    got: list[Received] = []

    async def run() -> None:
        async with raw_receiver(answering(status(204), got)) as url:
            await send(url, secrets=Secrets(shared="a-secret-of-the-original-codeQ"))

    asyncio.run(run())
    StandardWebhook(b"a-secret-of-the-original-codeQ").verify(got[0].body, got[0].headers)


def test_check_64_each_tenant_has_a_secret_of_its_own() -> None:
    secrets = Secrets(shared=SECRET, master=SECRET, tenants={"own": OLD})
    assert list(secrets.keys("own")) == [b"o" * 32]
    assert len({secrets.keys("a"), secrets.keys("b"), (b"s" * 32,)}) == 3
    assert Secrets(shared=SECRET).keys("a") == (b"s" * 32,)
    assert not Secrets().keys("a")
    assert SECRET not in repr(secrets)


def test_a_list_of_secrets_is_no_secret() -> None:
    """As a text it would be one, which nobody has."""
    [fault] = WebhookSettings(tenants={"acme": [SECRET, OLD]}).faults()
    assert "separated by a space" in fault
    assert SECRET not in fault
    assert not list(WebhookSettings(tenants={"acme": f"{SECRET} {OLD}"}).faults())


def test_without_a_secret_there_is_no_signature() -> None:
    got: list[Received] = []

    async def run() -> None:
        async with raw_receiver(answering(status(204), got)) as url:
            await send(url, secrets=Secrets())

    asyncio.run(run())
    assert "webhook-id" in got[0].headers
    assert not {"webhook-signature", "x-codeq-signature"} & set(got[0].headers)


def test_check_57_the_address_that_was_checked_is_the_address_connected_to() -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]
    asked: list[str] = []

    def changing(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    async def run() -> None:
        network = NotedNetwork()
        first = await failure("http://rebinding.example/", rules=WebhookRules(), resolve=changing, network=network)
        assert not first.is_refused
        assert (network.addresses, len(asked)) == ([PUBLIC], 1)
        second = await failure("http://rebinding.example/", rules=WebhookRules(), resolve=changing, network=network)
        assert second.is_refused
        assert network.addresses == [PUBLIC]

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1"], ["::ffff:10.0.0.1"], ["fe80::1%eth0"], ["64:ff9b::7f00:1"]],
)
def test_check_57_a_name_with_a_private_address_among_its_addresses_is_not_connected_to(answer: list[str]) -> None:
    async def run() -> None:
        network = NotedNetwork()
        failed = await failure("http://a.example/", rules=WebhookRules(), resolve=lambda *_: answer, network=network)
        assert failed.is_refused
        assert network.addresses == []
        assert not any(address in str(failed) for address in answer)

    asyncio.run(run())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://localhost/", "http://0x7f000001/", "ftp://a.example/"])
def test_check_56_what_is_refused_at_enqueue_is_refused_at_delivery_too(url: str) -> None:
    async def run() -> None:
        network = NotedNetwork()
        assert (await failure(url, rules=WebhookRules(), network=network)).is_refused
        assert network.addresses == []

    asyncio.run(run())


def test_addresses_are_tried_in_turn_and_not_too_many() -> None:
    async def run() -> None:
        network = NotedNetwork()
        many = [f"93.184.216.{number}" for number in range(20)]
        await failure("http://a.example/", rules=WebhookRules(), resolve=lambda *_: many, network=network)
        assert network.addresses == many[:4]

    asyncio.run(run())


def test_the_host_header_names_the_host_and_not_the_address() -> None:
    got: list[Received] = []

    async def run() -> None:
        async with raw_receiver(answering(status(200), got)) as url:
            port = url.rpartition(":")[2].partition("/")[0]
            await send(f"http://hooks.example:{port}/x?y=%20", resolve=lambda *_: ["127.0.0.1"])

    asyncio.run(run())
    assert got[0].headers["host"].startswith("hooks.example:")
    assert got[0].path == "/x?y=%20"


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_check_60_a_redirect_is_not_followed(code: int) -> None:
    got: list[Received] = []

    async def run() -> None:
        async with (
            raw_receiver(answering(status(204), got)) as other,
            raw_receiver(answering(status(code, f"location: {other}"))) as url,
        ):
            answer = await send(url)
            assert (answer.status, answer.is_success) == (code, False)

    asyncio.run(run())
    assert got == []


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("7", 7000), ("0", 0), ("999999999999999999999", 3_600_000), ("Wed, 18 Nov 2026 00:00:10 GMT", 10_000),
        ("Wed, 18 Nov 2020 00:00:00 GMT", 0), ("-5", None), ("soon", None), ("", None), ("1e9", None),
        ("Wed, 99 Nov 99999 00:00:00 GMT", None), ("9" * 10_000, 3_600_000),
    ],
)  # fmt: skip
def test_retry_after_is_read_and_bounded(value: str, ms: int | None) -> None:
    async def run() -> None:
        async with raw_receiver(answering(status(503, f"retry-after: {value}"))) as url:
            assert await send(url, now_s=lambda: 1_794_960_000.0) == Answer(503, ms)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "no valid HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no valid HTTP"),
        (b"HTTP/1.1 999999 x\r\n\r\n", "no valid HTTP"),
        (b"HTTP/1.1 200 x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "no valid HTTP"),
        (b"HTTP/1.1 200 x\r\na: " + b"y" * 200_000, "too long"),
        (b"HTTP/1.1 200 x\r\n" + b"a: b\r\n" * 50_000, "too long"),
        (b"HTTP/1.1 100 x\r\n\r\n" * 50_000, "too long"),
        (b"\x00" * 200_000, "no valid HTTP"),
    ],
)
def test_a_malformed_or_huge_response_is_a_failure(response: bytes, reason: str) -> None:
    async def run() -> None:
        async with raw_receiver(answering(response)) as url:
            failed = await failure(url)
            assert reason in str(failed) or "lost" in str(failed)

    asyncio.run(run())


def test_check_61_an_endless_body_is_not_read_to_its_end() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            sent += 0x4000
            await writer.drain()

    async def run() -> None:
        async with raw_receiver(endless) as url:
            assert (await send(url)).is_success

    asyncio.run(run())
    assert sent < 100 << 20


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    await reader.read()


async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 x\r\n")
    while True:
        writer.write(b"a: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("serve", [silent, dripping])
def test_check_61_a_receiver_that_does_not_answer_is_given_up(serve: Any) -> None:
    async def run() -> None:
        async with raw_receiver(serve) as url:
            assert "within 0.3 s" in str(await failure(url, timeout_s=0.3))

    asyncio.run(run())


def test_a_receiver_that_does_not_read_is_given_up() -> None:
    async def run() -> None:
        async with raw_receiver(deaf) as url:
            with pytest.raises(SendFailed, match=r"within 0.5 s"):
                await sender(timeout_s=0.5).send(webhook(url, b"x" * (64 << 20)))

    asyncio.run(run())


def test_nobody_listening_is_a_failure() -> None:
    async def run() -> None:
        async with raw_receiver(deaf) as url:
            pass
        assert str(await failure(url)) == "no connection"

    asyncio.run(run())


def test_a_name_without_an_address_is_a_failure() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    async def run() -> None:
        assert "no address" in str(await failure("http://a.example/", resolve=unknown))
        assert "no address" in str(await failure("http://a.example/", resolve=lambda *_: []))

    asyncio.run(run())


def test_check_62_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def run() -> None:
        async with raw_receiver(answering(status(200))) as url:
            assert (await send(url)).is_success

    asyncio.run(run())


def test_an_egress_proxy_gets_the_request_and_looks_up_the_host_itself() -> None:
    got: list[Received] = []

    async def run() -> None:
        async with raw_receiver(answering(status(200), got)) as proxy:
            resolve = pytest.fail
            proxied = proxy.removesuffix("/hook").replace("://", "://user:word@")
            answer = await send("http://a.example/x", rules=WebhookRules(), resolve=resolve, proxy=proxied)
            assert answer.is_success
            refused = await failure("http://10.0.0.1/", rules=WebhookRules(), proxy=proxied)
            assert refused.is_refused

    asyncio.run(run())
    [request] = got
    assert request.path == "http://a.example/x"
    assert request.headers["host"] == "a.example"
    assert request.headers["proxy-authorization"].startswith("Basic ")


def test_a_proxy_that_refuses_is_a_failure() -> None:
    async def run() -> None:
        async with raw_receiver(answering(status(403))) as proxy:
            failed = await failure("https://a.example/x", rules=WebhookRules(), proxy=proxy.removesuffix("/hook"))
            assert "proxy" in str(failed)

    asyncio.run(run())


def test_a_cancelled_send_leaves_no_connection() -> None:
    closed = asyncio.Event()
    began = asyncio.Event()

    async def watching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        began.set()
        await reader.read()
        closed.set()

    async def run() -> None:
        async with raw_receiver(watching) as url:
            sending = asyncio.create_task(send(url))
            await began.wait()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            async with asyncio.timeout(5):
                await closed.wait()

    asyncio.run(run())


def test_tls_verifies_the_name_and_not_the_address(tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "hooks.example")
    got: list[Received] = []

    async def run() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        async with raw_receiver(answering(status(200), got), context) as url:
            port = url.rpartition(":")[2].partition("/")[0]
            trusting = {
                "resolve": lambda *_: ["127.0.0.1"],
                "ssl_context": ssl.create_default_context(cafile=authority),
            }
            assert (await send(f"https://hooks.example:{port}/x", **trusting)).is_success
            assert "certificate" in str(await failure(f"https://other.example:{port}/x", **trusting))
            unknown = {**trusting, "ssl_context": None}
            assert "certificate" in str(await failure(f"https://hooks.example:{port}/x", **unknown))

    asyncio.run(run())
    assert len(got) == 1


def make_certificate(folder: Path, name: str) -> Path:
    """Writes a key and a certificate that signs itself. Returns the certificate's path."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(encoding))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return folder / "cert.pem"
