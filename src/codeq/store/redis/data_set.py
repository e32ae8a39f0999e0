"""Which data set is in Redis: its format, its number of shards, and whether it is still the one that was opened."""

import asyncio
import logging
from collections.abc import Callable

from codeq.domain.errors import InvalidRequest, StoreMismatch
from codeq.domain.limits import SHARDS_MAX
from codeq.store.redis.connection import RedisClient
from codeq.store.redis.keys import ShardKeys

FORMAT = 2

_log = logging.getLogger("codeq.redis")


class DataSet:
    """Agreed on by all processes that open it, and looked at again while this one runs."""

    def __init__(self, connection: RedisClient, prefix: str, *, process: str, make_log_id: Callable[[], str]) -> None:
        self._connection = connection
        self._prefix = prefix
        self._process = process
        self._make_log_id = make_log_id
        self.identities: list[bytes] = []
        """By shard, the mark of who made it: the nodes of a cluster may lose their data one by one."""
        self.log_id = ""
        """Whoever reads events must be able to see that their numbers begin anew."""

    @property
    def shards(self) -> int:
        return len(self.identities)

    async def agree(self, wanted: int | None) -> None:
        """Makes the data set if there is none. Raises StoreMismatch if it has another format or number of shards; None
        takes the existing one, or one shard."""
        if wanted is not None and not 1 <= wanted <= SHARDS_MAX:
            raise InvalidRequest(f"shards must be 1 to {SHARDS_MAX}, not {wanted}")
        meta = self._meta(0)
        for name, value in (("shards", wanted or 1), ("format", FORMAT)):
            await self._connection.call("HSETNX", meta, name, value)
        numbers = await self._connection.call("HMGET", meta, "shards", "format")
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
        self.identities = [await self._mark(self._meta(number)) for number in range(shards)]
        self.log_id = await self._agree_on_log_id()

    async def look(self) -> None:
        """Logs it if shards were deleted or replaced under this process, and goes on with what is there now. Raises
        StoreMismatch if that has another number of shards."""
        metas = map(self._meta, range(self.shards))
        found = await asyncio.gather(*(self._connection.call("HGET", meta, "made_by") for meta in metas))
        lost = [number for number, before in enumerate(self.identities) if found[number] != before]
        if not lost:
            self.log_id = await self._agree_on_log_id()
            return
        if any(number and found[number] is None for number in lost):
            # Before `agree` marks the shard: a process that finds the mark must find the new id of the log as well.
            await self._connection.call("HSET", self._meta(0), "log", self._make_log_id())
        before = self.identities
        await self.agree(self.shards)
        _log.error(
            "the tasks in Redis are not those that were opened: somebody has deleted or replaced them, or Redis has "
            "started without its data. What was acknowledged before is gone, unless you stop all servers and restore",
            extra={
                "fields": {
                    "shards": lost,
                    "opened": [before[number].decode() for number in lost],
                    "found": [self.identities[number].decode() for number in lost],
                }
            },
        )

    def _meta(self, shard: int) -> str:
        return ShardKeys(self._prefix, shard).meta

    async def _mark(self, meta: str) -> bytes:
        """Returns the mark of the process that has made the shard: this one, if there was none. No two are the same, or
        others would not notice that the one that made it had to make it again."""
        await self._connection.call("HSETNX", meta, "made_by", f"{self._process} {self._make_log_id()}")
        return bytes(await self._connection.call("HGET", meta, "made_by"))

    async def _agree_on_log_id(self) -> str:
        """Returns the id of the log, which the first opening sets. Redis starts from a backup as after a crash, so
        nobody can tell that it was restored: whoever restores one deletes this field, and the next opening sets
        another."""
        meta = self._meta(0)
        found = await self._connection.call("HGET", meta, "log")
        if found is None:
            await self._connection.call("HSETNX", meta, "log", self._make_log_id())
            found = await self._connection.call("HGET", meta, "log")
        return bytes(found).decode()
