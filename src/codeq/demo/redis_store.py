"""The Redis of a demo: one of its own, or a part of an existing one that is emptied at the end."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.server.dev_redis import running_redis

OWN = "redis"
"""Names a Redis that the demo starts, instead of an address."""
KEYS_AT_ONCE = 500


class DemoStore(msgspec.Struct, frozen=True):
    url: str
    prefix: str
    """Begins every key: no other installation uses it."""


@contextlib.contextmanager
def own_redis(store: str | None, folder: Path) -> Iterator[DemoStore | None]:
    """Yields the Redis that `store` names; None for RocksDB. Starts one where it is to be the demo's own."""
    prefix = f"demo-{uuid4().hex[:8]}"
    if store is None:
        yield None
    elif store == OWN:
        with running_redis(folder / "redis") as url:
            yield DemoStore(url, prefix)
    elif "://" in store:
        yield DemoStore(store, prefix)
    else:
        raise InvalidRequest(
            f"a store of the demo is `redis`, or an address such as redis://host:6379/0, not {store!r}"
        )


@contextlib.asynccontextmanager
async def emptied_at_the_end(store: DemoStore | None, *, is_kept: bool) -> AsyncIterator[None]:
    """Deletes the keys of the demo, unless they are to be kept."""
    try:
        yield
    finally:
        if store is not None and not is_kept:
            await _delete_keys(store)


async def _delete_keys(store: DemoStore) -> None:
    from codeq.store.redis.connection import RedisClient, parse_url  # noqa: PLC0415 - needs the extra `redis`

    client = RedisClient(parse_url(store.url))
    try:
        async for key in client.client.scan_iter(match=f"{{{store.prefix}:*", count=KEYS_AT_ONCE):
            await client.call("UNLINK", key)
    finally:
        await client.close()
