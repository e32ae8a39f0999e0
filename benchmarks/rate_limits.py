"""Measure what a rate limit costs a request: in memory, shared through Redis, and with a round trip for each request.

`python benchmarks/rate_limits.py` paces requests of some callers evenly, and prints CPU per request of this process
and of Redis, in alternating turns.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from tests.redis_servers import RedisNode, start_node

from codeq.server.auth.principal import Principal
from codeq.server.ratelimit import Charge, Rate, RateLimiter
from codeq.server.shared_ratelimit import SharedRateLimiter
from codeq.store.redis.rate_buckets import RedisBuckets

TURNS = 5
CREATE = Charge("producer", "create_task")
PER_SUBJECT = {"producer": Rate(requests_per_minute=60_000_000, burst_size=1_000_000)}
PER_TENANT = {"producer": Rate(requests_per_minute=60_000_000, burst_size=1_000_000)}

Admit = Callable[[Principal], Awaitable[None]]


async def paced(admit: Admit, rate_per_s: int, requests: int) -> None:
    """Lets requests arrive every two milliseconds, by ten callers in turn."""
    callers = [Principal(tenant="acme", subject=f"caller-{number}") for number in range(10)]
    at_once = max(1, rate_per_s // 500)
    start_s = time.perf_counter()
    for number in range(requests):
        await admit(callers[number % len(callers)])
        if number % at_once == 0:
            await asyncio.sleep(max(0, start_s + number / rate_per_s - time.perf_counter()))


async def nothing(rate_per_s: int, requests: int, _: str) -> None:
    async def admit(caller: Principal) -> None:
        pass

    await paced(admit, rate_per_s, requests)


async def in_memory(rate_per_s: int, requests: int, _: str) -> None:
    limiter = RateLimiter(PER_SUBJECT, PER_TENANT)

    async def admit(caller: Principal) -> None:
        limiter.spend(CREATE, caller)

    await paced(admit, rate_per_s, requests)


async def shared(rate_per_s: int, requests: int, url: str) -> None:
    limiter = SharedRateLimiter(PER_SUBJECT, PER_TENANT, RedisBuckets(url, "shared"))

    async def admit(caller: Principal) -> None:
        if limiter.is_stale(CREATE, caller):
            await limiter.refresh(CREATE, caller)
        limiter.spend(CREATE, caller)

    await paced(admit, rate_per_s, requests)
    await limiter.close()


async def round_trips(rate_per_s: int, requests: int, url: str) -> None:
    buckets = RedisBuckets(url, "trips")

    async def admit(caller: Principal) -> None:
        rate = PER_SUBJECT["producer"]
        names = (("producer", caller.tenant, caller.subject), ("producer", caller.tenant))
        await buckets.spend([(name, 1, rate.requests_per_minute, rate.burst_size) for name in names])

    await paced(admit, rate_per_s, requests)
    await buckets.close()


WAYS = {"no limiter": nothing, "in memory": in_memory, "shared": shared, "a round trip each": round_trips}


def main(*, rate: Annotated[int, typer.Option(help="requests per second")] = 1000) -> None:
    table = Table(title=f"CPU per request in µs at {rate} requests/s, median of alternating turns")
    for column in ("limiter", "process", "Redis", "scripts per request"):
        table.add_column(column, justify="left" if column == "limiter" else "right")
    requests = rate
    figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder, start_node(Path(folder), appendonly="yes") as node:
        for _ in range(TURNS):
            for name, way in WAYS.items():
                before = counters(node)
                asyncio.run(way(rate, requests, node.url))
                after = counters(node)
                figures[name].append(tuple((new - old) / requests for new, old in zip(after, before, strict=True)))
    for name, turns in figures.items():
        process_us, redis_us, scripts = map(statistics.median, zip(*turns, strict=True))
        table.add_row(name, f"{process_us:.1f}", f"{redis_us:.1f}", f"{scripts:.3f}")
    Console().print(table)


def counters(node: RedisNode) -> tuple[float, float, float]:
    with node.client() as client:
        cpu, stats = client.info("cpu"), client.info("commandstats")
    redis_us = (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6
    return time.process_time() * 1e6, redis_us, stats.get("cmdstat_evalsha", {"calls": 0})["calls"]


if __name__ == "__main__":
    typer.run(main)
