"""Commits of one shard, merged: what waits while calls are under way goes to Redis in one script.

Sixteen small commits in one script cost Redis a third of sixteen scripts. Nothing waits for others: a commit is sent at
once unless AT_ONCE are under way. Looks before commits (`known.py`) are merged in the same way.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from codeq.domain.limits import BATCH_TASKS_MAX
from codeq.domain.task import Change

AT_ONCE = 3
"""Scripts of one shard under way. Redis runs one at a time; the next is on its way meanwhile."""

Answer = int | bytes
Send = Callable[[Sequence[Change]], Awaitable[list[Answer]]]


class _Waiting:
    __slots__ = ("answer", "changes", "ids")

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.ids = {change.after.id for change in changes}
        self.answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()


class CommitQueue:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    async def commit(self, changes: Sequence[Change]) -> list[Answer]:
        """Returns the script's answer for each change. A caller that is cancelled does not undo its changes."""
        waiting = _Waiting(changes)
        self._waiting.append(waiting)
        if not self._is_scheduled and len(self._sending) < AT_ONCE:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start)  # after the other calls of this iteration
        return await waiting.answer

    async def drain(self) -> None:
        """Returns once nothing is under way."""
        while self._sending or self._waiting:
            if self._sending:
                await asyncio.wait(self._sending)
            await asyncio.sleep(0)  # for the callbacks of those that have ended

    def _start(self) -> None:
        self._is_scheduled = False
        while self._waiting and len(self._sending) < AT_ONCE:
            sending = asyncio.get_running_loop().create_task(self._send_group(self._next_group()))
            self._sending.add(sending)
            sending.add_done_callback(self._ended)

    def _ended(self, sending: "asyncio.Task[None]") -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # those who wait have got it
        self._start()

    async def _send_group(self, group: Sequence[_Waiting]) -> None:
        changes = [change for waiting in group for change in waiting.changes]
        try:
            answers = await self._send(changes)
        except BaseException as fault:
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(fault)
            raise
        start = 0
        for waiting in group:
            end = start + len(waiting.changes)
            if not waiting.answer.done():
                waiting.answer.set_result(answers[start:end])
            start = end

    def _next_group(self) -> list[_Waiting]:
        """Takes commits from the front, as many as one script may have. A task is changed once per script."""
        group: list[_Waiting] = []
        ids: set[str] = set()
        size = 0
        while self._waiting:
            waiting = self._waiting[0]
            size += len(waiting.changes)
            if group and (size > BATCH_TASKS_MAX or not ids.isdisjoint(waiting.ids)):
                break
            ids |= waiting.ids
            group.append(self._waiting.popleft())
        return group
