"""What a caller with bad tokens, or an issuer that is down or answers oddly, can do to others: nothing (13.13)."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.issuer import (
    ISSUER,
    PRODUCERS,
    Issuer,
    claims,
    encoded,
    public_entry,
    settings_for,
    sign,
    worker_claims,
)
from tests.server.server_process import Server, answered, at, refused, start_server

from codeq.server.auth import callers, jwks
from codeq.server.auth.callers import CALLER, WINDOW_S, FailureLimit, caller_address, read_networks
from codeq.server.auth.jwks import JwksValidator
from codeq.server.auth.keyset import CALLER_S, COOL_DOWN_S, KeySet, read_keys
from codeq.server.settings import HttpSettings
from codeq.wire import paths
from codeq.wire.errors import RateLimited, Unauthenticated

TASK = {"command": "a", "payload": 1}
FAILURES = 20


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer().context() as own:
        yield own


def from_address(server: Server, address: str, token: str) -> httpx.Response:
    """Lists tasks from another address of this machine."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), base_url=server.base, timeout=70) as client:
        return client.get(paths.TASKS, headers={"Authorization": f"Bearer {token}"})


def with_random_kid(number: int) -> str:
    header = encoded({"alg": "RS256", "kid": f"random-{number}"})
    return f"{header}.{encoded(claims())}.{encoded(b'x' * 256)}"


def forged(**changed: Any) -> str:
    head, body, _ = sign(claims(**changed)).split(".")
    return f"{head}.{body}.{encoded(b'x' * 256)}"


# The key set


ODD: list[Any] = [
    {"kty": "RSA", "kid": ["a"]}, {"kty": "RSA", "kid": {"a": 1}}, {"kid": None}, {"kid": "x", "kty": ["RSA"]},
    {"kty": "RSA", "kid": "x", "n": [1], "e": {}}, {"kty": "EC", "kid": "x", "crv": ["P-256"], "x": 1, "y": None},
    {"kty": "OKP", "kid": "x", "crv": {"a": 1}, "x": []}, {"kty": "RSA", "kid": "x", "alg": {"a": 1}}, 7, None, [],
]  # fmt: skip


def test_odd_entries_of_a_key_set_harm_no_caller(issuer: Issuer, tmp_path: Path) -> None:
    """(13.13) A list or an object as `kid` was a 500 for callers."""
    issuer.extra = ODD
    with start_server(tmp_path, dev=False, settings=issuer.settings()) as server:
        answered(server.request("POST", paths.TASKS, TASK, token=sign(claims())), 202)
        assert server.request("GET", paths.TASKS, token=with_random_kid(0)).status_code == 401


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_entry = st.fixed_dictionaries(
    {},
    optional={
        "kid": _json,
        "kty": st.sampled_from(["RSA", "EC", "OKP", "oct"]) | _json,
        "crv": st.sampled_from(["P-256", "Ed25519", "X25519"]) | _json,
        "alg": st.sampled_from(["RS256", "ES256", "EdDSA"]) | _json,
        **dict.fromkeys(("use", "n", "e", "x", "y", "d"), st.sampled_from(["AQAB", "AA", "sig"]) | _json),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_entry | _json, max_size=4))
def test_whatever_an_entry_holds_the_good_ones_are_read(entries: list[Any]) -> None:
    """(13.13)"""
    assert "the-good-one" in read_keys({"keys": [*entries, public_entry("the-good-one")]})


# Unknown key ids


@pytest.mark.parametrize("forwarded", [False, True])
def test_random_key_ids_of_one_caller_do_not_delay_a_rotated_key_of_another(
    issuer: Issuer, tmp_path: Path, forwarded: bool
) -> None:
    """(13.13) One random id every half second kept a new key refused for ten seconds."""
    proxies = {"http": {"trusted_proxies": "127.0.0.1"}} if forwarded else {}
    with start_server(tmp_path, dev=False, settings=issuer.settings() | proxies) as server:
        for number in range(10):
            assert server.request("GET", paths.TASKS, token=with_random_kid(number)).status_code == 401
        issuer.keys["rotated"] = "RS256"
        assert server.request("GET", paths.TASKS, token=with_random_kid(11)).status_code == 401
        token = sign(claims(), "rotated")
        if forwarded:  # a proxy on this machine calls, and says for whom
            headers = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}
            answered(server.request("GET", paths.TASKS, token=token, headers=headers), 200)
        else:
            answered(from_address(server, "127.0.0.2", token), 200)


