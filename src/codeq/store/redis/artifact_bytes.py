"""How many bytes of artifacts each tenant has stored, counted in Redis for all servers that share it."""

from urllib.parse import unquote

from codeq.store.redis.connection import LuaScript, RedisClient, parse_url
from codeq.store.redis.keys import ShardKeys, quoted

STORED_BYTES = LuaScript("stored_bytes")


class RedisArtifactBytes:
    """Implements `usecases.artifact_storage.SharedBytes`. Connects at the first call, apart from the store."""

    def __init__(self, url: str, prefix: str) -> None:
        self._connection = RedisClient(parse_url(url))
        self._key = ShardKeys(prefix, 0).artifact_bytes

    async def add(self, tenant: str, size: int, most: int) -> tuple[bool, int]:
        is_added, before = await self._connection.run(STORED_BYTES, [self._key], [quoted(tenant), size, most])
        return bool(is_added), int(before)

    async def of(self, tenant: str) -> int:
        return int(await self._connection.call("HGET", self._key, quoted(tenant)) or 0)

    async def all(self) -> dict[str, int]:
        found: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, part = await self._connection.call("HSCAN", self._key, cursor, "COUNT", 1000)
            found |= {unquote(part[place].decode()): int(part[place + 1]) for place in range(0, len(part), 2)}
            if int(cursor) == 0:
                return found

    async def close(self) -> None:
        await self._connection.close()
