"""The name under which all processes of an installation own the artifacts of its tasks, agreed upon in Redis."""

from codeq.store.redis.connection import RedisClient, parse_url
from codeq.store.redis.keys import ShardKeys

_FIELD = "artifacts"


async def agree_on_owner(url: str, prefix: str, proposed: str) -> str:
    """Returns the name that the first process proposed."""
    connection, meta = RedisClient(parse_url(url)), ShardKeys(prefix, 0).meta
    try:
        await connection.call("HSETNX", meta, _FIELD, proposed)
        found: bytes = await connection.call("HGET", meta, _FIELD)
        return found.decode()
    finally:
        await connection.close()
