"""Tells which files were opened while a block ran, by whatever process: Linux's inotify counts, so no time matters."""

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 1 << 20


@contextmanager
def opened_files(files: Sequence[Path]) -> Iterator[Callable[[], set[Path]]]:
    """Watches these files. Yields a function that returns those of them that were opened so far."""
    if sys.platform != "linux":
        pytest.skip("inotify is Linux's")
    system = ctypes.CDLL(None, use_errno=True)
    watcher = system.inotify_init1(os.O_NONBLOCK)
    assert watcher >= 0, os.strerror(ctypes.get_errno())
    by_number = {system.inotify_add_watch(watcher, os.fsencode(file), _IN_OPEN): file for file in files}
    assert min(by_number, default=0) >= 0, os.strerror(ctypes.get_errno())
    opened: set[Path] = set()

    def so_far() -> set[Path]:
        while found := _read(watcher):
            opened.update(by_number[number] for number in found)
        return opened

    try:
        yield so_far
    finally:
        os.close(watcher)


def _read(watcher: int) -> list[int]:
    """The numbers of the watches of the next events; none if there are no more."""
    try:
        events = os.read(watcher, _EVENTS_BYTES)
    except BlockingIOError:
        return []
    numbers, place = [], 0
    while place < len(events):
        number, _, _, name_bytes = _EVENT.unpack_from(events, place)
        numbers.append(number)
        place += _EVENT.size + name_bytes
    return numbers