class Keys:
    """A key set with a clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.kids = ["one"]
        self.fetches = 0
        self.keys = KeySet(self.fetch, clock=lambda: self.now_s)
        self.validator = JwksValidator(self.keys, issuer=ISSUER, audience=PRODUCERS, skew_s=5)

    async def fetch(self) -> Any:
        self.fetches += 1
        return {"keys": [public_entry(kid) for kid in self.kids]}

    async def knows(self, kid: str, caller: str) -> bool:
        CALLER.set(caller)
        return await self.keys.find(kid) is not None

    async def accepts(self, token: str) -> bool:
        try:
            await self.validator.validate(token)
        except Unauthenticated:
            return False
        return True


def test_each_caller_has_unknown_ids_fetched_once_per_cool_down() -> None:
    """(13.13)"""

    async def scenario() -> None:
        keys = Keys()
        assert not await keys.knows("random", "stranger")
        keys.now_s += COOL_DOWN_S
        for number in range(20):
            assert not await keys.knows(f"random-{number}", "stranger")
        assert keys.fetches == 2, "the first one, and one for the stranger"
        keys.kids.append("two")
        keys.now_s += CALLER_S / 2
        assert not await keys.knows("two", "stranger"), "it has to wait for its turn"
        assert await keys.knows("two", "friend")
        assert keys.fetches == 3

    asyncio.run(scenario())


def test_many_callers_at_once_share_a_fetch_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.13)"""

    async def scenario() -> None:
        keys = Keys()
        await asyncio.gather(*[asyncio.create_task(keys.knows("x", f"caller-{n}")) for n in range(100)])
        assert keys.fetches == 1
        assert len(keys.keys._turns) <= 10

    monkeypatch.setattr("codeq.server.auth.keyset.CALLERS_MAX", 10)
    asyncio.run(scenario())


# Bad signatures


