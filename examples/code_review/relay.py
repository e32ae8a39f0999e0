"""Moves the outbox into the queue, as soon as something is due and the queue can be reached."""

import asyncio
import logging
import sqlite3

from .database import Database
from .queues import QueueDown, ReviewQueue
from .reviews import now_ms

LOOK_EVERY_S = 0.5
"""How long a review waits at most that another process recorded, or that a failed try put back."""
DOWN_S = 1.0
"""How long the relay waits for a queue that is down. The outbox grows meanwhile, and nothing else happens."""
log = logging.getLogger(__name__)


class Relay:
    """Offers due reviews until it is cancelled. Several relays do no harm: the queue takes each review once."""

    def __init__(self, database: Database, queue: ReviewQueue, *, offer_again_s: float) -> None:
        self._database = database
        self._queue = queue
        self._again_ms = round(offer_again_s * 1000)
        self._wake = asyncio.Event()
        self.trouble = ""
        """Why the queue cannot be reached; empty when all is well."""

    def wake(self) -> None:
        """Something was recorded."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                await self.offer_due()
                self.trouble = ""
                await self._rest(LOOK_EVERY_S)
            except (QueueDown, sqlite3.OperationalError) as fault:
                if not self.trouble:
                    log.warning("reviews wait in the outbox: %s", fault)
                self.trouble = str(fault)
                await asyncio.sleep(DOWN_S)

    async def offer_due(self) -> None:
        """Offers everything that is due. Whatever ends this between the two steps, the worst is a second offer."""
        while due := await asyncio.to_thread(self._database.due, now_ms()):
            for each in due:
                is_new = await self._queue.offer(each.review_id, each.priority)
                await asyncio.to_thread(self._database.offered, each, now_ms() + self._again_ms, is_new=is_new)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
