"""Who may call what, and every way we know to bypass authentication."""

import asyncio
import hashlib
import hmac
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.server.issuer import (
    ALL_WORKER_SCOPES,
    ISSUER,
    PRODUCERS,
    Issuer,
    by_hand,
    claims,
    encoded,
    key_pair,
    lifetime,
    public_entry,
    settings_for,
    sign,
    worker_claims,
)
from tests.server.server_process import Server, Tenant, answered, at, eventually, refused, start_server

from codeq.domain.errors import InvalidRequest
from codeq.server.auth import keyset, principal
from codeq.server.auth.claims import Claims, make_validator
from codeq.server.auth.jwks import LIFETIME_S_MAX, JwksValidator, make_jwks
from codeq.server.auth.keyset import COOL_DOWN_S, REFRESH_S, STALE_S, KeySet, fetch_from, read_keys
from codeq.server.auth.principal import CACHE_S, Authenticator, TokenKind, tenant_of
from codeq.server.routes import ROUTES, Route
from codeq.wire import paths
from codeq.wire.errors import Forbidden, Unauthenticated, Unavailable

UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"
DONE = {"status": "COMPLETED", "result": {}}
NOT_ACCEPTED = {"error": "the token is not accepted", "code": "unauthenticated"}
SKEW_S = 5


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer().context() as context:
        weak = rsa.generate_private_key(65_537, 1024)
        shown = jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key(), as_dict=True)
        context.extra = [{**shown, "kid": "weak", "use": "sig"}, public_entry("for-encryption") | {"use": "enc"}, 7, {}]
        context.weak = weak  # type: ignore[attr-defined]
        yield context


