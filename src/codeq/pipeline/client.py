"""How the pipeline calls the service: events as Arrow, tasks in bulk, and patience while the server is away."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from codeq.errors import InvalidRequest, RateLimited, StoreError, Unavailable, Unreachable
from codeq.sdk.blocking import run_blocking
from codeq.sdk.client import DEFAULT_URL
from codeq.sdk.http import HttpBackend
from codeq.sdk.http_client import HttpClient
from codeq.sdk.transport import BlockingTransport, address_of
from codeq.wire import events as wire
from codeq.wire import paths, tasks
from codeq.wire.message import Wire

TRANSIENT = (Unreachable, Unavailable, RateLimited, StoreError)
"""Faults that pass by themselves: the server is away, is busy, or asks to come back later."""

TIMEOUT_S = 60.0
ONE_TRY_S = 2.0
"""How long one call is repeated before we say that the server is away."""
SAY_EVERY_S = 10.0

Done = TypeVar("Done")
_pack = msgspec.msgpack.Encoder().encode


class Connection(Struct, frozen=True, kw_only=True):
    """Where the server is and how to get a token. It travels to executors, so it holds no secret itself."""

    endpoint: str = DEFAULT_URL
    token_file: str | None = None
    token_env: str | None = None
    ca_file: str | None = None

    def token(self) -> str:
        """Read anew at each call: a token in a file may be renewed while a query runs."""
        if self.token_file is not None:
            try:
                return Path(self.token_file).read_text().strip()
            except OSError as fault:
                raise InvalidRequest(f"tokenFile {self.token_file!r} cannot be read: {fault}") from None
        name = self.token_env or "CODEQ_TOKEN"
        token = os.environ.get(name, "").strip()
        if not token:
            raise InvalidRequest(
                f"a token is needed: give tokenFile or tokenEnv, or set {name} before Spark starts (on executors of a "
                f"cluster by spark.executorEnv.{name})"
            )
        return token


class Span(NamedTuple):
    """What a shard has: events `first` to `end - 1`; and where a read got to, or a time lies."""

    first: int
    end: int
    next: int
    shards: int


class Wanted(Struct, frozen=True, kw_only=True):
    """Which events, and what of them."""

    commands: tuple[str, ...] = ()
    tenant: str | None = None
    with_payload: bool = False

    @property
    def query(self) -> dict[str, str]:
        given = {
            "command": ",".join(self.commands),
            "tenant": self.tenant,
            "includePayload": "true" if self.with_payload else "",
        }
        return {name: value for name, value in given.items() if value}


class Taken(Wire, frozen=True, kw_only=True, gc=False):
    """What became of one order; the task itself is passed over."""

    error: str | None = None
    code: str | None = None
    replayed: bool = False


class AllTaken(Wire, frozen=True, kw_only=True, gc=False):
    results: list[Taken]


_taken = msgspec.msgpack.Decoder(AllTaken).decode


class Calls:
    """Blocking calls, for any thread. Each is repeated for `retry_s` while that may help."""

    def __init__(self, connection: Connection, *, retry_s: float = ONE_TRY_S) -> None:
        address = address_of(connection.endpoint, connection.ca_file)
        self.http = HttpClient(
            BlockingTransport(address), address, connection.token, timeout_s=TIMEOUT_S, retry_s=retry_s
        )
        self.backend = HttpBackend(self.http)

    def span(self, shard: int, *, at: str | None = None) -> Span:
        """What the shard has. With `at`, `next` is the first event that is not older."""
        query: dict[str, Any] = {"shard": shard, "at": at} if at else {"shard": shard, "offset": 1 << 62, "limit": 1}
        answer = run_blocking(self.http.send("GET", f"{paths.EVENTS}?{urlencode(query)}"))
        page = msgspec.json.decode(answer.body, type=wire.EventPage)
        return Span(page.first_offset, page.end_offset, page.next_offset, page.shards)

    def spans(self, *, at: str | None = None) -> dict[int, Span]:
        first = self.span(0, at=at)
        return {0: first, **{shard: self.span(shard, at=at) for shard in range(1, first.shards)}}

    def events(self, shard: int, offset: int, limit: int, wanted: Wanted) -> tuple[bytes, Span]:
        """An Arrow stream of the events that are wanted among `limit` from `offset` on."""
        query = {"shard": shard, "offset": offset, "limit": limit, **wanted.query}
        answer = run_blocking(self.http.send("GET", f"{paths.EVENTS}?{urlencode(query)}", accept=wire.ARROW_LZ4))
        names = (wire.FIRST_OFFSET, wire.END_OFFSET, wire.NEXT_OFFSET, wire.SHARDS)
        return answer.body, Span._make(int(answer.headers[name]) for name in names)

    def enqueue(self, orders: Sequence[tasks.PackedTask]) -> list[Taken]:
        """Per order, of up to 1000, what became of it."""
        answer = run_blocking(self.http.send("POST", paths.TASKS_BATCH, _pack({"tasks": orders}), packed=True))
        return _taken(answer.body).results

    def close(self) -> None:
        run_blocking(self.http.close())


def patiently(call: Callable[[], Done], what: str, *, within_s: float | None) -> Done:
    """Call until it succeeds; give up after `within_s` of transient faults, or never. Says so now and then."""
    deadline_s = None if within_s is None else time.monotonic() + within_s
    quiet_until_s = 0.0
    while True:
        try:
            return call()
        except TRANSIENT as fault:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise
            if time.monotonic() >= quiet_until_s:
                say(f"{what}: {fault}; trying again")
                quiet_until_s = time.monotonic() + SAY_EVERY_S
            time.sleep(0.2)


def say(text: str) -> None:
    """One line on standard error, which is where the logs of Spark's Python processes go."""
    sys.stderr.write(f"codeq: {text}\n")
    sys.stderr.flush()
