"""The security checklist, one test per number: tokens (1 to 20) and tenants (21 to 35).

Not here: 30, which is in the tests of notifications.
"""

import asyncio
import hmac
import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.server.issuer import (
    PRODUCERS,
    WORKERS,
    Issuer,
    by_hand,
    claims,
    encoded,
    key_pair,
    settings_for,
    sign,
    worker_claims,
)
from tests.server.server_process import Caller, Server, Tenant, answered, at, eventually, refused, start_server

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.jwks import make_jwks
from codeq.server.auth.keyset import COOL_DOWN_S, STALE_S, KeySet, fetch_from
from codeq.server.auth.principal import TokenKind
from codeq.server.routes import ROUTES
from codeq.wire import paths
from codeq.wire.errors import Unavailable

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"
DONE = {"status": "COMPLETED", "result": {}}
SKEW_S = 5
RSA_HEADER = {"alg": "RS256", "typ": "JWT", "kid": "rsa"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer().context() as running:
        weak = jwt.algorithms.RSAAlgorithm.to_jwk(weak_key().public_key(), as_dict=True)
        running.extra = [{**weak, "kid": "weak", "use": "sig"}]
        yield running


@pytest.fixture(scope="module")
def guarded(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that trusts the issuer, with one audience for producers and another for workers."""
    with start_server(tmp_path_factory.mktemp("guarded"), dev=False, settings=issuer.settings()) as running:
        yield running


_weak: list[Any] = []


def weak_key() -> Any:
    if not _weak:
        _weak.append(rsa.generate_private_key(65_537, 1024))
    return _weak[0]


def rs256(text: bytes, key: Any = None) -> bytes:
    return bytes((key or key_pair("rsa")).sign(text, padding.PKCS1v15(), hashes.SHA256()))


def status(server: Server, token: str | None, path: str = paths.QUEUES, **rest: Any) -> int:
    return server.request("GET", path, token=token, **rest).status_code


def raw_status(server: Server, path: str, token: str | None) -> int:
    """Sends the path as it is; httpx would tidy it up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


# Tokens


def test_check_01_no_algorithm(guarded: Server) -> None:
    for algorithm in ("none", "nOnE", "None", "", None):
        assert status(guarded, by_hand({**RSA_HEADER, "alg": algorithm}, claims(), lambda _: b"")) == 401
    assert status(guarded, sign(claims()).rpartition(".")[0] + ".") == 401
    assert status(guarded, sign(claims())) == 200


def test_check_02_public_key_as_secret(guarded: Server) -> None:
    public = key_pair("rsa").public_key()
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        for form in (serialization.PublicFormat.SubjectPublicKeyInfo, serialization.PublicFormat.PKCS1):
            secret = public.public_bytes(encoding, form)
            token = by_hand({**RSA_HEADER, "alg": "HS256"}, claims(), partial(hmac.digest, secret, digest="sha256"))
            assert status(guarded, token) == 401


def test_check_03_other_algorithm(guarded: Server) -> None:
    for algorithm in ("RS384", "RS512", "PS256"):
        token = jwt.encode(claims(), key_pair("rsa"), algorithm=algorithm, headers={"kid": "rsa"})
        assert status(guarded, token) == 401
    assert status(guarded, jwt.encode(claims(), key_pair("ec", "ES256"), "ES256", headers={"kid": "rsa"})) == 401


def test_check_04_no_expiry(guarded: Server) -> None:
    for name in ("exp", "iat", "iss", "aud", "sub"):
        token_claims = {claim: value for claim, value in claims().items() if claim != name}
        assert status(guarded, sign(token_claims)) == 401, name


def test_check_05_expired(guarded: Server) -> None:
    now_s = int(time.time())
    assert status(guarded, sign(claims(exp=now_s - SKEW_S - 1, iat=now_s - 60))) == 401
    assert status(guarded, sign(claims(exp=now_s, iat=now_s - 60))) == 200, "within the leeway"
    for skew in (61, 3600, -1):
        with pytest.raises(InvalidRequest):
            make_jwks({"jwksUrl": "https://x/keys", "issuer": "i", "audience": "a", "clockSkewSeconds": skew})


def test_check_06_not_yet_valid(guarded: Server) -> None:
    later_s = int(time.time()) + 60
    assert status(guarded, sign(claims(nbf=later_s))) == 401
    assert status(guarded, sign(claims(iat=later_s, exp=later_s + 60))) == 401


def test_check_07_audience(guarded: Server) -> None:
    for audience in (None, "", "other", PRODUCERS.upper(), ["other"], [], {PRODUCERS: 1}, 7):
        assert status(guarded, sign(claims(aud=audience))) == 401, audience
    assert status(guarded, sign(claims(aud=["other", PRODUCERS]))) == 200
    answer = guarded.request("POST", paths.CLAIM, {}, token=sign(claims(scope="codeq:claim", eventTypes=["*"])))
    assert answer.status_code == 401, "a producer's token on a worker's route"
    body = {"command": "a", "payload": 1}
    assert guarded.request("POST", paths.TASKS, body, token=sign(worker_claims())).status_code == 401
    assert WORKERS != PRODUCERS


def test_check_08_issuer(guarded: Server) -> None:
    for named in ("https://issuer.test/", "https://other.test", "", ["https://issuer.test"], 7, None):
        token_claims = claims(iss=None) | ({"iss": named} if named is not None else {})
        assert status(guarded, by_hand(RSA_HEADER, token_claims, rs256)) == 401, named


def test_check_09_odd_expiry(guarded: Server) -> None:
    moments: list[Any] = [10**40, 1e308, "123", "9999999999", True, -1, None, [], {}, 2**63, time.time() - 600.5]
    for moment in moments:
        assert status(guarded, by_hand(RSA_HEADER, claims() | {"exp": moment}, rs256)) == 401, moment
    month_s = int(time.time()) + 32 * 86_400
    assert status(guarded, sign(claims(exp=month_s))) == 401, "valid for more than a month"


def test_check_10_weak_key(guarded: Server) -> None:
    token = by_hand({**RSA_HEADER, "kid": "weak"}, claims(), lambda text: rs256(text, weak_key()))
    assert status(guarded, token) == 401


def test_check_11_odd_key_id(guarded: Server, issuer: Issuer) -> None:
    odd: list[Any] = ["../../x-canary", "x" * 4000, "a\0canary", "' OR 1=1 -- canary", "\u202ecanary", "", 7, ["rsa"]]
    for kid in [*odd, {"kid": "rsa"}, None, True]:
        assert status(guarded, by_hand({**RSA_HEADER, "kid": kid}, claims(), rs256)) == 401, kid
    assert status(guarded, by_hand({"alg": "RS256"}, claims(), rs256)) == 401
    assert set(issuer.paths) == {"/keys"}
    assert "canary" not in guarded.log_text()


def test_check_12_keys_in_headers(guarded: Server) -> None:
    own = rsa.generate_private_key(65_537, 2048)
    shown = jwt.algorithms.RSAAlgorithm.to_jwk(own.public_key(), as_dict=True)
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/keys"
        header = {"jku": url, "x5u": url, "jwk": shown, "x5c": ["AAAA"]}
        mine = by_hand({**RSA_HEADER, **header}, claims(), lambda text: rs256(text, own))
        assert status(guarded, mine) == 401
        assert status(guarded, by_hand({**RSA_HEADER, **header}, claims(), rs256)) == 200
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_check_13_critical_headers(guarded: Server) -> None:
    for critical in (["x"], ["exp"], [], "x", None):
        token = by_hand({**RSA_HEADER, "crit": critical, "x": 1}, claims(), rs256)
        assert status(guarded, token) == 401, critical


def test_check_14_random_key_ids(guarded: Server, issuer: Issuer) -> None:
    before = issuer.fetches
    for number in range(100):
        header = {**RSA_HEADER, "kid": f"random-{number}"}
        assert status(guarded, by_hand(header, claims(), lambda _: b"x" * 256)) in (401, 429)
    assert issuer.fetches - before <= 3
    assert status(guarded, sign(claims())) == 200


def test_check_15_issuer_down(issuer: Issuer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/keys"
    with start_server(tmp_path, dev=False, settings=settings_for(url)) as down:
        assert status(down, None, paths.READYZ) == 503
        assert status(down, sign(claims())) == 503
        assert status(down, None, paths.HEALTHZ) == 200
    watch = Watch(issuer)

    async def scenario() -> None:
        assert await watch.keys.find("rsa")
        issuer.answer = (500, {}, b"")
        watch.now_s += STALE_S - 1
        assert await watch.keys.find("rsa")
        watch.now_s += 2
        with pytest.raises(Unavailable):
            await watch.keys.find("rsa")

    watch.run(scenario())


class Watch:
    """The keys of the issuer, fetched over HTTP, with a clock that the test sets."""

    def __init__(self, issuer: Issuer) -> None:
        self.now_s = 1000.0
        self.issuer = issuer
        self.keys = KeySet(fetch_from(issuer.url), clock=lambda: self.now_s)

    def run(self, scenario: Any) -> None:
        known = dict(self.issuer.keys)
        try:
            asyncio.run(asyncio.wait_for(scenario, 60))
        finally:
            self.issuer.answer, self.issuer.keys = None, known


def test_check_16_answers_of_the_issuer(issuer: Issuer) -> None:
    watch = Watch(issuer)
    metadata = {"Location": "http://169.254.169.254/latest"}
    answers: list[tuple[int, dict[str, str], bytes]] = [
        (200, {}, b'{"keys": [' + b" " * 10_000_000 + b"]}"),
        (200, {"Content-Type": "text/html"}, b"<html></html>"),
        (302, metadata, b""),
        (200, {}, b'{"keys": null}'),
        (200, {}, b'{"keys": [' + b",".join([b"{}"] * 10_000) + b"]}"),
    ]

    async def scenario() -> None:
        assert await watch.keys.find("rsa")
        for answer in answers:
            issuer.answer = answer
            watch.now_s += COOL_DOWN_S
            assert await watch.keys.find("unknown") is None
            assert await watch.keys.find("rsa"), answer[2][:40]

    watch.run(scenario())


def test_check_17_key_withdrawn(issuer: Issuer) -> None:
    watch = Watch(issuer)

    async def scenario() -> None:
        assert await watch.keys.find("rsa")
        before = watch.keys.revision
        issuer.keys = {"ed": "EdDSA"}
        watch.now_s += COOL_DOWN_S
        assert await watch.keys.find("unknown") is None
        assert await watch.keys.find("rsa") is None
        assert watch.keys.revision != before, "verdicts by the old key are forgotten"

    watch.run(scenario())


def test_check_18_rotation(issuer: Issuer) -> None:
    watch = Watch(issuer)

    async def scenario() -> None:
        assert await watch.keys.find("rsa")
        issuer.keys["next"] = "RS256"
        watch.now_s += COOL_DOWN_S
        assert await watch.keys.find("next"), "found by the first request"
        assert await watch.keys.find("rsa"), "both serve for a while"

    watch.run(scenario())


def test_check_19_where_a_token_is_read(guarded: Server) -> None:
    token = sign(claims())
    for name in ("access_token", "token", "authorization"):
        assert status(guarded, None, params={name: token}) == 401
        assert status(guarded, None, headers={"Cookie": f"{name}={token}"}) == 401
    for other in (token, sign(claims(tid="other"))):
        assert status(guarded, token, headers=[("Authorization", f"Bearer {other}")]) in (400, 401)
    assert status(guarded, "x" * 65_536) in (401, 413, 431)
    assert status(guarded, f"{encoded(RSA_HEADER)}.{'x' * 12_000}.{'x' * 300}") in (401, 413, 431)


def test_check_20_refusals_say_nothing(guarded: Server) -> None:
    canaries = {"sub": "canary-sub", "iss": "canary-iss", "aud": "canary-aud", "scope": "canary"}
    for name, value in canaries.items():
        answer = guarded.request("GET", paths.ADMIN_QUEUES, token=sign(claims(**{name: value})))
        assert answer.status_code in (401, 403)
        assert "canary" not in answer.text + json.dumps(dict(answer.headers))
    answer = guarded.request("GET", paths.QUEUES, token=by_hand({**RSA_HEADER, "kid": "canary"}, claims(), rs256))
    assert answer.json() == {"error": "the token is not accepted", "code": "unauthenticated"}
    assert "canary" not in guarded.log_text()


# Tenants


def test_check_21_no_tenant(guarded: Server) -> None:
    for value in (7, ["acme"], {"a": 1}, True, 1.5, [], {}):
        for name in ("tid", "organization_id"):
            token = by_hand(RSA_HEADER, claims(tid=None, sub="fallback") | {name: value}, rs256)
            assert status(guarded, token) == 403, (name, value)
    for subject in ("a\0b", "a\nb", "x" * 5000):
        assert status(guarded, sign(claims(tid=None, sub=subject))) in (401, 403)
    assert status(guarded, sign(claims(tid=None, sub="fallback"))) == 200


def test_check_22_tenant_claims_that_differ(guarded: Server) -> None:
    names = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
    for first, second in itertools.permutations(names, 2):
        assert status(guarded, sign(claims(tid=None) | {first: "acme", second: "other"})) == 403
    for order in (names, tuple(reversed(names))):
        token = by_hand(RSA_HEADER, claims(tid=None) | dict.fromkeys(order, "acme"), rs256)
        assert status(guarded, token) == 200


def test_check_23_odd_tenant_names(guarded: Server) -> None:
    """A name is refused, or is that of a tenant of its own."""
    for name in ("a\0b", "a\nb", "acme\n", "\nacme", "x" * 5000, "a\x7fb"):
        assert status(guarded, sign(claims(tid=name))) == 403, name
    made = guarded.request("POST", paths.TASKS, {"command": "c", "payload": 1}, token=sign(claims(tid="plain")))
    mine = {answered(made, 202)["id"]}
    for name in ("../plain", "plain/c", "plain:c", "{plain}", "Plain", "plain ", "pl\u0430in", "%70lain", "plain%00"):
        answer = guarded.request("POST", paths.TASKS, {"command": "c", "payload": 1}, token=sign(claims(tid=name)))
        assert answer.status_code in (202, 403), name
        if answer.status_code == 202:
            assert answer.json()["tenantId"] == name
        listed = answered(guarded.request("GET", paths.TASKS, token=sign(claims(tid="plain"))), 200)["tasks"]
        assert {task["id"] for task in listed} == mine


def test_check_24_tasks_of_others(server: Server, tenant: Tenant) -> None:
    """Every route with an id answers as for an id that nobody has."""
    task, stranger = tenant.held(), server.tenant()
    for route in [route for route in ROUTES if "{id}" in route.path]:
        callers = {TokenKind.WORKER: stranger.worker, TokenKind.ADMIN: stranger.admin}
        caller = callers.get(route.kind, stranger.producer)
        body = DONE if route.path == paths.RESULT else {}
        ask = [
            caller.request(route.method, at(route.path, name), body if route.method == "POST" else None)
            for name in (task["id"], UNKNOWN)
        ]
        assert [answer.status_code for answer in ask] == [404, 404], route.path
        assert ask[0].text.replace(task["id"], UNKNOWN) == ask[1].text
    assert tenant.task(task["id"]) == task


def test_check_25_same_subject_in_two_tenants(server: Server, tenant: Tenant) -> None:
    task = tenant.held()
    namesake = server.tenant().worker_named(task["workerId"])
    for path, body in ((paths.RESULT, DONE), (paths.HEARTBEAT, {}), (paths.NACK, {}), (paths.ABANDON, {})):
        refused(namesake.post(at(path, task["id"]), body | {"leaseToken": task["leaseToken"]}), 404, "not-found")
    answered(tenant.worker.post(at(paths.RESULT, task["id"]), DONE), 200)


def test_check_26_idempotency_key_of_another_tenant(server: Server, tenant: Tenant) -> None:
    mine, other = tenant.create(idempotencyKey="k"), server.tenant().create(idempotencyKey="k")
    assert mine["id"] != other["id"]
    assert tenant.create(idempotencyKey="k")["id"] == mine["id"]


def test_check_27_a_key_with_another_body(tenant: Tenant, tmp_path: Path) -> None:
    """By decision a known key answers its task and reports the mismatch; 422 is for `idempotency.strict`."""
    task = {"command": "work", "payload": 1}
    with ThreadPoolExecutor(50) as pool:
        calls = [pool.submit(tenant.producer.post, paths.TASKS, task | {"idempotencyKey": "k"}) for _ in range(50)]
    answers = [call.result() for call in calls]
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotent-replay" in answer.headers for answer in answers) == 49
    other = tenant.producer.post(paths.TASKS, {"command": "work", "payload": 2, "idempotencyKey": "k"})
    assert (answered(other, 202), other.headers["idempotent-mismatch"]) == (answers[0].json(), "true")
    for key in ("", "k" * 256, "a\x01", "a\n", "a\0"):
        refused(tenant.producer.post(paths.TASKS, task | {"idempotencyKey": key}), 400, "invalid")
    for key in ("", "k" * 256):
        refused(tenant.producer.post(paths.TASKS, task, headers={"Idempotency-Key": key}), 400, "invalid")
    assert tenant.counts()["ready"] == 1
    with start_server(tmp_path, settings={"idempotency": {"strict": True}}) as strict:
        acme = strict.tenant()
        acme.create(idempotencyKey="k")
        refused(
            acme.producer.post(paths.TASKS, task | {"payload": 2, "idempotencyKey": "k"}), 422, "idempotency-mismatch"
        )
        assert acme.counts()["ready"] == 1


def test_check_28_retention_of_a_key(tenant: Tenant) -> None:
    answered(tenant.admin.put(at(paths.TOPIC, "brief"), {"policy": {"retentionSeconds": 0}}), 201)
    kept, brief = tenant.ended("kept", idempotencyKey="k"), tenant.held("brief", idempotencyKey="b")
    again = tenant.producer.post(paths.TASKS, {"command": "kept", "payload": 1, "idempotencyKey": "k"})
    assert (answered(again, 202)["id"], again.headers["idempotent-replay"]) == (kept["id"], "true")
    assert again.json()["status"] == "COMPLETED", "not run again"
    answered(tenant.worker.post(at(paths.RESULT, brief["id"]), DONE), 200)
    eventually(lambda: tenant.producer.get(at(paths.TASK, brief["id"])).status_code == 404)
    assert tenant.create("brief", idempotencyKey="b")["id"] != brief["id"]


def test_check_29_lists_and_counts(server: Server, tenant: Tenant) -> None:
    tenant.dead("secret-command")
    tenant.create("secret-command")
    stranger = server.tenant()
    stranger.create("own")
    for caller, path in (
        (stranger.producer, paths.TASKS),
        (stranger.producer, paths.QUEUES),
        (stranger.worker, paths.QUEUES),
        (stranger.admin, paths.DLQ),
        (stranger.admin, paths.ADMIN_QUEUES),
        (stranger.admin, paths.EVENTS),
        (stranger.admin, at(paths.ADMIN_QUEUE, "own")),
    ):
        shown = caller.get(path)
        assert shown.status_code == 200
        assert tenant.name not in shown.text
        assert "secret-command" not in shown.text


def test_check_31_fields_of_the_server(tenant: Tenant) -> None:
    body = {"command": "work", "payload": 1}
    odd = {"tenantId": "other", "workerId": "w", "status": "COMPLETED", "attempts": 0, "id": UNKNOWN, "epoch": 1,
           "createdAt": "2020-01-01T00:00:00Z"}  # fmt: skip
    for name, value in odd.items():
        refused(tenant.producer.post(paths.TASKS, body | {name: value}), 400, "invalid")
    task = tenant.create()
    assert (task["tenantId"], task["status"]) == (tenant.name, "PENDING")
    assert tenant.claim(workerId="somebody-else")["workerId"] == f"{tenant.name}-worker"


def test_check_32_scopes(guarded: Server) -> None:
    """Each route is closed without a token, to the other kind of token, and to one without its scope."""
    producer, worker = sign(claims()), sign(worker_claims(scope="codeq:other"))
    for route in ROUTES:
        path = at(route.path, UNKNOWN if "{id}" in route.path else "queue")
        body: dict[str, Any] | None = {} if route.method in ("POST", "PUT") else None
        ask = {
            name: guarded.request(route.method, path, body, token=token).status_code
            for name, token in (("nobody", None), ("producer", producer), ("worker", worker))
        }
        expected = {
            TokenKind.NONE: ask,
            TokenKind.PRODUCER: ask | {"nobody": 401, "worker": 401},
            TokenKind.WORKER: {"nobody": 401, "producer": 401, "worker": 403},
            TokenKind.ADMIN: {"nobody": 401, "producer": 403, "worker": 401},
            TokenKind.ANY: ask | {"nobody": 401} | ({"producer": 403, "worker": 403} if route.scope else {}),
        }[route.kind]
        assert ask == expected, f"{route.method} {route.path}"
        assert (route.kind is TokenKind.WORKER) <= (route.scope is not None), "a worker's route needs a scope"


def test_check_33_roles_in_headers(guarded: Server, tenant: Tenant) -> None:
    for name in ("X-Role", "X-Admin", "X-User-Role", "X-Tenant-Id", "X-Forwarded-User", "X-Original-User"):
        headers = {name: "ADMIN"}
        answer = guarded.request("GET", paths.ADMIN_QUEUES, token=sign(claims()), headers=headers)
        refused(answer, 403, "forbidden")
        refused(tenant.producer.request("GET", paths.ADMIN_QUEUES, headers=headers), 403, "forbidden")
        assert status(guarded, None, headers=headers) == 401


def test_check_34_commands_of_a_token(tenant: Tenant) -> None:
    task = tenant.held("Render")
    limited = tenant.worker_named(f"{tenant.name}-worker", commands=["render", "RENDER", "Render."])
    for commands in (["Render"], ["render", "Render"]):
        refused(limited.post(paths.CLAIM, {"commands": commands}), 403, "forbidden")
    for path, body in ((paths.HEARTBEAT, {}), (paths.NACK, {}), (paths.ABANDON, {}), (paths.RESULT, DONE)):
        refused(limited.post(at(path, task["id"]), body), 403, "forbidden")
    assert limited.post(paths.CLAIM, {"commands": ["render"]}).status_code == 204


def test_check_35_ways_to_write_a_path(tenant: Tenant) -> None:
    """No way to write the path of an admin's route opens it to others."""
    path = paths.ADMIN_QUEUES
    ways = [
        f"/{path}", path.replace("/admin", "//admin"), path.replace("/admin", "/./admin"), f"{path}/", f"{path}/.",
        path.replace("/admin", "/x/../admin"), path.replace("admin", "%61dmin"), path.replace("/admin", "/%2e/admin"),
        path.replace("/admin", "%2fadmin"), path.upper(), path.replace("admin", "ADMIN"), f"{path};x", f"{path}%00",
        f"{path}%20", path.replace("/admin", "\\admin"), f"{path}?", f"{path}#x", f"http://other.test{path}",
    ]  # fmt: skip
    caller: Caller = tenant.producer
    assert raw_status(tenant.server, path, tenant.admin.token) == 200
    for way in ways:
        assert raw_status(tenant.server, way, None) in (400, 401, 404), way
        assert raw_status(tenant.server, way, caller.token) in (400, 403, 404), way


def test_every_number_has_one_test() -> None:
    numbers = sorted(name[11:13] for name in globals() if name.startswith("test_check_"))
    assert numbers == [f"{number:02}" for number in range(1, 36) if number != 30]