@pytest.fixture(scope="module")
def guarded(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that trusts the issuer, with one audience for producers and another for workers."""
    with start_server(tmp_path_factory.mktemp("guarded"), dev=False, settings=issuer.settings()) as running:
        yield running


def get(server: Server, token: str | None, path: str = paths.TASKS, method: str = "GET") -> httpx.Response:
    return server.request(method, path, token=token)


# Which token each route accepts

OK = "ok"
WORKER_SCOPES = ALL_WORKER_SCOPES.split()
CALLERS: dict[str, dict[str, Any] | None] = {
    "nobody": None,
    "producer": claims(),
    "admin": claims(scope="codeq:admin"),
    "admin by role": claims(role="admin"),
    "admin by claim": claims(admin=True),
    "not admin": claims(role="administrator", admin="true", scope="codeq:administer"),
    "events": claims(scope="codeq:events"),
    "creator": claims(scope="openid codeq:create"),
    "canceller": claims(scope="codeq:cancel"),
    "producer with other scopes": claims(scope="openid profile"),
    "platform": claims(scope="codeq:platform"),
    "platform admin": claims(scope="codeq:admin codeq:platform"),
    "worker": worker_claims(),
    "worker for events": worker_claims(scope="codeq:events"),
    "worker as admin": worker_claims(scope="codeq:admin codeq:platform", role="ADMIN"),
    "worker without scope": worker_claims(scope=""),
    "worker without event types": worker_claims(eventTypes=[]),
    **{
        f"worker without {gone}": worker_claims(scope=" ".join(s for s in WORKER_SCOPES if s != gone))
        for gone in WORKER_SCOPES
    },
}
Row = dict[str, int | str]


def row(others: int | str, **known: int | str) -> Row:
    """Returns what each caller gets: `others`, unless it is named (with spaces for underscores)."""
    named = {name.replace("_", " "): got for name, got in known.items()}
    assert set(named) <= set(CALLERS)
    return dict.fromkeys(CALLERS, others) | named


PRODUCERS_ALL: dict[str, int | str] = {
    name: OK for name, token_claims in CALLERS.items() if token_claims is not None and token_claims["aud"] == PRODUCERS
}
ANYONE = row(OK, nobody=401, worker_without_event_types=401)


def producer(scope: str) -> Row:
    """A producer's token without any scope of codeQ may do all that producers do; with one, it needs the right one."""
    limited = {"creator": "codeq:create", "canceller": "codeq:cancel", "events": "", "not admin": ""}
    return row(401) | PRODUCERS_ALL | {name: OK if has == scope else 403 for name, has in limited.items()}


PLATFORM_ADMIN = row(401) | dict.fromkeys(PRODUCERS_ALL, 403) | {"platform admin": OK}
_ADMINS = ("admin", "admin by role", "admin by claim", "platform admin")
ADMIN = PLATFORM_ADMIN | dict.fromkeys(_ADMINS, OK)
_READERS = (*_ADMINS, "events", "platform", "worker for events", "worker as admin")
EVENTS = row(403, nobody=401, worker_without_event_types=401) | dict.fromkeys(_READERS, OK)
OPEN = row(OK)


def worker(scope: str) -> Row:
    lacking: Row = {"worker for events": 403, "worker as admin": 403, "worker": OK}
    lacking |= {f"worker without {other}": 403 if other == scope else OK for other in WORKER_SCOPES}
    return row(401) | lacking


EXPECTED: dict[tuple[str, str], Row] = {
    ("POST", paths.TASKS): producer("codeq:create"),
    ("POST", paths.TASKS_BATCH): producer("codeq:create"),
    ("GET", paths.TASKS): ANYONE,
    ("POST", paths.CLAIM): worker("codeq:claim"),
    ("POST", paths.CLAIM_BATCH): worker("codeq:claim"),
    ("POST", paths.RESULTS_BATCH): worker("codeq:result"),
    ("GET", paths.TASK): ANYONE,
    ("GET", paths.RESULT): ANYONE,
    ("GET", paths.HISTORY): ANYONE,
    ("POST", paths.HEARTBEAT): worker("codeq:heartbeat"),
    ("POST", paths.ABANDON): worker("codeq:abandon"),
    ("POST", paths.NACK): worker("codeq:nack"),
    ("POST", paths.RESULT): worker("codeq:result"),
    ("POST", paths.CANCEL): producer("codeq:cancel"),
    ("GET", paths.QUEUES): ANYONE,
    ("GET", paths.EVENTS): EVENTS,
    ("GET", paths.ADMIN_QUEUES): ADMIN,
    ("GET", paths.ADMIN_QUEUE): ADMIN,
    ("POST", paths.PAUSE): ADMIN,
    ("POST", paths.RESUME): ADMIN,
    ("POST", paths.CLEANUP): ADMIN,
    ("PUT", paths.TOPIC): ADMIN,
    ("GET", paths.TOPIC): ADMIN,
    ("DELETE", paths.TOPIC): ADMIN,
    ("GET", paths.DLQ): ADMIN,
    ("POST", paths.DLQ_REPLAY): ADMIN,
    ("POST", paths.DLQ_PURGE): ADMIN,
    ("POST", paths.BACKUP): PLATFORM_ADMIN,
    ("GET", paths.ARTIFACTS): ANYONE,
    ("GET", paths.ARTIFACT): ANYONE,
    ("PUT", paths.ARTIFACT): worker("codeq:result"),
    ("DELETE", paths.ARTIFACT): worker("codeq:result"),
    ("GET", paths.DELIVERIES): ADMIN,
    ("GET", paths.DELIVERY): ADMIN,
    ("POST", paths.DELIVERIES_REPLAY): ADMIN,
    ("POST", paths.WEBHOOK_TEST): ADMIN,
    ("GET", paths.WEBHOOK_SECRET): ADMIN,
    ("POST", paths.HEARTBEATS_BATCH): worker("codeq:heartbeat"),
    ("POST", paths.LEASES_WATCH): worker("codeq:heartbeat"),
    ("GET", paths.WORKERS): ADMIN,
    ("DELETE", paths.WORKER): worker("codeq:claim"),
    ("POST", paths.SUBSCRIPTIONS): worker("codeq:subscribe"),
    ("POST", paths.SUBSCRIPTION_HEARTBEAT): worker("codeq:subscribe"),
    ("DELETE", paths.SUBSCRIPTION): worker("codeq:subscribe"),
    ("GET", paths.ADMIN_SUBSCRIPTIONS): ADMIN,
    ("DELETE", paths.ADMIN_SUBSCRIPTION): ADMIN,
    ("GET", paths.HEALTHZ): OPEN,
    ("GET", paths.READYZ): OPEN,
    ("GET", paths.METRICS): OPEN,
    ("GET", paths.OPENAPI): OPEN,
    ("GET", paths.DOCS): OPEN,
    ("GET", paths.JWKS): OPEN,
}


def call(server: Server, route: Route, token: str | None) -> httpx.Response:
    name = UNKNOWN if "{id}" in route.path else "some-queue"
    query = {"command": "work"} if (route.method, route.path) == ("GET", paths.TASKS) else None
    body: dict[str, Any] | None = {} if route.method in ("POST", "PUT") else None
    return server.request(route.method, at(route.path, name), body, token=token, params=query)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_kind_of_token_opens_only_what_it_is_for(route: Route, guarded: Server) -> None:
    expected = EXPECTED.get((route.method, route.path))
    assert expected is not None, "a new route: say here who may call it"
    got: Row = {}
    for caller, token_claims in CALLERS.items():
        answer = call(guarded, route, sign(token_claims | lifetime()) if token_claims else None)
        got[caller] = answer.status_code if answer.status_code in (401, 403) else OK
        if got[caller] == 401:
            refused(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
        elif got[caller] == 403:
            refused(answer, 403, "forbidden")
    assert got == expected


def test_no_expectation_is_for_a_route_that_is_gone() -> None:
    assert set(EXPECTED) == {(route.method, route.path) for route in ROUTES}


def test_a_header_makes_nobody_an_admin(guarded: Server, server: Server, tenant: Tenant) -> None:
    for name in ("X-Role", "X-Admin", "X-User-Role", "X-Tenant-Id", "X-Forwarded-User"):
        headers = {name: "ADMIN"}
        answer = guarded.request("GET", paths.ADMIN_QUEUES, token=sign(claims()), headers=headers)
        refused(answer, 403, "forbidden")
        refused(tenant.producer.request("GET", paths.ADMIN_QUEUES, headers=headers), 403, "forbidden")
    made = tenant.producer.post(
        paths.TASKS, {"command": "a", "payload": 1}, headers={"X-Tenant-Id": "other", "X-Worker-Id": "w"}
    )
    assert answered(made, 202)["tenantId"] == tenant.name


def test_a_producers_token_works_where_that_was_allowed(issuer: Issuer, tmp_path: Path) -> None:
    settings = issuer.settings()
    settings["auth"]["producers_may_work"] = True
    with start_server(tmp_path, dev=False, settings=settings) as own:
        token = sign(claims())
        task = answered(own.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=token), 202)
        held = answered(own.request("POST", paths.CLAIM, {}, token=token), 200)
        assert (held["id"], held["workerId"]) == (task["id"], "somebody")
        answered(own.request("POST", at(paths.RESULT, task["id"]), DONE, token=token), 200)
        refused(get(own, token, paths.ADMIN_QUEUES), 403, "forbidden")


# What a worker's event types allow


@pytest.mark.parametrize(
    ("path", "body"), [(paths.HEARTBEAT, {}), (paths.ABANDON, {}), (paths.NACK, {}), (paths.RESULT, DONE)]
)
def test_a_token_for_some_commands_cannot_touch_tasks_of_others(
    tenant: Tenant, path: str, body: dict[str, Any]
) -> None:
    task = tenant.held("other")
    same_worker = tenant.worker_named(f"{tenant.name}-worker", commands=["mine", "Other", "othe", "other."])
    refused(same_worker.post(at(path, task["id"]), body), 403, "forbidden")
    assert tenant.task(task["id"]) == task


def test_a_token_for_some_commands_cannot_end_others_in_a_batch(tenant: Tenant) -> None:
    mine, other = tenant.held("mine"), tenant.held("other")
    same_worker = tenant.worker_named(f"{tenant.name}-worker", commands=["mine"])
    items = [{"taskId": task["id"], **DONE} for task in (mine, other)]
    refused(same_worker.post(paths.RESULTS_BATCH, {"results": items}), 403, "forbidden")
    assert [tenant.task(task["id"]) for task in (mine, other)] == [mine, other]
    answered(same_worker.post(paths.RESULTS_BATCH, {"results": items[:1]}), 200)


def test_a_token_for_some_commands_cannot_extend_leases_of_others_in_a_batch(tenant: Tenant) -> None:
    mine, other = tenant.held("mine"), tenant.held("other")
    same_worker = tenant.worker_named(f"{tenant.name}-worker", commands=["mine"])
    items = [{"taskId": task["id"], "extendSeconds": 3600} for task in (mine, other)]
    refused(same_worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": items}), 403, "forbidden")
    assert [tenant.task(task["id"]) for task in (mine, other)] == [mine, other]
    answered(same_worker.post(paths.HEARTBEATS_BATCH, {"heartbeats": items[:1]}), 200)
    assert tenant.task(mine["id"])["leaseUntil"] > mine["leaseUntil"]


@pytest.mark.parametrize("path", [paths.CLAIM, paths.CLAIM_BATCH])
def test_a_token_for_some_commands_claims_no_others(tenant: Tenant, path: str) -> None:
    body: dict[str, Any] = {"count": 10} if path == paths.CLAIM_BATCH else {}
    mine, other = tenant.create("mine"), tenant.create("other")
    limited = tenant.worker_named("limited", commands=["mine", "OTHER"])
    for commands in (["other"], ["mine", "other"], ["*"]):
        answer = limited.post(path, body | {"commands": commands})
        assert answer.status_code == (400 if commands == ["*"] else 403)
    claimed = answered(limited.post(path, body), 200)
    assert [task["id"] for task in claimed.get("tasks", [claimed])] == [mine["id"]]
    assert limited.post(path, body).status_code == 204
    assert tenant.task(other["id"])["status"] == "PENDING"


# Tokens that must not be accepted


def hs256_with_the_public_key(_: Issuer) -> str:
    public = key_pair("rsa").public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "kid": "rsa", "typ": "JWT"}
    return by_hand(header, claims(), lambda text: hmac.new(pem, text, hashlib.sha256).digest())


def rs256(kid: str, key: Any) -> Callable[[dict[str, Any]], str]:
    def make(token_claims: dict[str, Any]) -> str:
        header = {"alg": "RS256", "kid": kid}
        return by_hand(header, token_claims, lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256()))

    return make


