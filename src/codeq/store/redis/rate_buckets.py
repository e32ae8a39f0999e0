"""Token buckets in Redis, shared by all processes of an installation. What a call costs is the server's business."""

from collections.abc import Callable, Sequence

from codeq.store.redis.connection import LuaScript, RedisClient, parse_url
from codeq.store.redis.keys import ShardKeys

RATES = LuaScript("rates")

BucketSpending = tuple[tuple[str, ...], float, int, int]
"""The bucket's name, tokens to spend, tokens per minute, and tokens of a full bucket."""


class RedisBuckets:
    """Connects at the first call, apart from the store: a full pool of connections there delays nothing here."""

    def __init__(self, url: str, prefix: str, *, now_ms: Callable[[], int] | None = None) -> None:
        self._connection = RedisClient(parse_url(url))
        self._keys = ShardKeys(prefix, 0)
        self._now_ms = now_ms

    async def spend(self, spendings: Sequence[BucketSpending]) -> list[float]:
        """Spends in all these buckets in one step, and returns what is left in each. Raises StoreError; whether the
        tokens were spent is unknown then, and nothing is sent again."""
        arguments: list[float | int | str] = ["" if self._now_ms is None else self._now_ms()]
        for _, tokens, per_minute, burst in spendings:
            arguments += [tokens, per_minute, burst]
        names = [self._keys.bucket(name) for name, *_ in spendings]
        return [float(left) for left in await self._connection.run(RATES, names, arguments)]

    async def close(self) -> None:
        await self._connection.close()
