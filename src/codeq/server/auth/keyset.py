"""The public keys of an issuer: fetched in the background, still used while it is down, with a bounded fetch rate."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.callers import CALLER, CALLERS_MAX
from codeq.wire.errors import Unavailable
from codeq.wire.local_server import is_loopback

REFRESH_S = 300.0
COOL_DOWN_S = 10.0
"""The least time between two attempts to fetch keys that are missing or stale."""
CALLER_S = 5.0
"""The least time between two fetches because of unknown key ids of one caller."""
INTERVAL_S = 1.0
"""The same over all callers; one whose turn it is waits for the next fetch rather than being refused."""
STALE_S = 3600.0
"""How long keys that could not be refreshed stay in use."""
DOCUMENT_BYTES_MAX = 256 * 1024
FETCH_S = 5.0
KEYS_MAX = 100

_ALGORITHMS = {"RSA": ("RS256", "RS384", "RS512"), "EC": ("ES256", "ES384", "ES512"), "OKP": ("EdDSA",)}

Fetch = Callable[[], Awaitable[Any]]


class Key:
    __slots__ = ("algorithms", "material")

    def __init__(self, material: Any, algorithms: tuple[str, ...]) -> None:
        self.material = material
        self.algorithms = algorithms


class KeySet:
    def __init__(self, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._published: dict[str, Any] = {}
        self._fetched_s: float | None = None
        self._requested_s = -COOL_DOWN_S
        self._turns: OrderedDict[str, float] = OrderedDict()
        """By caller: when it last had keys fetched because of an unknown id."""
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.revision = 0

    @property
    def is_ready(self) -> bool:
        return self._fetched_s is not None and self._clock() - self._fetched_s < STALE_S

    async def start(self) -> None:
        await self._refresh()
        self._refreshing = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        if self._refreshing:
            self._refreshing.cancel()

    async def find(self, kid: str) -> Key | None:
        """Returns the key of that id. Fetches unknown ones from the issuer, as often as the caller may have it done."""
        if not self.is_ready:
            self._take_turn()
            await self._fetch_missing()
            return self._keys.get(kid)
        key = self._keys.get(kid)
        if key is None and self._take_turn():
            await self._fetch_once(after_s=self._requested_s + INTERVAL_S - self._clock())
            key = self._keys.get(kid)
        return key

    def _take_turn(self) -> bool:
        """Returns whether the caller may have keys fetched now: one that sends random ids delays nobody else."""
        caller, now_s = CALLER.get(), self._clock()
        if now_s - self._turns.get(caller, -CALLER_S) < CALLER_S:
            return False
        self._turns[caller] = now_s
        self._turns.move_to_end(caller)
        if len(self._turns) > CALLERS_MAX:
            self._turns.popitem(last=False)
        return True

    async def _fetch_missing(self) -> None:
        is_fetching = self._fetching is not None and not self._fetching.done()
        if is_fetching or self._clock() - self._requested_s >= COOL_DOWN_S:
            await self._fetch_once()
        if not self.is_ready:
            raise Unavailable("the keys to check tokens with cannot be fetched; try again later")

    async def _fetch_once(self, *, after_s: float = 0.0) -> None:
        """Fetches once for all concurrent callers."""
        if self._fetching is None or self._fetching.done():
            self._requested_s = self._clock() + max(0.0, after_s)
            self._fetching = asyncio.create_task(self._refresh(after_s=after_s))
        await asyncio.shield(self._fetching)

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S if self.is_ready else COOL_DOWN_S)
            await self._refresh()

    async def _refresh(self, *, after_s: float = 0.0) -> None:
        if after_s > 0:
            await asyncio.sleep(after_s)
        try:
            document = await self._fetch()
            keys = read_keys(document)
        except (httpx.HTTPError, OSError, ValueError, RecursionError, InvalidRequest):
            return  # the known keys stay in use until they are stale
        published = {entry["kid"]: entry for entry in document["keys"] if _has_id(entry)}
        if any(published.get(kid) != self._published.get(kid) for kid in self._keys):
            self.revision += 1  # a key was withdrawn or replaced: cached results that rely on it must not outlive it
        self._keys = keys
        self._published = published
        self._fetched_s = self._clock()


def read_keys(document: Any) -> dict[str, Key]:
    """Returns the usable keys of a JWKS document. Raises ValueError if it is none."""
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError("not a set of keys")
    found = {}
    for entry in entries:
        key = _read_key(entry)
        if key:
            found[entry["kid"]] = key
    return found


def _has_id(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("kid"), str)


def _read_key(entry: Any) -> Key | None:
    if not _has_id(entry) or entry.get("use", "sig") != "sig":
        return None
    algorithms = _ALGORITHMS.get(str(entry.get("kty")), ())
    if "alg" in entry:
        algorithms = tuple(a for a in algorithms if a == entry["alg"])
    try:
        material = jwt.PyJWK(entry, algorithm=algorithms[0]).key if algorithms else None
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError, OverflowError):
        return None  # one entry that is no key spares the others
    if material is None or (entry["kty"] == "RSA" and material.key_size < 2048):
        return None
    return Key(material, algorithms)


def fetch_from(url: str) -> Fetch:
    try:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
    except ValueError:
        scheme, host = "", None
    if not host or (scheme != "https" and not (scheme == "http" and is_loopback(host))):
        raise InvalidRequest(
            f"a key set is fetched over https:// (over http:// from this machine only), not from {url[:60]!r}: "
            "whoever can change it on its way can sign tokens"
        )

    async def fetch() -> Any:
        async with (
            httpx.AsyncClient(timeout=FETCH_S, follow_redirects=False, trust_env=False) as client,
            asyncio.timeout(FETCH_S),
            client.stream("GET", url) as answer,
        ):
            answer.raise_for_status()
            body = b""
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > DOCUMENT_BYTES_MAX:
                    raise ValueError("the key set is too large")
        return httpx.Response(200, content=body).json()

    return fetch
