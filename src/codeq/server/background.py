"""What runs beside requests: sweepers, webhooks, notifications. If one of them ends by itself, the server does."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from codeq.server.state import AppState
from codeq.usecases import sweep

OnEnd = Callable[[str, "asyncio.Task[None]"], None]
"""Called with the name of what has ended, and its task."""


class BackgroundWork:
    def __init__(self, state: AppState, on_end: OnEnd) -> None:
        """Starts all of it."""
        self._state = state
        self._on_end = on_end
        self._running: list[asyncio.Task[None]] = []
        retention = state.settings.retention
        sweeping = sweep.run(
            state.core,
            events_keep_ms=retention.events_seconds * 1000,
            events_keep_max=retention.events_max,
            on_failure=state.metrics.sweep_failed,
        )
        self._start("the sweepers have", sweeping)
        if state.dispatcher is not None:
            self._start("the sender of webhooks has", state.dispatcher.run())
        if state.notifier is not None:
            self._start("the sender of notifications has", state.notifier.run())

    def _start(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._on_end, name))
        self._running.append(task)

    async def stop(self, *, grace_s: float) -> None:
        """Returns when nothing runs any more. Deliveries under way have the grace to end."""
        if self._state.dispatcher is not None:
            await self._state.dispatcher.stop(grace_s)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
