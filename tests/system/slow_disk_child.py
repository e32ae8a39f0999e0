"""A child process on a slow disk: counts event-loop iterations while commits wait. Prints one JSON object."""

import asyncio
import ctypes
import json
import sys

import codeq
from codeq.domain.requests import Filter


async def main() -> None:
    slow_syncs = ctypes.CDLL(None).slow_syncs
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async with await codeq.open_async(sys.argv[1], sweeping=False) as queue:
        ticking = asyncio.create_task(tick())
        await queue.enqueue("job", 0)
        waits = []
        for number in range(10):
            before, syncs = ticks, slow_syncs()
            await queue.enqueue("job", number)
            waits.append([ticks - before, slow_syncs() - syncs])
        syncs = slow_syncs()
        await asyncio.gather(*(queue.enqueue("job", number) for number in range(500)))
        shared = slow_syncs() - syncs

        syncs = slow_syncs()
        first = asyncio.create_task(queue.enqueue("job", "first"))
        await asyncio.sleep(0.005)  # its fsync is running now, and the next one's will be the second
        late = asyncio.create_task(queue.enqueue("job", "late"))
        await asyncio.sleep(0)
        seen = await queue.list(limit=1000)
        shown_before_durable = len(seen.tasks) == 513 and slow_syncs() - syncs < 2
        await asyncio.gather(first, late)

        waiting = asyncio.create_task(queue.claim("other", wait=20))
        await asyncio.sleep(0)
        syncs = slow_syncs()
        first = asyncio.create_task(queue.enqueue("job", "again"))
        await asyncio.sleep(0.005)
        late = asyncio.create_task(queue.enqueue("other", "for the one who waits"))
        for _ in range(3):
            await asyncio.sleep(0)
            await queue.core.store.find("default", Filter(), cursor=None, limit=1)  # writes out the buffered changes
        await waiting
        claimed_before_durable = slow_syncs() - syncs < 2
        await asyncio.gather(first, late)
        ticking.cancel()
    measured = {
        "waits": waits,
        "shared": shared,
        "shown_before_durable": shown_before_durable,
        "claimed_before_durable": claimed_before_durable,
    }
    sys.stdout.write(json.dumps(measured))


if __name__ == "__main__":
    asyncio.run(main())
