"""The checks of `codeq doctor --redis` on a Redis that is to be the store, in the words of the server at its start."""

import asyncio
import statistics
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from codeq.cli.machine_checks import CheckResult, ok, problem, warning
from codeq.distribution import install_line
from codeq.domain.errors import CodeqError, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from codeq.store.redis.connection import RedisClient
    from codeq.store.redis.durability import NodeSettings

PINGS = 50
ROUND_TRIP_S_SLOW = 0.005
"""A cycle of enqueue, claim and result waits for about four round trips."""
_SCRIPT = "return cmsgpack.unpack(cmsgpack.pack(struct.unpack('>I8', struct.pack('>I8', 7))))"
"""What the scripts of the store need besides commands."""


def redis(url: str) -> Iterator[CheckResult]:
    try:
        yield from asyncio.run(_all(url))
    except ModuleNotFoundError as fault:
        advice = f"install the extra: {install_line('redis')}"
        yield warning("redis", f"not checked: the package {fault.name} is not installed", advice)
    except CodeqError as fault:
        where = _shown(url) if isinstance(fault, StoreError) else "the address"
        advice = "correct the address, the user, the password or the certificate, or start it"
        reason = fault.__cause__ if isinstance(fault, StoreUnavailable) and fault.__cause__ else fault
        yield problem("redis", f"{where}: {reason}", advice)


async def _all(url: str) -> list[CheckResult]:
    from codeq.store.redis.connection import RedisClient, parse_url
    from codeq.store.redis.durability import read_settings
    from codeq.store.redis.keys import PREFIX, ShardKeys

    client, keys = RedisClient(parse_url(url)), ShardKeys(PREFIX, 0)
    try:
        found = await read_settings(client, keys)
        return [*settings(found), await _scripts(client, keys.meta), await _round_trip(client, keys.meta)]
    finally:
        await client.close()


def settings(found: "NodeSettings") -> Iterator[CheckResult]:
    """Checks whether tasks are safe with these settings."""
    from codeq.store.redis import durability
    from codeq.store.redis.opening import VERSION_MIN

    version = f"{found.name} {found.version}"
    if tuple(int(part) for part in found.version.split(".")[:2] if part.isdigit()) < VERSION_MIN:
        yield problem("redis", version, f"codeQ needs Redis {'.'.join(map(str, VERSION_MIN))} or newer, or Valkey")
    else:
        yield ok("redis", version)
    yield _persistence(found)
    evicts = durability.unsafe_eviction(found)
    if evicts is not None:
        yield problem("redis eviction", evicts, "CONFIG SET maxmemory-policy noeviction, and in redis.conf")
    else:
        yield ok("redis eviction", "noeviction: with no memory left, writes are refused and nothing is deleted")
    follows = durability.unsafe_replication(found, replicas=0)
    if follows is not None:
        yield warning("redis replicas", follows, f"store.durability: replicated, store.replicas: {found.replicas}")
    else:
        yield ok("redis replicas", "none is attached")


def _persistence(found: "NodeSettings") -> CheckResult:
    from codeq.store.redis import durability

    name = "redis persistence"
    survives = f"an acknowledged write survives {durability.judge(found, replicas=0).survives}"
    if not found.is_appending:
        fault = durability.unsafe_persistence(found)
        return problem(name, f"{survives}; {fault}", "CONFIG SET appendonly yes, and in redis.conf")
    detail = f"appendonly, appendfsync {found.fsync}: {survives}"
    if found.fsync != "always":
        return warning(name, detail, "appendfsync always, or replicas and store.durability: replicated")
    return ok(name, detail)


async def _scripts(client: "RedisClient", key: str) -> CheckResult:
    try:
        answer = await client.call("EVAL", _SCRIPT, 1, key)
    except StoreError as fault:
        return problem("redis scripts", str(fault), "let this user run EVAL, EVALSHA and the commands of the scripts")
    if answer != 7:
        return problem("redis scripts", f"a script answered {answer!r}, not 7", "this is not a Redis that codeQ knows")
    return ok("redis scripts", "run, with cmsgpack and struct")


async def _round_trip(client: "RedisClient", key: str) -> CheckResult:
    took_s = []
    for _ in range(PINGS):
        started_s = perf_counter()
        await client.call("EXISTS", key)
        took_s.append(perf_counter() - started_s)
    median_s = statistics.median(took_s)
    detail = f"{median_s * 1000:.2f} ms (median of {PINGS})"
    if median_s > ROUND_TRIP_S_SLOW:
        return warning("redis round trip", detail, "run the servers near Redis: every call waits for some of these")
    return ok("redis round trip", detail)


def _shown(url: str) -> str:
    """The address without user and password."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