def changed_after_signing(_: Issuer) -> str:
    head, _body, signature = sign(claims()).split(".")
    return f"{head}.{encoded(claims(tid='other'))}.{signature}"


def stranger() -> Any:
    return rsa.generate_private_key(65_537, 2048)


def without(name: str) -> Callable[[Issuer], str]:
    return lambda _: sign({claim: value for claim, value in claims().items() if claim != name})


def with_claims(**changed: Any) -> Callable[[Issuer], str]:
    """A token valid but for these claims. A callable claim is called when the token is made."""

    def make(_: Issuer) -> str:
        token_claims = {name: value() if callable(value) else value for name, value in changed.items()}
        return rs256("rsa", key_pair("rsa"))(claims(**token_claims))

    return make


def from_now(seconds: int) -> Callable[[], int]:
    return lambda: int(time.time()) + seconds


def with_header(**header: Any) -> Callable[[Issuer], str]:
    full = {"alg": "RS256", "kid": "rsa"} | header
    return lambda _: by_hand(
        full, claims(), lambda text: key_pair("rsa").sign(text, padding.PKCS1v15(), hashes.SHA256())
    )


def with_text(change: Callable[[bytes], bytes], part: int) -> Callable[[Issuer], str]:
    """A token that is signed over text which no library would write: a changed header (part 0) or claims (part 1)."""

    def make(_: Issuer) -> str:
        texts: list[Any] = [json.dumps({"alg": "RS256", "kid": "rsa"}).encode(), json.dumps(claims()).encode()]
        assert change(texts[part]) != texts[part]
        texts[part] = change(texts[part])
        return by_hand(texts[0], texts[1], lambda text: key_pair("rsa").sign(text, padding.PKCS1v15(), hashes.SHA256()))

    return make


def unsigned(algorithm: Any) -> Callable[[Issuer], str]:
    return lambda _: by_hand({"alg": algorithm, "kid": "rsa"}, claims(), lambda _: b"")


