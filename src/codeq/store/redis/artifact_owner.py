"""The name under which all processes of an installation own the artifacts of its tasks, agreed upon in Redis."""

from collections.abc import Callable

from codeq.store.redis.connection import RedisClient, parse_url
from codeq.store.redis.keys import ShardKeys

_FIELD = "artifacts"


async def agree_on_owner(url: str, prefix: str, propose: Callable[[], str]) -> str:
    """Returns the name that the first process proposed. Each is to propose another one each time: after a loss of all
    data in Redis, what is in the object store is nobody's, and not deleted as files of tasks that do not exist."""
    connection, meta = RedisClient(parse_url(url)), ShardKeys(prefix, 0).meta
    try:
        await connection.call("HSETNX", meta, _FIELD, propose())
        found: bytes = await connection.call("HGET", meta, _FIELD)
        return found.decode()
    finally:
        await connection.close()
