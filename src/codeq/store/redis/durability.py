"""What an acknowledged write survives on this Redis, in plain words, and what is unsafe about its settings."""

from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from codeq.domain.errors import StoreError
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys

LOOK_EVERY_S = 60.0
"""How often a running process reads the settings again: after a failover another server has others."""


class Durability(Struct, frozen=True, kw_only=True):
    level: str
    """`none`, `process` (it survives a kill), `fsync` (and power loss) or `replicated` (and loss of the primary)."""
    survives: str
    """What an acknowledged write survives."""
    warnings: tuple[str, ...] = ()
    """Settings that may lose acknowledged tasks."""


class NodeSettings(Struct, frozen=True, kw_only=True):
    """What a Redis server tells of itself."""

    version: str
    """Of Redis, whose commands it has."""
    name: str = "Redis"
    is_appending: bool
    fsync: str
    """`always`, `everysec` or `no`; `unknown` where the service hides it."""
    eviction: str
    replicas: int
    """That are attached."""


async def inspect(client: RedisClient, keys: ShardKeys, *, replicas: int) -> Durability:
    """Reads the settings of the node that has the keys. Services that hide their settings say so in a warning."""
    return judge(await read_settings(client, keys), replicas=replicas)


async def read_settings(client: RedisClient, keys: ShardKeys) -> NodeSettings:
    server = await client.info(keys.meta, "server")
    replication = await client.info(keys.meta, "replication")
    memory = await client.info(keys.meta, "memory")
    persistence = await client.info(keys.meta, "persistence")
    valkey = server.get("valkey_version")
    return NodeSettings(
        version=str(server.get("redis_version", "0.0")),
        name=f"Valkey {valkey}, which has the commands of Redis" if valkey else "Redis",
        is_appending=bool(int(persistence.get("aof_enabled", 0))),
        fsync=await _fsync(client, keys),
        eviction=str(memory.get("maxmemory_policy", "unknown")),
        replicas=int(replication.get("connected_slaves", 0)),
    )


async def _fsync(client: RedisClient, keys: ShardKeys) -> str:
    try:
        return await client.config(keys.meta, "appendfsync")
    except StoreError:
        return "unknown"


def judge(found: NodeSettings, *, replicas: int) -> Durability:
    """Returns what a write survives with these settings, if calls wait for this many replicas."""
    level, survives = _survives(found)
    if replicas:
        level = "replicated"
        survives += f", and the loss of the primary, because {replicas} replica(s) have it"
    faults = (unsafe_eviction(found), unsafe_replication(found, replicas=replicas), unsafe_persistence(found))
    warnings = tuple(fault for fault in faults if fault is not None)
    return Durability(level=level, survives=survives, warnings=warnings)


def _survives(found: NodeSettings) -> tuple[str, str]:
    if not found.is_appending:
        return "none", "nothing but a restart of codeQ"
    if found.fsync == "always":
        return "fsync", "kill -9 of Redis and power loss"
    loss = "two seconds" if found.fsync == "everysec" else "half minute"
    return "process", f"kill -9 of Redis; a power loss may take the last {loss}"


def unsafe_persistence(found: NodeSettings) -> str | None:
    if not found.is_appending:
        return "appendonly is off: a restart of Redis loses what was acknowledged since the last snapshot"
    if found.fsync not in ("always", "everysec"):
        return f"appendfsync is {found.fsync}: a power loss may take what the system had not written yet"
    return None


def unsafe_eviction(found: NodeSettings) -> str | None:
    if found.eviction == "noeviction":
        return None
    return f"maxmemory-policy is {found.eviction}: Redis may delete tasks when memory is short; set noeviction"


def unsafe_replication(found: NodeSettings, *, replicas: int) -> str | None:
    if replicas > found.replicas:
        return f"{found.replicas} replicas are attached, and {replicas} must confirm: every write will be refused"
    if 0 < replicas < found.replicas:
        return (
            f"{found.replicas} replicas are attached, and calls wait for {replicas} of them: a failover to another one "
            f"loses what that one lacks; store.replicas: {found.replicas} waits for all"
        )
    if found.replicas and not replicas:
        return f"{found.replicas} replica(s) follow later: a failover may lose the newest writes; use `replicated`"
    return None


class DurabilityWatch:
    """Tells what a write survives when that has changed while the process runs."""

    def __init__(
        self,
        client: RedisClient,
        keys: ShardKeys,
        *,
        replicas: int,
        known: Durability,
        on_change: Callable[[Durability], None],
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._client = client
        self._keys = keys
        self._replicas = replicas
        self._on_change = on_change
        self._known = known
        self._every_s = every_s
        self._looked_s = monotonic()

    async def look(self) -> None:
        """Reads the settings again, unless that was a short time ago."""
        if monotonic() - self._looked_s < self._every_s:
            return
        self._looked_s = monotonic()
        found = await inspect(self._client, self._keys, replicas=self._replicas)
        if found != self._known:
            self._known = found
            self._on_change(found)
