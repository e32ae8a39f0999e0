"""How long one call may use the event loop before others run.

A verb of the store never suspends, so a loop over verbs has to yield by itself.
"""

import asyncio

from codeq.domain.limits import LOOP_HOLD_MS
from codeq.usecases.core import Core


class LoopBudget:
    """Made at the start of a long call, which yields between two pieces of its work, and continues from a cursor."""

    __slots__ = ("_core", "_loop", "_until_s")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + LOOP_HOLD_MS / 1000

    async def yield_if_spent(self) -> None:
        """Lets other calls run if this one has used its time. Of all long calls, one continues per iteration."""
        if self._loop.time() < self._until_s:
            return
        async with self._core.bulk_reads:
            await asyncio.sleep(0)
        self._until_s = self._loop.time() + LOOP_HOLD_MS / 1000
