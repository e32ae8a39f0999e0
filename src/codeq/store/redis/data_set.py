"""Which data set is in Redis: its format, its number of shards, and whether it is still the one that was opened."""

import logging

from codeq.domain.errors import InvalidRequest, StoreMismatch
from codeq.domain.limits import SHARDS_MAX
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys

FORMAT = 2

_log = logging.getLogger("codeq.redis")


class DataSet:
    """Agreed on by all processes that open it, and looked at again while this one runs."""

    def __init__(self, connection: RedisClient, keys: ShardKeys, *, process: str) -> None:
        self._connection = connection
        self._keys = keys
        self._process = process
        self.shards = 0
        self.identity = b""
        """The process that made it."""

    async def agree(self, wanted: int | None) -> None:
        """Makes the data set if there is none. Raises StoreMismatch if it has another format or number of shards; None
        takes the existing one, or one shard."""
        if wanted is not None and not 1 <= wanted <= SHARDS_MAX:
            raise InvalidRequest(f"shards must be 1 to {SHARDS_MAX}, not {wanted}")
        meta = self._keys.meta
        for name, value in (("shards", wanted or 1), ("format", FORMAT), ("made_by", self._process)):
            await self._connection.call("HSETNX", meta, name, value)
        *numbers, self.identity = await self._connection.call("HMGET", meta, "shards", "format", "made_by")
        if not all((number or b"").isdigit() for number in numbers):
            raise StoreMismatch(f"{meta} in this Redis is not codeQ's: its shards and format are {numbers}")
        shards, format_ = map(int, numbers)
        if format_ > FORMAT:
            raise StoreMismatch(f"this Redis has data of a newer codeQ (format {format_}, this one knows {FORMAT})")
        if format_ < FORMAT:
            raise StoreMismatch(
                f"this Redis has data of an unreleased codeQ (format {format_}, this one knows {FORMAT}); use "
                "another prefix"
            )
        if wanted is not None and wanted != shards:
            raise StoreMismatch(
                f"the data in this Redis has {shards} shards, not {wanted}, and tasks cannot change their shard. Use "
                f"{shards}, or another prefix"
            )
        self.shards = shards

    async def look(self) -> bool:
        """Returns whether the data set was deleted or replaced under this process, and logs it. It goes on with
        what is there now. Raises StoreMismatch if that has another number of shards."""
        if await self._connection.call("HGET", self._keys.meta, "made_by") == self.identity:
            return False
        before = self.identity
        await self.agree(self.shards)
        _log.error(
            "the tasks in Redis are not those that were opened: somebody has deleted or replaced them, or Redis has "
            "started without its data. What was acknowledged before is gone, unless you stop all servers and restore",
            extra={"fields": {"opened": before.decode(), "found": self.identity.decode()}},
        )
        return True
