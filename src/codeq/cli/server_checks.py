"""The checks of `codeq doctor` on a codeQ server, and on a Redis that is to be the store."""

import http.client
import importlib
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from codeq.cli.machine_checks import CheckResult, ok, problem, warning
from codeq.cli.output import count, format_duration
from codeq.domain.errors import CodeqError

if TYPE_CHECKING:
    from codeq.cli.connect import Endpoint

TIMEOUT_S = 5.0
CLOCK_S_FEW, CLOCK_S_MAX = 3.0, 60.0
"""A `Date` has whole seconds. Past a minute, valid tokens are refused as expired or not yet valid."""
REDIS_LEAST = (6, 2)


def server(endpoint: "Endpoint") -> Iterator[CheckResult]:
    try:
        status, date = _get(endpoint.url, "/healthz")
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
    ready, _ = _get(endpoint.url, "/readyz")
    if ready == 200:
        yield ok("ready", "a write reaches its disk")
    else:
        yield problem("ready", f"/readyz answers {ready}", "see its log; after a failed write, restart it")
    if date is not None:
        yield _clock(date)
    yield _token(endpoint)


def redis(url: str) -> Iterator[CheckResult]:
    try:
        library: Any = importlib.import_module("redis")
    except ImportError:
        yield warning("redis", "not checked: the package redis is not installed", "pip install redis")
        return
    try:
        link = library.Redis.from_url(url, socket_timeout=TIMEOUT_S, decode_responses=True)
        version = str(link.info("server")["redis_version"])
        settings = {name: link.config_get(name).get(name, "") for name in _REDIS_SETTINGS}
    except (library.RedisError, OSError, ValueError) as fault:
        yield problem("redis", f"{_shown(url)}: {fault}", "correct the address or the password, or start it")
        return
    yield from redis_settings(version, settings)


_REDIS_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")


def redis_settings(version: str, settings: dict[str, str]) -> Iterator[CheckResult]:
    """Checks whether tasks are safe with these settings."""
    parts = version.split(".")
    if tuple(int(part) for part in parts[:2] if part.isdigit()) < REDIS_LEAST:
        yield problem("redis", f"version {version}", "codeQ needs Redis 6.2 or newer, or Valkey")
    else:
        yield ok("redis", f"version {version}")
    if settings.get("appendonly") != "yes":
        detail = "appendonly is off: a restart loses tasks"
        yield problem("redis persistence", detail, "CONFIG SET appendonly yes, and in redis.conf")
    elif settings.get("appendfsync") != "always":
        detail = f"appendfsync is {settings.get('appendfsync')}: a power cut loses up to two seconds"
        yield warning("redis persistence", detail, "appendfsync always, or replicas and durability: replicated")
    else:
        yield ok("redis persistence", "appendonly, fsync before every answer")
    policy = settings.get("maxmemory-policy", "")
    if policy not in ("", "noeviction"):
        detail = f"maxmemory-policy is {policy}: tasks are deleted when memory is short"
        yield problem("redis eviction", detail, "CONFIG SET maxmemory-policy noeviction, and in redis.conf")
    else:
        yield ok("redis eviction", "none")


def _get(url: str, path: str) -> tuple[int, str | None]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a server's address is like http://127.0.0.1:8080")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    link = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
    try:
        link.request("GET", parts.path.rstrip("/") + path)
        answer = link.getresponse()
        answer.read()
        return answer.status, answer.headers.get("date")
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


def _shown(url: str) -> str:
    """The address without its password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
