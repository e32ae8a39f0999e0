"""Creates the deliveries of tasks with a webhook: each is committed with the change that ends its task."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from codeq.domain import lifecycle
from codeq.domain.ids import shard_of
from codeq.domain.limits import PIECE_BYTES_MAX
from codeq.domain.queue import WEBHOOKS
from codeq.domain.result_callbacks import with_delivery
from codeq.domain.task import Body, Change, Task

if TYPE_CHECKING:
    from codeq.usecases.core import Core


async def with_deliveries(core: "Core", changes: Sequence[Change]) -> list[Change]:
    """Returns the changes, with a delivery where one ends a task with a webhook. Reads the bodies of those tasks.

    A task whose body cannot be read ends without: nobody knows its webhook any more.
    """
    ending = [place for place, change in enumerate(changes) if lifecycle.ends_with_webhook(change)]
    complete = list(changes)
    for places in _pieces(ending, changes):
        bodies = await _bodies(core, [changes[place].after for place in places])
        known = [(place, body) for place, body in zip(places, bodies, strict=True) if body is not None and body.webhook]
        shards = [shard_of(changes[place].after.id) for place, _ in known]
        ids = core.ids.generate(core.now_ms(), core.shards, shards)
        for (place, body), delivery_id in zip(known, ids, strict=True):
            policy = core.policy(changes[place].after.tenant, WEBHOOKS)
            complete[place] = with_delivery(changes[place], body, delivery_id, policy=policy)
        if len(places) < len(ending):
            await asyncio.sleep(0)  # payloads may be large
    return complete


def _pieces(places: Sequence[int], changes: Sequence[Change]) -> Iterator[list[int]]:
    """Yields the places of tasks of one tenant, as many as have PIECE_BYTES_MAX of payload, or one."""
    piece: list[int] = []
    size = 0
    for place in places:
        task = changes[place].after
        if piece and (size + task.payload_bytes > PIECE_BYTES_MAX or task.tenant != changes[piece[0]].after.tenant):
            yield piece
            piece, size = [], 0
        piece.append(place)
        size += task.payload_bytes
    if piece:
        yield piece


async def _bodies(core: "Core", tasks: Sequence[Task]) -> list[Body | None]:
    records = await core.store.get_records(tasks[0].tenant, [task.id for task in tasks], results=False)
    return [record.body if record is not None else None for record in records]