def test_a_forged_token_is_verified_once_for_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.13) A bad signature cost half a millisecond each time; now the same token costs it once."""
    verified: list[str] = []
    decode = jwt.decode

    def counting(token: str, *rest: Any, **options: Any) -> Any:
        verified.append(token)
        return decode(token, *rest, **options)

    async def scenario() -> None:
        keys = Keys()
        keys.kids = ["rsa"]
        bad = forged()
        for _ in range(5):
            assert not await keys.accepts(bad)
        assert len(verified) == 1
        assert await keys.accepts(sign(claims()))
        await keys.keys._refresh()
        assert not await keys.accepts(bad)
        assert verified.count(bad) == 2, "a key that was fetched again may be another one"
        for number in range(20):
            assert not await keys.accepts(forged(sub=f"s-{number}"))
        assert len(keys.validator._forged) == 10

    monkeypatch.setattr(jwks, "FORGED_MAX", 10)
    monkeypatch.setattr(jwt, "decode", counting)
    asyncio.run(scenario())


def test_an_address_whose_tokens_keep_failing_is_told_to_wait_and_spares_the_others(
    issuer: Issuer, tmp_path: Path
) -> None:
    """(13.13) The flood was unlimited."""
    own = issuer.settings()
    own["auth"]["failures_per_minute"] = FAILURES
    with start_server(tmp_path, dev=False, settings=own) as server:
        known = sign(claims())
        answered(server.request("GET", paths.TASKS, token=known), 200)
        for number in range(FAILURES):
            refused(server.request("GET", paths.TASKS, token=forged(sub=f"s-{number}")), 401, "unauthenticated")
        answer = server.request("GET", paths.TASKS, token=sign(claims(sub="new")))
        problem = refused(answer, 429, "rate-limited")
        assert problem["scope"] == "authentication"
        assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_S
        answered(server.request("GET", paths.TASKS, token=known), 200)
        answered(from_address(server, "127.0.0.2", sign(claims(sub="new"))), 200)
        assert server.request("GET", paths.TASKS, token=None).status_code == 401, "no token costs nothing"
        hits = 'codeq_rate_limit_hits_total{operation="authenticate",scope="authentication"} 1.0'
        assert hits in server.request("GET", paths.METRICS).text


@pytest.mark.parametrize("proxies", ["", "192.0.2.0/24", "127.0.0.1, ::1"])
def test_a_caller_cannot_name_another_address_unless_it_is_a_configured_proxy(
    issuer: Issuer, tmp_path: Path, proxies: str
) -> None:
    """Any local program could have its failures counted for somebody else, without end."""
    own = issuer.settings()
    own["auth"]["failures_per_minute"] = 5
    with start_server(tmp_path, dev=False, settings=own | {"http": {"trusted_proxies": proxies}}) as server:
        statuses = set()
        for number in range(12):
            headers = {"X-Forwarded-For": f"203.0.113.{number}"}
            answer = server.request("GET", paths.TASKS, token=forged(sub=f"s-{number}"), headers=headers)
            statuses.add(answer.status_code)
    assert statuses == ({401} if "127.0.0.1" in proxies else {401, 429})


def test_no_proxy_is_trusted_unless_it_is_named() -> None:
    assert HttpSettings().trusted_proxies == ""


def test_failures_are_forgotten_after_their_minute_and_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """(13.13)"""
    now_s = 50.0
    limit = FailureLimit(2, clock=lambda: now_s)
    for _ in range(2):
        limit.check("a")
        limit.add("a")
    with pytest.raises(RateLimited) as refusal:
        limit.check("a")
    assert refusal.value.retry_after_s == WINDOW_S
    limit.check("b")
    now_s += WINDOW_S
    limit.check("a")
    limit.add("a")
    limit.check("a")
    monkeypatch.setattr(callers, "CALLERS_MAX", 10)
    for number in range(100):
        limit.add(f"caller-{number}")
    assert len(limit._failures) <= 11
    unlimited = FailureLimit(0)
    unlimited.add("a")
    unlimited.check("a")


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("203.0.113.9", "", "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "spoofed, 198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "198.51.100.1, 127.0.0.1", "198.51.100.1"),
        ("127.0.0.1", "no address", "127.0.0.1"),
        ("::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.9", "", "203.0.113.9"),
        ("", "198.51.100.1", ""),
    ],
)
def test_only_a_trusted_proxy_says_who_calls(peer: str, forwarded: str, caller: str) -> None:
    """(13.13)"""
    assert caller_address(peer, forwarded, read_networks("127.0.0.0/8, ::1")) == caller


# Routes for any caller, while one issuer is down


@pytest.fixture
def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}/keys"


@pytest.mark.parametrize("down", ["worker", "producer"])
def test_on_routes_for_any_caller_one_working_issuer_is_enough(
    issuer: Issuer, nowhere: str, tmp_path: Path, down: str
) -> None:
    """(13.13) The workers' issuer being down made producers' reads 503."""
    own = issuer.settings()
    own["auth"][down] = settings_for(nowhere)["auth"][down]
    up, lost = (claims(), worker_claims()) if down == "worker" else (worker_claims(), claims())
    with start_server(tmp_path, dev=False, settings=own) as server:
        for path in (paths.TASKS, paths.QUEUES):
            answered(server.request("GET", path, token=sign(up)), 200)
            refused(server.request("GET", path, token=sign(lost)), 503, "unavailable")


def test_while_the_workers_issuer_is_down_their_tokens_see_no_more_than_before(
    issuer: Issuer, nowhere: str, tmp_path: Path
) -> None:
    """(13.13) A token that both issuers would accept is a worker's, limited to its commands."""
    own = issuer.settings()
    own["auth"]["worker"] = settings_for(nowhere)["auth"]["worker"]
    with start_server(tmp_path, dev=False, settings=own) as server:
        task = answered(server.request("POST", paths.TASKS, TASK, token=sign(claims())), 202)
        limited = sign(claims(eventTypes=["b"]))
        assert server.request("GET", at(paths.TASK, task["id"]), token=limited).status_code in (403, 404)


# Scopes


def test_a_token_that_may_only_read_events_creates_and_cancels_nothing(issuer: Issuer, tmp_path: Path) -> None:
    """(13.13)"""
    with start_server(tmp_path, dev=False, settings=issuer.settings()) as server:
        task = answered(server.request("POST", paths.TASKS, TASK, token=sign(claims())), 202)
        for scope in ("codeq:events", ["codeq:events"]):
            reader = sign(claims(scope=scope))
            calls = [
                (paths.TASKS, TASK),
                (paths.TASKS_BATCH, {"tasks": [TASK]}),
                (f"{paths.TASKS}/{task['id']}/cancel", {}),
            ]
            for path, body in calls:
                problem = refused(server.request("POST", path, body, token=reader), 403, "forbidden")
                assert "codeq:c" in problem["error"]
            answered(server.request("GET", paths.EVENTS, token=reader), 200)
        answered(server.request("POST", paths.TASKS, TASK, token=sign(claims(scope="codeq:create"))), 202)