ATTACKS: dict[str, Callable[[Issuer], str]] = {
    "alg none": unsigned("none"),
    "alg nOnE": unsigned("nOnE"),
    "alg empty": unsigned(""),
    "alg missing": lambda _: by_hand({"kid": "rsa"}, claims(), lambda _: b""),
    "alg a list": unsigned(["RS256"]),
    "empty signature": unsigned("RS256"),
    "HS256 with the public key": hs256_with_the_public_key,
    "RS512 for an RS256 key": lambda _: jwt.encode(claims(), key_pair("rsa"), "RS512", {"kid": "rsa"}),
    "PS256 for an RS256 key": lambda _: jwt.encode(claims(), key_pair("rsa"), "PS256", {"kid": "rsa"}),
    "ES256 for an RSA key": lambda _: jwt.encode(claims(), key_pair("ec", "ES256"), "ES256", {"kid": "rsa"}),
    "RS256 for an EdDSA key": lambda _: rs256("ed", key_pair("rsa"))(claims()),
    "signed by a stranger": lambda _: rs256("rsa", stranger())(claims()),
    "changed after signing": changed_after_signing,
    "weak RSA key": lambda issuer: rs256("weak", issuer.weak)(claims()),  # type: ignore[attr-defined]
    "key for encryption": lambda _: rs256("for-encryption", key_pair("for-encryption"))(claims()),
    "no exp": without("exp"),
    "no iat": without("iat"),
    "no iss": without("iss"),
    "no aud": without("aud"),
    "no sub": without("sub"),
    "expired": with_claims(exp=from_now(-60), iat=from_now(-120)),
    "not yet valid": with_claims(nbf=from_now(300)),
    "issued in the future": with_claims(iat=from_now(300), exp=from_now(600)),
    "wrong aud": with_claims(aud="someone-else"),
    "aud of workers": with_claims(aud="codeq-workers"),
    "aud a list without ours": with_claims(aud=["x", "y"]),
    "aud an object": with_claims(aud={"codeq-producers": 1}),
    "aud with other case": with_claims(aud="CODEQ-PRODUCERS"),
    "wrong iss": with_claims(iss="https://evil.test"),
    "iss a list": with_claims(iss=[ISSUER]),
    "iss with a slash": with_claims(iss=ISSUER + "/"),
    "exp of 10^40": with_claims(exp=10**40),
    "exp of 1e308": with_claims(exp=1e308),
    "exp a string": with_claims(exp=lambda: str(from_now(600)())),
    "exp a bool": with_claims(exp=True),
    "exp -1": with_claims(exp=-1),
    "exp a fraction past": with_claims(exp=lambda: from_now(-600)() + 0.5),
    "exp a list": with_claims(exp=lambda: [from_now(600)()]),
    "exp infinite": with_claims(exp=float("inf")),
    "exp not a number": with_claims(exp=float("nan")),
    "exp with 5000 digits": lambda _: rs256("rsa", key_pair("rsa"))({**claims(), "exp": int("9" * 4000)}),
    "iat a string": with_claims(iat="now"),
    "iat a bool": with_claims(iat=True),
    "nbf a string": with_claims(nbf="soon"),
    "good for too long": with_claims(exp=from_now(LIFETIME_S_MAX + 3600)),
    "sub empty": with_claims(sub=""),
    "sub a number": with_claims(sub=7),
    "sub too long": with_claims(sub="s" * 257),
    "event types no list": with_claims(eventTypes="*"),
    "event types of numbers": with_claims(eventTypes=[1]),
    "no kid": lambda _: sign(claims(), None),
    "unknown kid": with_header(kid="who"),
    "kid a path": with_header(kid="../../../../dev/null"),
    "kid SQL": with_header(kid="x' UNION SELECT 'key'; --"),
    "kid with NUL": with_header(kid="rsa\0"),
    "kid of 5 KB": with_header(kid="k" * 5000),
    "kid unicode": with_header(kid="r\u0455a\u202e"),
    "kid a number": with_header(kid=1),
    "kid an object": with_header(kid={"a": 1}),
    "kid null": with_header(kid=None),
    "crit unknown": with_header(crit=["mystery"], mystery=1),
    "crit with an extension of the library": with_header(b64=True, crit=["b64"]),
    "crit empty": with_header(crit=[]),
    "crit null": with_header(crit=None),
    "header with a name twice": with_text(lambda text: text.replace(b'"kid"', b'"kid": "ed", "kid"'), 0),
    "claim twice": with_text(lambda text: text.replace(b'"tid"', b'"tid": "other", "tid"'), 1),
    "claim twice inside another": with_text(
        lambda text: text.replace(b'"tid"', b'"x": {"a": 1, "a": 2}, "tid"'), part=1
    ),
    "header nested deep but short": lambda _: by_hand(
        b'{"alg": "RS256", "kid": ' + b"[" * 3000, claims(), lambda _: b"x"
    ),
    "scope a number": with_claims(scope=7),
    "scope a list of numbers": with_claims(scope=[7]),
    "b64 false": with_header(b64=False, crit=["b64"]),
    "header no object": lambda _: by_hand([1], claims(), lambda _: b"x"),
    "header no JSON": lambda _: by_hand(b"{", claims(), lambda _: b"x"),
    "header not UTF-8": lambda _: by_hand(b"\xff\xfe", claims(), lambda _: b"x"),
    "header nested deep": lambda _: by_hand(b"[" * 5000, claims(), lambda _: b"x"),
    "body no object": lambda _: by_hand(
        {"alg": "RS256", "kid": "rsa"},
        [1],
        lambda text: key_pair("rsa").sign(text, padding.PKCS1v15(), hashes.SHA256()),
    ),
    "body nested deep": lambda _: by_hand(
        {"alg": "RS256", "kid": "rsa"},
        b"[" * 4000,
        lambda text: key_pair("rsa").sign(text, padding.PKCS1v15(), hashes.SHA256()),
    ),
    "two parts": lambda _: sign(claims()).rpartition(".")[0],
    "five parts": lambda _: "a.b.c.d.e",
    "dots": lambda _: "..",
    "no base64": lambda _: "!!!.???.###",
    "a good one twice": lambda _: f"{sign(claims())} {sign(claims())}",
    "the development token": lambda _: "dev-token",
    "too long": lambda _: sign(claims(pad="x" * 9000)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_token_is_refused_without_a_word_of_why(attack: str, issuer: Issuer, guarded: Server) -> None:
    token = ATTACKS[attack](issuer)
    answer = get(guarded, token)
    assert answer.status_code == 401, answer.text
    assert answer.json() == NOT_ACCEPTED
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("kid", "algorithm"), [("rsa", "RS256"), ("ed", "EdDSA"), ("ec", "ES256")])
def test_a_good_token_of_each_algorithm_is_accepted(guarded: Server, kid: str, algorithm: str) -> None:
    """Otherwise the refusals above would prove nothing."""
    answered(get(guarded, sign(claims(), kid, algorithm)), 200)


def test_tokens_made_by_hand_are_as_good_as_any(issuer: Issuer, guarded: Server) -> None:
    """Otherwise the refusals of tokens that differ in one claim would prove nothing."""
    variants = (
        with_claims(),
        with_header(),
        with_header(typ="JWT", x5t="x"),
        with_claims(nbf=from_now(-10), extra=[1]),
    )
    for make in variants:
        answered(get(guarded, make(issuer)), 200)


def test_an_audience_among_several_is_enough(guarded: Server) -> None:
    answered(get(guarded, sign(claims(["other", PRODUCERS]))), 200)  # type: ignore[arg-type]


def test_a_clock_may_differ_by_the_skew_and_no_more(guarded: Server) -> None:
    now_s = int(time.time())
    answered(get(guarded, sign(claims(exp=now_s - 1, iat=now_s - 60))), 200)
    answered(get(guarded, sign(claims(nbf=now_s + 3))), 200)
    refused(get(guarded, sign(claims(exp=now_s - SKEW_S - 1, iat=now_s - 60))), 401, "unauthenticated")


def test_an_accepted_token_is_refused_once_it_has_expired(guarded: Server) -> None:
    now_s = int(time.time())
    token = sign(claims(exp=now_s - SKEW_S + 1, iat=now_s - 60))
    answered(get(guarded, token), 200)
    assert eventually(lambda: get(guarded, token).status_code == 401)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic dXNlcjpwYXNz", "Token {}", "{}", "Bearer{}", 'Bearer "{}"', "Bearer: {}"]
)
def test_the_header_must_say_bearer_and_the_token(guarded: Server, header: str) -> None:
    headers = {"Authorization": header.format(sign(claims()))}
    refused(guarded.request("GET", paths.TASKS, token=None, headers=headers), 401, "unauthenticated")


