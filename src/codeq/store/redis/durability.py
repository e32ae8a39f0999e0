"""What an acknowledged write survives on this Redis, in plain words, and what is unsafe about its settings."""

from typing import Any

from msgspec import Struct

from codeq.domain.errors import StoreError
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys


class Durability(Struct, frozen=True, kw_only=True):
    survives: str
    """What an acknowledged write survives."""
    warnings: tuple[str, ...] = ()
    """Settings that may lose acknowledged tasks."""


async def inspect(client: RedisClient, keys: ShardKeys, *, replicas: int) -> Durability:
    """Reads the settings of the node that has the keys. Services that hide their settings say so in a warning."""
    replication = await client.info(keys.meta, "replication")
    memory = await client.info(keys.meta, "memory")
    persistence = await client.info(keys.meta, "persistence")
    warnings: list[str] = []
    policy = str(memory.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        warnings.append(f"maxmemory-policy is {policy}: Redis may delete tasks when memory is short; set noeviction")
    attached = int(replication.get("connected_slaves", 0))
    if replicas > attached:
        warnings.append(f"{attached} replicas are attached, and {replicas} must confirm: every write will be refused")
    survives = await _survives(client, keys, persistence, warnings)
    if replicas:
        survives += f", and the loss of the primary, because {replicas} replica(s) have it"
    elif attached:
        warnings.append(f"{attached} replica(s) follow later: a failover may lose the newest writes; use `replicated`")
    return Durability(survives=survives, warnings=tuple(warnings))


async def _survives(client: RedisClient, keys: ShardKeys, persistence: dict[str, Any], warnings: list[str]) -> str:
    if not int(persistence.get("aof_enabled", 0)):
        warnings.append("appendonly is off: a restart of Redis loses what was acknowledged since the last snapshot")
        return "nothing but a restart of codeQ"
    fsync = await _fsync(client, keys)
    if fsync == "always":
        return "kill -9 of Redis and power loss"
    if fsync == "everysec":
        return "kill -9 of Redis; a power loss may take the last two seconds"
    warnings.append(f"appendfsync is {fsync}: a power loss may take what the system had not written yet")
    return "kill -9 of Redis; a power loss may take the last half minute"


async def _fsync(client: RedisClient, keys: ShardKeys) -> str:
    try:
        return await client.config(keys.meta, "appendfsync")
    except StoreError:
        return "unknown"
