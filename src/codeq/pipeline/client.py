"""Calls the codeQ server for the pipeline: reads events as Arrow, enqueues in bulk, and retries transient failures."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from codeq.errors import InvalidRequest, QuotaExceeded, RateLimited, StoreError, Unavailable, Unreachable
from codeq.sdk.blocking import run_blocking
from codeq.sdk.http import HttpBackend
from codeq.sdk.http_client import HttpClient
from codeq.sdk.transport import BlockingTransport, address_of
from codeq.wire import events as wire
from codeq.wire import paths, tasks
from codeq.wire.client import ItemVerdict, ItemVerdicts
from codeq.wire.local_server import DEFAULT_URL

TRANSIENT = (Unreachable, Unavailable, RateLimited, QuotaExceeded, StoreError)
"""Errors after which the same call may succeed later."""

TIMEOUT_S = 60.0
CALL_RETRY_S = 2.0
"""How long one call is retried before its error is raised."""
LOG_EVERY_S = 10.0
_RETRY_PAUSE_S = 0.2

Result = TypeVar("Result")
_encode = msgspec.msgpack.Encoder().encode
_decode_verdicts = msgspec.msgpack.Decoder(ItemVerdicts).decode


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The server's address and where to find the token. Sent to executors, so it holds no secret itself."""

    endpoint: str = DEFAULT_URL
    token_file: str | None = None
    token_env: str | None = None
    ca_file: str | None = None

    def token(self) -> str:
        """Reads the token again at each call: a token in a file may be renewed while a query runs."""
        if self.token_file is not None:
            try:
                return Path(self.token_file).read_text().strip()
            except OSError as fault:
                raise InvalidRequest(f"tokenFile {self.token_file!r} cannot be read: {fault}") from None
        name = self.token_env or "CODEQ_TOKEN"
        token = os.environ.get(name, "").strip()
        if not token:
            raise InvalidRequest(
                f"there is no token: give tokenFile or tokenEnv, or set {name} before Spark starts (for executors of a "
                f"cluster with spark.executorEnv.{name})"
            )
        return token


class LogBounds(NamedTuple):
    """The log of a shard holds events `first` to `end - 1`. `next` is where a read continues, or the first event at or
    after a time.
    """

    first: int
    end: int
    next: int
    shards: int
    log_id: str = ""
    """Which log it is: offsets of one mean nothing in another. Empty if the server does not tell."""
    scope: str = ""
    """Whose events the caller gets; empty for all."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Selects events by command and tenant, with or without payloads."""

    commands: tuple[str, ...] = ()
    tenant: str | None = None
    with_payload: bool = False

    @property
    def query(self) -> dict[str, str]:
        parameters = {
            "command": ",".join(self.commands),
            "tenant": self.tenant,
            "includePayload": "true" if self.with_payload else "",
        }
        return {name: value for name, value in parameters.items() if value}


ALL_EVENTS = EventFilter()


class PipelineClient:
    """Blocking calls, usable from any thread. Each call is retried for `retry_s` after transient failures."""

    def __init__(self, server: ServerOptions, *, retry_s: float = CALL_RETRY_S) -> None:
        address = address_of(server.endpoint, server.ca_file)
        self.http = HttpClient(BlockingTransport(address), address, server.token, timeout_s=TIMEOUT_S, retry_s=retry_s)
        self.backend = HttpBackend(self.http)

    def log_bounds(self, *, at: str | None = None, event_filter: EventFilter = ALL_EVENTS) -> dict[int, LogBounds]:
        """Returns the bounds of each shard's log. With `at`, `next` is the first event that is not older."""
        more: dict[str, Any] = {"at": at} if at else {"offset": wire.PAST_THE_END, "limit": 1}
        more |= event_filter.query
        first = self._bounds_of(0, more)
        return {0: first, **{shard: self._bounds_of(shard, more) for shard in range(1, first.shards)}}

    def _bounds_of(self, shard: int, more: dict[str, Any]) -> LogBounds:
        query = {"shard": shard, **more}
        answer = run_blocking(self.http.send("GET", f"{paths.EVENTS}?{urlencode(query)}"))
        page = msgspec.json.decode(answer.body, type=wire.EventPage)
        return LogBounds(page.first_offset, page.end_offset, page.next_offset, page.shards, page.log_id, page.scope)

    def events(self, shard: int, offset: int, limit: int, event_filter: EventFilter) -> tuple[bytes, LogBounds]:
        """Reads `limit` events from `offset` on, and returns those that pass the filter as an Arrow stream."""
        query = {"shard": shard, "offset": offset, "limit": limit, **event_filter.query}
        answer = run_blocking(self.http.send("GET", f"{paths.EVENTS}?{urlencode(query)}", accept=wire.ARROW_LZ4))
        names = (wire.FIRST_OFFSET, wire.END_OFFSET, wire.NEXT_OFFSET, wire.SHARDS)
        first, end, following, shards = (int(answer.headers[name]) for name in names)
        log_id, scope = (answer.headers.get(name, b"").decode("ascii") for name in (wire.LOG_ID, wire.SCOPE))
        return answer.body, LogBounds(first, end, following, shards, log_id, scope)

    def enqueue(self, new_tasks: Sequence[tasks.PackedTask]) -> list[ItemVerdict]:
        """Enqueues up to 1000 tasks in one call, and returns a verdict for each.

        Raises QuotaExceeded if there is no room for all of them; sent again, those that were accepted are duplicates.
        """
        answer = run_blocking(self.http.send("POST", paths.TASKS_BATCH, _encode({"tasks": new_tasks}), packed=True))
        verdicts = _decode_verdicts(answer.body).results
        for verdict in verdicts:
            if verdict.code == QuotaExceeded.code:
                raise QuotaExceeded(verdict.error or "")
        return verdicts

    def close(self) -> None:
        run_blocking(self.http.close())


def retry_transient(call: Callable[[], Result], failure: str, *, within_s: float | None) -> Result:
    """Repeats the call until it succeeds. After `within_s` of transient errors the last one is raised; None retries
    forever. Logs `failure` and the error every ten seconds.
    """
    deadline_s = None if within_s is None else time.monotonic() + within_s
    quiet_until_s = 0.0
    while True:
        try:
            return call()
        except TRANSIENT as fault:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise
            if time.monotonic() >= quiet_until_s:
                log_line(f"{failure}: {fault}; trying again")
                quiet_until_s = time.monotonic() + LOG_EVERY_S
            time.sleep(_RETRY_PAUSE_S)


def log_line(text: str) -> None:
    """Writes one line to standard error, where the logs of Spark's Python processes go."""
    sys.stderr.write(f"codeq: {text}\n")
    sys.stderr.flush()