def test_the_scheme_may_be_written_in_any_case(guarded: Server) -> None:
    for scheme in ("bearer", "BEARER", "bEaReR"):
        headers = {"Authorization": f"{scheme} {sign(claims())}"}
        answered(guarded.request("GET", paths.TASKS, token=None, headers=headers), 200)


def test_two_authorization_headers_are_refused_though_both_are_good(guarded: Server) -> None:
    good = f"Bearer {sign(claims())}"
    for pair in ((good, good), (good, "Bearer x"), ("Bearer x", good)):
        answer = guarded.request("GET", paths.TASKS, token=None, headers=[("Authorization", text) for text in pair])
        refused(answer, 401, "unauthenticated")


def test_a_token_elsewhere_than_in_its_header_is_ignored(guarded: Server) -> None:
    token = sign(claims())
    for name in ("access_token", "token", "authorization"):
        assert guarded.request("GET", paths.TASKS, token=None, params={name: token}).status_code == 401
        headers = {"Cookie": f"{name}={token}"}
        assert guarded.request("GET", paths.TASKS, token=None, headers=headers).status_code == 401
    answer = guarded.request("POST", paths.TASKS, {"access_token": token, "command": "a", "payload": 1}, token=None)
    assert answer.status_code == 401


def test_a_huge_token_is_refused_before_anything_is_computed(guarded: Server) -> None:
    answer = get(guarded, "x" * 65_536)
    assert answer.status_code in (401, 431)


