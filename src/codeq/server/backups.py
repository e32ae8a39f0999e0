"""Backups of the running server: copies of its store in one directory, one at a time."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

from codeq.domain.errors import CodeqError, StoreError, StoreFull
from codeq.server.logs import log
from codeq.wire.errors import Conflict, NoRoute, Unavailable


class Backups:
    def __init__(self, folder: str, back_up: Callable[[Path], Awaitable[None]]) -> None:
        self._folder = Path(folder) if folder else None
        self._back_up = back_up
        self._current: asyncio.Task[tuple[int, float]] | None = None

    async def make(self, name: str) -> tuple[int, float]:
        """Makes the backup `name`. Returns its size in bytes, and how many seconds it took.

        It is finished though the caller may leave: half a copy would have to be removed anyway.
        """
        if self._folder is None:
            raise NoRoute("this server makes no backups; set backup.path")
        if self._current is not None and not self._current.done():
            raise Conflict("another backup is being made; wait for its end")
        target = self._folder / name
        if target.exists():
            raise Conflict(f"there is a backup {name!r} already; choose another name")
        self._current = asyncio.create_task(self._make(target))
        return await asyncio.shield(self._current)

    async def close(self) -> None:
        """Waits for the backup under way."""
        if self._current is not None:
            with contextlib.suppress(CodeqError):  # its caller gets it
                await self._current

    async def _make(self, target: Path) -> tuple[int, float]:
        started_s = perf_counter()
        try:
            await self._back_up(target)
        except StoreFull as fault:
            log(logging.ERROR, str(fault), code=fault.code)
            raise Unavailable("the disk of the data has too little space for a backup; free some first") from None
        except StoreError as fault:
            log(logging.ERROR, str(fault), code=fault.code)
            raise Unavailable("the backup could not be made; the server's log says why") from None
        size = await asyncio.to_thread(_size, target)
        took_s = perf_counter() - started_s
        log(logging.INFO, "backed up", name=target.name, bytes=size, seconds=round(took_s, 3))
        return size, took_s


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
