"""Rate limits of servers that share a Redis: one bucket for all of them, and one of each while Redis is away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.redis_servers import RedisNode, start_node
from tests.server.server_process import Server, answered, eventually, refused, start_server

from codeq.domain.errors import StoreUnavailable
from codeq.server.auth.principal import Principal
from codeq.server.ratelimit import Charge, Rate
from codeq.server.shared_ratelimit import STALE_S, SharedRateLimiter
from codeq.store.redis.rate_buckets import RedisBuckets
from codeq.wire import paths
from codeq.wire.errors import RateLimited

CREATE = Charge("producer", "create_task")
CALLER = Principal(tenant="acme", subject="somebody")
TASK = {"command": "work", "payload": 1}
SLOW = {"requests_per_minute": 1, "burst_size": 40}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisNode]:
    with start_node(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, node: RedisNode) -> Iterator[list[Server]]:
    """Two servers on one Redis, with the signing key of one."""
    folder = tmp_path_factory.mktemp("servers")
    settings = {
        "store": {"url": node.url},
        "rate_limit": {"producer": SLOW, "tenant_read": {"requests_per_minute": 1, "burst_size": 4}},
    }
    with (
        start_server(folder / "one", settings=settings, data=folder / "data") as one,
        start_server(folder / "two", settings=settings, data=folder / "data") as two,
    ):
        yield [one, two]


def create(server: Server, token: str, tasks: int = 1) -> httpx.Response:
    return server.request("POST", paths.TASKS_BATCH, {"tasks": [TASK] * tasks}, token=token)


def left(node: RedisNode, bucket: str) -> float:
    return float((node.command("GET", f"{{codeq:0}}:v:{bucket}") or b"40 0").split()[0])


def test_what_one_server_has_spent_the_other_refuses(servers: list[Server], node: RedisNode) -> None:
    one, two = servers
    token = one.token("spent")
    answered(create(one, token, 40), 200)
    eventually(lambda: left(node, "producer:spent:spent-producer") < 1 or None)
    problem = refused(create(two, token), 429, "rate-limited")
    assert (problem["scope"], problem["operation"]) == ("producer", "create_task")
    answer = two.request("POST", paths.TASKS, TASK, token=token)
    assert 50 <= int(answer.headers["retry-after"]) <= 60 == problem["retryAfterSeconds"]
    answered(create(two, one.token("another"), 40), 200)


def test_calls_that_alternate_between_servers_get_one_bucket_in_all(servers: list[Server], node: RedisNode) -> None:
    token, bucket, admitted = servers[0].token("turns"), "producer:turns:turns-producer", 0
    for turn in range(80):
        before = left(node, bucket)
        answer = servers[turn % 2].request("POST", paths.TASKS, TASK, token=token)
        assert answer.status_code in (202, 429)
        if answer.status_code == 202:
            admitted += 1
            eventually(partial(is_below, node, bucket, before))
    # A server hears of the other's calls with its own next one. A slow machine refills a token a minute.
    assert 40 <= admitted <= 44


def is_below(node: RedisNode, bucket: str, tokens: float) -> bool:
    return left(node, bucket) < tokens


def test_all_subjects_of_a_tenant_share_a_bucket_over_servers(servers: list[Server], node: RedisNode) -> None:
    one, two = servers
    for subject in ("a", "b", "c", "d"):
        answered(one.request("GET", paths.QUEUES, token=one.token("readers", subject=subject)), 200)
    eventually(lambda: left(node, "read:readers") < 1 or None)
    answer = two.request("GET", paths.QUEUES, token=one.token("readers", subject="e"))
    assert refused(answer, 429, "rate-limited")["scope"] == "read"


def test_servers_go_on_alone_while_redis_is_away(tmp_path: Path) -> None:
    settings = {"rate_limit": {"read": {"requests_per_minute": 1, "burst_size": 3}}}
    with start_node(tmp_path / "redis") as node:
        store = {"store": {"url": node.url}}
        with start_server(tmp_path / "server", settings=settings | store) as server:
            answered(server.request("GET", paths.QUEUES, token=server.token("early")), 200)
            node.kill()
            late = server.token("late")
            statuses = [server.request("GET", paths.QUEUES, token=late).status_code for _ in range(5)]
            assert statuses[3:] == [429, 429]
            assert statuses[:3] == [503, 503, 503]  # the limit lets them pass, and there is no store
            assert "rate limits are those of this server alone" in server.log_text()
            node.start()


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_buckets_refill_by_the_time_and_expire_when_full(node: RedisNode) -> None:
    async def run() -> None:
        now_ms = [1_000_000]
        buckets = RedisBuckets(node.url, "timed", now_ms=lambda: now_ms[0])
        name, key = ("producer", "a:b", "c d"), "{timed:0}:v:producer:a%3Ab:c%20d"

        async def spend(tokens: float) -> float:
            [answer] = await buckets.spend([(name, tokens, 60, 10)])
            return answer

        assert await spend(0) == 10
        assert node.command("EXISTS", key) == 0  # a look writes nothing
        assert await spend(8) == 2
        assert 7000 < node.command("PTTL", key) <= 8000
        now_ms[0] += 3500
        assert await spend(0) == 5.5
        assert await spend(8) == -2.5
        now_ms[0] -= 60_000
        assert await spend(0) == -2.5  # a clock that was set back gives and takes nothing
        assert await spend(-20) == 10
        assert node.command("EXISTS", key) == 0
        await buckets.close()

    asyncio.run(run())


class LoneBuckets:
    """Buckets that may be out of reach, and count what they are asked."""

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.calls = 0
        self.is_away = False

    async def spend(self, spendings: Sequence[tuple[tuple[str, ...], float, int, int]]) -> list[float]:
        self.calls += 1
        if self.is_away:
            raise StoreUnavailable("away")
        [(_, spent, _, _)] = spendings
        self.tokens -= spent
        return [self.tokens]

    async def close(self) -> None:
        pass


def run_with(buckets: LoneBuckets, test: Callable[[SharedRateLimiter, Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = Clock()
        rates = {"producer": Rate(requests_per_minute=1, burst_size=100)}
        limiter = SharedRateLimiter(rates, {}, buckets, clock=clock)
        await test(limiter, clock)
        await limiter.close()

    asyncio.run(run())


def test_a_bucket_is_asked_for_once_and_then_again_when_nothing_was_heard_of_it() -> None:
    buckets = LoneBuckets(3)

    async def test(limiter: SharedRateLimiter, clock: Clock) -> None:
        assert limiter.is_stale(CREATE, CALLER)
        await asyncio.gather(*(limiter.refresh(CREATE, CALLER) for _ in range(20)))
        assert buckets.calls == 1
        assert not limiter.is_stale(CREATE, CALLER)
        for _ in range(3):
            limiter.spend(CREATE, CALLER)
        with pytest.raises(RateLimited):
            limiter.spend(CREATE, CALLER)
        clock.now_s += STALE_S
        assert limiter.is_stale(CREATE, CALLER)

    run_with(buckets, test)
    assert buckets.tokens == 0  # at the end all is sent


def test_a_bucket_out_of_reach_refuses_nothing_and_is_not_asked_at_every_call() -> None:
    buckets = LoneBuckets(0)
    buckets.is_away = True

    async def test(limiter: SharedRateLimiter, clock: Clock) -> None:
        for _ in range(100):
            await limiter.refresh(CREATE, CALLER)
            limiter.spend(CREATE, CALLER)
        assert buckets.calls <= 2
        with pytest.raises(RateLimited):
            limiter.spend(CREATE, CALLER)
        clock.now_s += STALE_S
        buckets.is_away, buckets.tokens = False, 101  # what was spent meanwhile is paid
        await limiter.refresh(CREATE, CALLER)
        limiter.spend(CREATE, CALLER)

    run_with(buckets, test)
