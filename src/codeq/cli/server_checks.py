"""What `codeq doctor` asks of others: a codeQ server, and a Redis that is to hold the queues."""

import http.client
import importlib
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from codeq.cli.machine_checks import Finding, found, problem, warning
from codeq.cli.output import count, span
from codeq.domain.errors import CodeqError

if TYPE_CHECKING:
    from codeq.cli.connect import Server

TIMEOUT_S = 5.0
CLOCK_S_FEW, CLOCK_S_MAX = 3.0, 60.0
"""A `Date` is whole seconds. Past a minute, tokens that are fine are refused as expired or not yet good."""
REDIS_LEAST = (6, 2)


def server(at: "Server") -> Iterator[Finding]:
    try:
        status, date = _get(at.url, "/healthz")
    except (OSError, http.client.HTTPException, ValueError) as fault:
        yield problem(
            "server", f"{at.url} cannot be reached: {fault}", "start it with `codeq serve`, or mend the address"
        )
        return
    if status != 200:
        yield problem("server", f"{at.url} answers {status} at /healthz", "is this a codeQ server?")
        return
    yield found("server", f"{at.url} is alive")
    ready, _ = _get(at.url, "/readyz")
    if ready == 200:
        yield found("ready", "a write reaches its disk")
    else:
        yield problem("ready", f"/readyz answers {ready}", "its log says why; after a failed write, start it again")
    if date is not None:
        yield _clock(date)
    yield _token(at)


def redis(url: str) -> Iterator[Finding]:
    try:
        library: Any = importlib.import_module("redis")
    except ImportError:
        yield warning("redis", "cannot be looked at: the package redis is not installed", "pip install redis")
        return
    try:
        link = library.Redis.from_url(url, socket_timeout=TIMEOUT_S, decode_responses=True)
        version = str(link.info("server")["redis_version"])
        settings = {name: link.config_get(name).get(name, "") for name in _REDIS_SETTINGS}
    except (library.RedisError, OSError, ValueError) as fault:
        yield problem("redis", f"{_shown(url)}: {fault}", "mend the address or the password, or start it")
        return
    yield from redis_settings(version, settings)


_REDIS_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")


def redis_settings(version: str, settings: dict[str, str]) -> Iterator[Finding]:
    """What the settings of a Redis mean for tasks."""
    parts = version.split(".")
    if tuple(int(part) for part in parts[:2] if part.isdigit()) < REDIS_LEAST:
        yield problem("redis", f"version {version}", "codeQ needs Redis 6.2 or newer, or Valkey")
    else:
        yield found("redis", f"version {version}")
    if settings.get("appendonly") != "yes":
        said = "appendonly is off: a restart loses tasks"
        yield problem("redis persistence", said, "CONFIG SET appendonly yes, and in redis.conf")
    elif settings.get("appendfsync") != "always":
        said = f"appendfsync is {settings.get('appendfsync')}: a power cut loses up to two seconds"
        yield warning("redis persistence", said, "appendfsync always, or replicas and durability: replicated")
    else:
        yield found("redis persistence", "appendonly, fsync before every answer")
    policy = settings.get("maxmemory-policy", "")
    if policy not in ("", "noeviction"):
        said = f"maxmemory-policy is {policy}: when memory is short, tasks vanish"
        yield problem("redis eviction", said, "CONFIG SET maxmemory-policy noeviction, and in redis.conf")
    else:
        yield found("redis eviction", "none")


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


def _clock(date: str) -> Finding:
    try:
        apart_s = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    except (ValueError, TypeError):
        return warning("server clock", f"its Date cannot be read: {date}", "look at what stands in front of the server")
    said = f"{span(abs(apart_s))} {'ahead of' if apart_s > 0 else 'behind'} this machine"
    if abs(apart_s) > CLOCK_S_MAX:
        return problem("server clock", said, "set both clocks by NTP: tokens are refused, and times mean nothing")
    if abs(apart_s) > CLOCK_S_FEW:
        return warning("server clock", said, "set both clocks by NTP")
    return found("server clock", "agrees with this machine")


def _token(at: "Server") -> Finding:
    try:
        with at.client(retry_s=0) as client:
            queues = client.queues()
        return found("token", f"accepted; it sees {count(len(queues), 'queue')} with tasks")
    except CodeqError as fault:
        return problem("token", f"not accepted: {fault}", "say which: --token-file, CODEQ_TOKEN or a profile")


def _shown(url: str) -> str:
    """The address without its password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
