"""Commits of one shard, merged into few scripts. Looks before commits (`known.py`) are merged in the same way."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from codeq.domain.errors import StoreError
from codeq.domain.task import Change
from codeq.store.redis.faults import OutOfMemory
from codeq.store.redis.merging import TASKS_AT_ONCE, MergedCalls

Answer = int | bytes
Send = Callable[[Sequence[Change]], Awaitable[list[Answer]]]


class CommitQueue:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls = MergedCalls(self._send_merged, _CommitGroup, in_order=True)

    def commit(self, changes: Sequence[Change]) -> Awaitable[list[Answer]]:
        """Returns the script's answer for each change. A caller that is cancelled does not undo its changes."""
        return self._calls.call(changes)

    async def drain(self) -> None:
        """Returns once nothing is under way."""
        await self._calls.drain()

    async def _send_merged(self, commits: Sequence[Sequence[Change]]) -> Sequence[list[Answer] | StoreError]:
        try:
            answers = await self._send([change for changes in commits for change in changes])
        except OutOfMemory:
            if len(commits) == 1:
                raise
            return [await self._send_alone(changes) for changes in commits]  # some of them may need none
        sizes = list(map(len, commits))
        return [answers[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    async def _send_alone(self, changes: Sequence[Change]) -> list[Answer] | StoreError:
        try:
            return await self._send(changes)
        except StoreError as fault:
            return fault


class _CommitGroup:
    """As many as one script should have. A task is changed once per script, unless one commit has it twice."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._size = 0

    def add(self, changes: Sequence[Change]) -> bool:
        ids = {change.after.id for change in changes}
        size = self._size + len(changes)
        if self._size and (size > TASKS_AT_ONCE or not self._ids.isdisjoint(ids)):
            return False
        self._ids |= ids
        self._size = size
        return True
