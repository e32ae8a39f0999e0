"""The checks of `codeq doctor` on a codeQ server: that it answers, what its writes survive, clock, token."""

import http.client
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from codeq.cli.machine_checks import CheckResult, ok, problem, warning
from codeq.cli.output import count, format_duration
from codeq.domain.errors import CodeqError
from codeq.wire.system import Health

if TYPE_CHECKING:
    from codeq.cli.connect import Endpoint

TIMEOUT_S = 5.0
BODY_BYTES_MAX = 1 << 16
CLOCK_S_FEW, CLOCK_S_MAX = 3.0, 60.0
"""A `Date` has whole seconds. Past a minute, valid tokens are refused as expired or not yet valid."""


def server(endpoint: "Endpoint") -> Iterator[CheckResult]:
    try:
        status, date, _ = _get(endpoint.url, "/healthz")
    except (OSError, http.client.HTTPException, ValueError) as fault:
        yield problem(
            "server",
            f"{endpoint.url} cannot be reached: {fault}",
            "start it with `codeq serve`, or change the address",
        )
        return
    if status != 200:
        yield problem("server", f"{endpoint.url} answers {status} at /healthz", "is this a codeQ server?")
        return
    yield ok("server", f"{endpoint.url} is alive")
    yield from _ready(*_get(endpoint.url, "/readyz"))
    if date is not None:
        yield _clock(date)
    yield _token(endpoint)


def _ready(status: int, _: str | None, body: bytes) -> Iterator[CheckResult]:
    """What the server says of its store. A server of an older version, or a proxy, may say less."""
    try:
        told = msgspec.json.decode(body, type=Health)
    except msgspec.MsgspecError:
        told = Health(status="")
    if status == 200:
        yield ok("ready", "a write reaches its store")
    else:
        reason = f": {told.error}" if told.error else ""
        yield problem("ready", f"/readyz answers {status}{reason}", "see its log; after a failed write, restart it")
    if told.survives:
        yield ok("server durability", f"{told.store}: an acknowledged write survives {told.survives}")
    for unsafe in told.warnings:
        yield warning("server durability", unsafe, "correct the settings of its store; see docs/guides/redis.md")


def _get(url: str, path: str) -> tuple[int, str | None, bytes]:
    """Returns status, `Date` and body."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a server's address is like http://127.0.0.1:8080")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    link = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
    try:
        link.request("GET", parts.path.rstrip("/") + path)
        answer = link.getresponse()
        return answer.status, answer.headers.get("date"), answer.read(BODY_BYTES_MAX)
    finally:
        link.close()


def _clock(date: str) -> CheckResult:
    try:
        apart_s = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    except (ValueError, TypeError):
        return warning("server clock", f"its Date cannot be read: {date}", "check the proxy in front of the server")
    detail = f"{format_duration(abs(apart_s))} {'ahead of' if apart_s > 0 else 'behind'} this machine"
    if abs(apart_s) > CLOCK_S_MAX:
        return problem("server clock", detail, "set both clocks by NTP: valid tokens are refused")
    if abs(apart_s) > CLOCK_S_FEW:
        return warning("server clock", detail, "set both clocks by NTP")
    return ok("server clock", "agrees with this machine")


def _token(endpoint: "Endpoint") -> CheckResult:
    try:
        with endpoint.client(retry_s=0) as client:
            queues = client.queues()
        return ok("token", f"accepted; it sees {count(len(queues), 'queue')} with tasks")
    except CodeqError as fault:
        return problem("token", f"not accepted: {fault}", "give another: --token-file, CODEQ_TOKEN or a profile")
