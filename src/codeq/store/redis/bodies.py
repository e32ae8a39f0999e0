"""Large bodies, which are written beside the script that stores their tasks, and deleted if it never ran.

On one server both are a transaction, which still writes the body if the script fails. In a cluster they are two
commands, and the second may get lost. So the body's id is noted first, and the script removes the note.
"""

from collections.abc import Sequence
from typing import Any

from codeq.store.redis.connection import LuaScript, RedisClient
from codeq.store.redis.keys import ShardKeys

BODIES = LuaScript("bodies")
SCRIPT_MS_MAX = 300_000
"""When a script that has not run will not run any more: its call has timed out and was repeated within seconds."""
_AT_ONCE = 1000


def write_beside(keys: ShardKeys, bodies: Sequence[tuple[bytes, bytes]], now_ms: int) -> list[Sequence[Any]]:
    """Returns the commands that write the bodies of new tasks, by id."""
    if not bodies:
        return []
    notes = [word for task_id, _ in bodies for word in (now_ms, task_id)]
    fields = [word for body in bodies for word in body]
    return [("ZADD", keys.written_bodies, *notes), ("HSET", keys.bodies, *fields)]


async def delete_without_task(connection: RedisClient, keys: ShardKeys, now_ms: int) -> int:
    """Deletes the bodies of tasks that were never stored. Returns how many."""
    names = [keys.written_bodies, keys.records, keys.bodies]
    deleted = await connection.run(BODIES, names, [now_ms - SCRIPT_MS_MAX, _AT_ONCE])
    return int(deleted)