def test_addresses_that_a_token_names_are_never_asked(guarded: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/keys"
        for header in ("jku", "x5u"):
            answered(get(guarded, sign(claims(), **{header: url})), 200)
            assert get(guarded, sign(claims(), "unknown", **{header: url})).status_code == 401
        attacker = stranger()
        own = jwt.algorithms.RSAAlgorithm.to_jwk(attacker.public_key(), as_dict=True)
        for extra in ({"jwk": own}, {"x5c": ["MIIB"]}):
            token = by_hand(
                {"alg": "RS256", "kid": "rsa", **extra},
                claims(),
                lambda text: attacker.sign(text, padding.PKCS1v15(), hashes.SHA256()),
            )
            assert get(guarded, token).status_code == 401
        with pytest.raises(BlockingIOError):
            trap.accept()


VARIANTS = [
    "//v1/codeq/admin/queues",
    "/v1//codeq/admin/queues",
    "/v1/codeq/./admin/queues",
    "/v1/codeq/x/../admin/queues",
    "/v1/codeq/%2e%2e/codeq/admin/queues",
    "/v1/codeq/admin%2Fqueues",
    "/v1/codeq/admin/queues/",
    "/V1/CODEQ/ADMIN/QUEUES",
    "/v1/codeq/admin/queues;x=1",
    "/v1/codeq/admin/queues%00",
    "/v1/codeq/admin/queues%20",
    "/v1/codeq/%61dmin/queues",
    "/v1/codeq/admin\\queues",
]


@pytest.mark.parametrize("target", VARIANTS)
def test_another_spelling_of_a_path_opens_no_back_door(guarded: Server, target: str) -> None:
    for token, allowed in ((None, {401, 404}), (sign(claims()), {403, 404, 400})):
        lines = [f"GET {target} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        with socket.create_connection(("127.0.0.1", guarded.port), 10) as raw:
            raw.sendall("\r\n".join([*lines, "", ""]).encode())
            status = int(raw.recv(4096).split()[1])
        assert status in allowed, target


# Tenants

ALIASES = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
NO_TENANTS: list[Any] = [
    "", " ", " acme", "acme ", "acme\n", "a\nb", "a\0b", "a\x7fb", "a\tb", "x" * 256, "\u0430cme", ".", "..",
    5, True, None, ["acme"], {"a": 1}, 1.5,
]  # fmt: skip


def tenant_seen(server: Server, token_claims: dict[str, Any]) -> str:
    token = rs256("rsa", key_pair("rsa"))(token_claims)
    task = answered(server.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=token), 202)
    seen: str = task["tenantId"]
    return seen


@pytest.mark.parametrize("value", NO_TENANTS, ids=repr)
@pytest.mark.parametrize("alias", ["tid", "organization_id"])
def test_a_tenant_claim_that_is_no_name_is_refused_and_never_replaced_by_the_subject(
    guarded: Server, alias: str, value: Any
) -> None:
    token_claims = claims(tid=None) | {alias: value}
    answer = get(guarded, rs256("rsa", key_pair("rsa"))(token_claims))
    problem = refused(answer, 403, "forbidden")
    assert problem["error"] == "the token's tenant claims are missing, malformed or in conflict"


def test_the_tenant_is_the_subject_only_if_nothing_else_is_said(guarded: Server) -> None:
    assert tenant_seen(guarded, claims(tid=None, sub="from-sub")) == "from-sub"
    assert tenant_seen(guarded, claims(tid="said", sub="from-sub")) == "said"
    for subject in ("x" * 256, "a\nb", " a", "\u0430cme"):
        refused(get(guarded, sign(claims(tid=None, sub=subject))), 403, "forbidden")


def test_every_alias_names_the_tenant_and_all_must_agree(guarded: Server) -> None:
    for alias in ALIASES:
        assert tenant_seen(guarded, claims(tid=None) | {alias: f"by-{alias}"}) == f"by-{alias}"
    assert tenant_seen(guarded, claims(tid=None) | dict.fromkeys(ALIASES, "all")) == "all"


def test_tenant_claims_in_conflict_are_refused_in_any_order() -> None:
    for one, other in itertools.permutations(ALIASES, 2):
        conflicting: list[Any] = ["b", "A", "a ", " a", 5, 0, 1.5, False, True, ["a"], [], {}, {"a": "a"}]
        for second in conflicting:
            with pytest.raises(Forbidden):
                tenant_of(Claims(subject="a", raw={one: "a", other: second}))
        for same in ("a", None, "", " ", "\t\n "):
            assert tenant_of(Claims(subject="x", raw={one: "a", other: same})) == "a"


@pytest.mark.parametrize("subject", ["a\nb", "a\0", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ud800"], ids=ascii)
def test_a_subject_with_control_characters_is_refused_beside_a_good_tenant(guarded: Server, subject: str) -> None:
    for token_claims in (claims(tid="good", sub=subject), worker_claims(tid="good", sub=subject)):
        token = rs256("rsa", key_pair("rsa"))(token_claims)
        refused(get(guarded, token), 401, "unauthenticated")
    refused(guarded.request("POST", paths.CLAIM, {}, token=token), 401, "unauthenticated")


def test_times_in_a_token_may_have_fractions(guarded: Server) -> None:
    """RFC 7519, section 2: a NumericDate may be non-integer."""
    now_s = time.time()
    token_claims = claims() | {"exp": now_s + 60.5, "iat": now_s - 0.25, "nbf": now_s - 0.25}
    answered(get(guarded, sign(token_claims)), 200)
    refused(get(guarded, sign(token_claims | {"exp": now_s - 3600.5, "iat": now_s - 7200.5})), 401, "unauthenticated")


def test_a_conflict_over_http_is_refused_on_every_kind_of_route(guarded: Server) -> None:
    token_claims = claims(tid="a", tenantId="b", scope="codeq:admin")
    for path in (paths.TASKS, paths.ADMIN_QUEUES, paths.EVENTS):
        refused(get(guarded, sign(token_claims), path), 403, "forbidden")
    worker_said = worker_claims(tid="a", tenantId="b")
    refused(guarded.request("POST", paths.CLAIM, {}, token=sign(worker_said)), 403, "forbidden")


def test_the_worker_is_the_subject_of_the_token(guarded: Server) -> None:
    made = claims(tid="w-tenant")
    answered(guarded.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=sign(made)), 202)
    token_claims = worker_claims(tid="w-tenant", sub="auth0|worker 7")
    assert (
        answered(guarded.request("POST", paths.CLAIM, {}, token=sign(token_claims)), 200)["workerId"]
        == "auth0|worker 7"
    )


# Keys that are added, withdrawn or cannot be fetched


def test_a_storm_of_unknown_keys_is_not_passed_on_to_the_issuer(guarded: Server, issuer: Issuer) -> None:
    before = issuer.fetches
    tail = f"{encoded(claims())}.{encoded(b'x' * 256)}"
    for number in range(1000):
        token = f"{encoded({'alg': 'RS256', 'kid': f'kid-{number}'})}.{tail}"
        assert get(guarded, token, paths.ADMIN_QUEUES).status_code == 401
    assert issuer.fetches - before <= 2


def test_a_new_key_is_accepted_at_once_and_an_issuer_that_is_down_later_harms_nobody(tmp_path: Path) -> None:
    with Issuer().context() as own, start_server(tmp_path, dev=False, settings=own.settings()) as server:
        own.keys["next"] = "RS256"
        answered(server.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=sign(claims(), "next")), 202)
        answered(server.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=sign(claims(), "rsa")), 202)
        own.answer = (500, {}, b"down")
        for kid in ("rsa", "next"):
            token_claims = claims(sub="someone-new")
            answered(
                server.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=sign(token_claims, kid)), 202
            )
        assert get(server, sign(claims(), "third")).status_code == 401
        assert get(server, None, paths.READYZ).status_code == 200


