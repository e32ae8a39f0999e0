"""Calls of one shard, merged: what waits while others are under way goes to Redis in one script.

Sixteen small commits in one script cost Redis a third of sixteen scripts. Nothing waits for others: a call is sent at
once unless AT_ONCE are under way.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from codeq.domain.errors import StoreError
from codeq.domain.limits import COMMITS_WAITING_MAX
from codeq.store.redis.connection import busy

AT_ONCE = 3
"""Scripts of one kind and shard under way. Redis runs one at a time; the next is on its way meanwhile."""

TASKS_AT_ONCE = 256
"""Tasks of calls that are merged; a larger call goes alone. Two milliseconds of a script, for which all other clients
of Redis wait. More in one script saves next to nothing, and its callers are answered, and call again, all at once."""

Call = TypeVar("Call")
Call_contra = TypeVar("Call_contra", contravariant=True)
Answer = TypeVar("Answer")


class Group(Protocol[Call_contra]):
    """Calls that go to Redis together."""

    def add(self, call: Call_contra) -> bool:
        """Adds the call, unless it has to go with others. The first is always added."""


class MergedCalls(Generic[Call, Answer]):
    def __init__(
        self,
        send: Callable[[Sequence[Call]], Awaitable[Sequence[Answer | StoreError]]],
        new_group: Callable[[], Group[Call]],
        *,
        in_order: bool,
    ) -> None:
        """`send` answers each call, or raises for all; a StoreError among the answers is raised for its call alone.
        `in_order` for calls of which none may be sent before one that came earlier."""
        self._send = send
        self._new_group = new_group
        self._in_order = in_order
        self._waiting: deque[tuple[Call, asyncio.Future[Answer]]] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self._is_scheduled = False

    async def call(self, call: Call) -> Answer:
        """Returns the answer to this call. A caller that is cancelled does not call it back, so the bound is here."""
        if len(self._waiting) >= COMMITS_WAITING_MAX:
            raise busy()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((call, answer))
        if not self._is_scheduled and len(self._sending) < AT_ONCE:
            self._is_scheduled = True
            loop.call_soon(self._start)  # after the other calls of this iteration
        return await answer

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

    async def _send_group(self, group: Sequence[tuple[Call, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._send([call for call, _ in group])
        except BaseException as fault:
            for _, waiting in group:
                if not waiting.done():
                    waiting.set_exception(fault)
            raise
        for (_, waiting), answer in zip(group, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, StoreError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

    def _next_group(self) -> list[tuple[Call, "asyncio.Future[Answer]"]]:
        group, chosen = self._new_group(), list[tuple[Call, "asyncio.Future[Answer]"]]()
        others: deque[tuple[Call, asyncio.Future[Answer]]] = deque()
        while self._waiting:
            waiting = self._waiting.popleft()
            if group.add(waiting[0]):
                chosen.append(waiting)
            else:
                others.append(waiting)
                if self._in_order:
                    break
        others.extend(self._waiting)
        self._waiting = others
        return chosen