def test_a_server_whose_issuer_is_down_starts_and_says_that_it_cannot_tell(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/keys"
    with start_server(tmp_path, dev=False, settings=settings_for(url)) as server:
        for path, method in ((paths.TASKS, "GET"), (paths.TASKS, "POST"), (paths.CLAIM, "POST"), (paths.DLQ, "GET")):
            answer = get(server, sign(claims()), path, method)
            problem = refused(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "1"
            assert url not in answer.text
            assert problem["requestId"] == answer.headers["x-request-id"]
        ready = get(server, None, paths.READYZ)
        assert (ready.status_code, ready.json()["status"]) == (503, "not-ready")
        assert get(server, None, paths.HEALTHZ).status_code == 200


class Watch:
    """A clock that a test sets, and an issuer without a network."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.kids = ["one"]
        self.is_down = False
        self.fetches = 0
        self._changed = asyncio.Condition()
        self.keys = KeySet(self.fetch, clock=lambda: self.now_s)
        self.validator = JwksValidator(self.keys, issuer=ISSUER, audience=PRODUCERS, skew_s=SKEW_S)

    async def fetch(self) -> Any:
        async with self._changed:
            self.fetches += 1
            self._changed.notify_all()
        if self.is_down:
            raise httpx.ConnectError("down")
        return {"keys": [public_entry(kid) for kid in self.kids]}

    async def fetched(self, times: int) -> None:
        """Waits until the keys were fetched so many times."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.fetches >= times)

    async def accepts(self, kid: str) -> bool:
        try:
            await self.validator.validate(sign(claims(), kid))
        except Unauthenticated:
            return False
        return True


def test_keys_that_could_not_be_refreshed_serve_until_they_are_stale() -> None:
    async def scenario() -> None:
        watch = Watch()
        assert await watch.accepts("one")
        watch.is_down = True
        watch.now_s += STALE_S - 1
        assert await watch.accepts("one")
        assert watch.validator.is_ready
        watch.now_s += 2
        assert not watch.validator.is_ready
        with pytest.raises(Unavailable):
            await watch.accepts("one")
        watch.is_down = False
        watch.now_s += COOL_DOWN_S
        assert await watch.accepts("one")

    asyncio.run(scenario())


def test_a_key_that_the_issuer_took_back_is_refused_after_the_next_fetch() -> None:
    async def scenario() -> None:
        watch = Watch()
        watch.kids = ["one", "two"]
        assert await watch.accepts("one")
        before = watch.validator.revision
        watch.kids = ["two", "three"]
        watch.now_s += COOL_DOWN_S
        assert await watch.accepts("three"), "a new key is found at once"
        assert not await watch.accepts("one")
        assert await watch.accepts("two"), "while both serve, both are good"
        assert watch.validator.revision != before, "verdicts by the old key are forgotten"

    asyncio.run(scenario())


def test_keys_are_fetched_anew_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watch = Watch()
        watch.kids = ["one", "two"]
        await watch.keys.start()
        watch.kids = ["two"]
        await watch.fetched(3)
        assert not await watch.accepts("one")
        await watch.keys.close()

    assert REFRESH_S <= 300
    monkeypatch.setattr(keyset, "REFRESH_S", 0.01)
    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_unknown_keys_cost_one_fetch_per_cool_down_whoever_sends_them() -> None:
    async def scenario() -> None:
        watch = Watch()
        await asyncio.gather(*[watch.accepts(f"random-{n % 3}") for n in range(100)])
        assert watch.fetches == 1, "all who come at once share one fetch"
        for n in range(50):
            assert not await watch.accepts(f"random-{n % 3}")
        assert watch.fetches == 1
        watch.now_s += COOL_DOWN_S
        assert not await watch.accepts("random-0")
        assert not await watch.accepts("random-1")
        assert watch.fetches == 2

    asyncio.run(scenario())


def test_a_caller_who_hangs_up_does_not_stop_the_fetch_of_the_others() -> None:
    async def scenario() -> None:
        watch = Watch()
        first = asyncio.create_task(watch.accepts("one"))
        second = asyncio.create_task(watch.accepts("one"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second
        assert watch.fetches == 1

    asyncio.run(scenario())


BAD_ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "an error": (500, {}, b"{}"),
    "not found": (404, {}, b'{"keys": []}'),
    "a page": (200, {"Content-Type": "text/html"}, b"<html></html>"),
    "no JSON": (200, {}, b"{"),
    "not UTF-8": (200, {}, b'{"keys": "\xff"}'),
    "a list": (200, {}, b"[]"),
    "keys null": (200, {}, b'{"keys": null}'),
    "nested deep": (200, {}, b'{"keys": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "10 MB": (200, {}, b'{"keys": [' + b" " * 10_000_000 + b"]}"),
    "10,000 keys": (200, {}, b'{"keys": [' + b",".join([b"{}"] * 10_000) + b"]}"),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_an_answer_that_is_no_set_of_keys_leaves_the_old_one(issuer: Issuer, answer: str) -> None:
    async def scenario() -> None:
        now_s = 0.0
        keys = KeySet(fetch_from(issuer.url), clock=lambda: now_s)
        assert await keys.find("rsa")
        issuer.answer = BAD_ANSWERS[answer]
        now_s += COOL_DOWN_S
        assert await keys.find("unknown") is None
        assert await keys.find("rsa")

    try:
        asyncio.run(scenario())
    finally:
        issuer.answer = None


def test_a_redirect_is_not_followed(issuer: Issuer) -> None:
    async def scenario() -> None:
        keys = KeySet(fetch_from(issuer.url))
        with pytest.raises(Unavailable):
            await keys.find("rsa")

    issuer.answer = (302, {"Location": issuer.url.replace("/keys", "/elsewhere")}, b"")
    try:
        asyncio.run(scenario())
    finally:
        issuer.answer = None
    assert "/elsewhere" not in issuer.paths


def test_an_issuer_that_does_not_answer_is_not_waited_for(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable):
            await KeySet(fetch_from(issuer.url)).find("rsa")

    assert keyset.FETCH_S <= 5
    monkeypatch.setattr(keyset, "FETCH_S", 0.2)
    issuer.delay.clear()
    try:
        asyncio.run(asyncio.wait_for(scenario(), 5))
    finally:
        issuer.delay.set()


def test_only_usable_keys_are_read() -> None:
    weak = rsa.generate_private_key(65_537, 1024)
    good = public_entry("good")
    entries: list[Any] = [
        good,
        {**jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key(), as_dict=True), "kid": "weak"},
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": 7},
        {**good, "kid": "no-alg-of-its-kind", "alg": "HS256"},
        {"kty": "oct", "k": "AAAA", "kid": "secret"},
        {"kty": "RSA", "kid": "empty"},
        {"kty": "RSA", "kid": "numbers", "n": 5, "e": 6},
        {"kty": "EC", "kid": "curve", "crv": "P-999", "x": "AA", "y": "AA"},
        "text",
        None,
    ]
    assert set(read_keys({"keys": entries})) == {"good"}
    assert read_keys({"keys": [good]})["good"].algorithms == ("RS256",)


def test_a_provider_that_cannot_work_is_refused_when_it_is_made() -> None:
    good = {"jwksUrl": "https://x/keys", "issuer": "i", "audience": "a"}
    for changed in (
        {"jwksUrl": None},
        {"issuer": ""},
        {"audience": None},
        {"clockSkewSeconds": 61},
        {"clockSkewSeconds": -1},
        {"jwksUrl": "ftp://x"},
        {"jwksUrl": "file:///etc/passwd"},
    ):
        with pytest.raises(InvalidRequest):
            make_jwks(good | changed)
    for provider, config in (
        ("static", {}),
        ("static", {"token": ""}),
        ("multi", {}),
        ("multi", {"providers": [{"type": "static", "config": {"token": "a"}}]}),
        ("multi", {"providers": [{"type": "multi"}, {"type": "static"}]}),
        ("nothing", {}),
    ):
        with pytest.raises(InvalidRequest):
            make_validator(provider, config)


def test_several_providers_accept_what_any_of_them_does() -> None:
    def child(name: str) -> dict[str, Any]:
        return {"type": "static", "config": {"token": name, "subject": name}}

    async def scenario() -> None:
        both = make_validator("multi", {"providers": [child("a"), child("b")]})
        assert [(await both.validate(token)).subject for token in ("a", "b")] == ["a", "b"]
        for token in ("c", "", "é", "A"):
            with pytest.raises(Unauthenticated):
                await both.validate(token)

    asyncio.run(scenario())


def test_a_provider_that_cannot_tell_makes_the_verdict_unknown_rather_than_no() -> None:
    async def scenario() -> None:
        down = {"type": "jwks", "config": {"jwksFile": "/nonexistent", "issuer": "i", "audience": "a"}}
        static = {"type": "static", "config": {"token": "known"}}
        both = make_validator("multi", {"providers": [down, static]})
        assert (await both.validate("known")).subject == "static"
        with pytest.raises(Unavailable):
            await both.validate(sign(claims()))
        assert not both.is_ready

    asyncio.run(scenario())


# Cached principals


class Counting:
    """A validator that counts its calls."""

    is_ready = True
    revision = 0

    def __init__(self, expires_s: float | None) -> None:
        self.expires_s = expires_s
        self.calls = 0
        self.is_revoked = False

    async def validate(self, token: str) -> Claims:
        self.calls += 1
        if self.is_revoked or token == "bad":
            raise Unauthenticated("no")
        return Claims(subject=token, expires_s=self.expires_s, raw={"tid": "acme"})

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(principal, "time", stopped)
    return stopped


def gate_of(validator: Counting) -> Authenticator:
    return Authenticator(validator, validator, producers_may_work=False)


def test_a_verdict_is_remembered_no_longer_than_the_token_is_good(clock: Clock) -> None:
    async def scenario() -> None:
        validator = Counting(clock.now_s + 10)
        gate = gate_of(validator)
        for _ in range(5):
            await gate.authenticate(TokenKind.PRODUCER, "t")
        assert validator.calls == 1
        clock.now_s += 9.9
        await gate.authenticate(TokenKind.PRODUCER, "t")
        assert validator.calls == 1
        validator.is_revoked = True
        clock.now_s += 0.1
        with pytest.raises(Unauthenticated):
            await gate.authenticate(TokenKind.PRODUCER, "t")

    asyncio.run(scenario())


@pytest.mark.parametrize("expires_s", [None, 1e12])
def test_a_verdict_is_remembered_for_a_minute_at_most(clock: Clock, expires_s: float | None) -> None:
    async def scenario() -> None:
        validator = Counting(expires_s)
        gate = gate_of(validator)
        await gate.authenticate(TokenKind.PRODUCER, "t")
        clock.now_s += CACHE_S - 1
        await gate.authenticate(TokenKind.PRODUCER, "t")
        assert validator.calls == 1
        clock.now_s += 1
        await gate.authenticate(TokenKind.PRODUCER, "t")
        assert validator.calls == 2

    assert CACHE_S <= 60
    asyncio.run(scenario())


def test_a_verdict_for_one_kind_of_route_is_none_for_another(clock: Clock) -> None:
    async def scenario() -> None:
        gate = gate_of(Counting(None))
        assert (await gate.authenticate(TokenKind.PRODUCER, "t")).subject == "t"
        with pytest.raises(Forbidden):
            await gate.authenticate(TokenKind.ADMIN, "t")
        with pytest.raises(Unauthenticated):
            await gate.authenticate(TokenKind.WORKER, "t")

    asyncio.run(scenario())


def test_verdicts_are_forgotten_when_a_key_is_withdrawn(clock: Clock) -> None:
    async def scenario() -> None:
        validator = Counting(None)
        gate = gate_of(validator)
        await gate.authenticate(TokenKind.PRODUCER, "t")
        validator.revision += 1
        validator.is_revoked = True
        with pytest.raises(Unauthenticated):
            await gate.authenticate(TokenKind.PRODUCER, "t")

    asyncio.run(scenario())


def test_refusals_are_not_remembered_and_verdicts_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        validator = Counting(None)
        gate = gate_of(validator)
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await gate.authenticate(TokenKind.PRODUCER, "bad")
        assert validator.calls == 3
        for n in range(100):
            await gate.authenticate(TokenKind.PRODUCER, f"t{n}")
        validator.calls = 0
        for n in (99, 90, 0):
            await gate.authenticate(TokenKind.PRODUCER, f"t{n}")
        assert validator.calls == 1, "the last ten are remembered, the first is not"

    monkeypatch.setattr(principal, "CACHE_TOKENS_MAX", 10)
    asyncio.run(scenario())


def test_no_refusal_over_http_repeats_what_the_token_said(guarded: Server) -> None:
    canaries = {"sub": "canary-sub", "iss": "canary-iss", "aud": "canary-aud", "tid": "canary/tid", "scope": "canary"}
    for name, value in canaries.items():
        answer = get(guarded, sign(claims(**{name: value}), kid="rsa"), paths.ADMIN_QUEUES)
        assert answer.status_code in (401, 403)
        assert "canary" not in answer.text + json.dumps(dict(answer.headers))
    assert "canary" not in get(guarded, sign(claims(), kid="canary-kid")).text
    assert "canary" not in guarded.log_text()


def test_a_caller_is_told_which_scope_is_missing(tenant: Tenant) -> None:
    limited = tenant.worker_named("w", scopes=["codeq:nack"])
    problem = refused(limited.post(paths.CLAIM, {}), 403, "forbidden")
    assert "codeq:claim" in problem["error"]
