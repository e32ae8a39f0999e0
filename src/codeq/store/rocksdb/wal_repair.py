"""Cuts off the zeros that a power loss may leave at the end of RocksDB's log.

A file system can make the new length of a log durable before its last blocks, which then read as zeros. Nothing
acknowledged is there: an fsync makes length and blocks durable together. RocksDB accepts a log that is cut short, but
treats zeros inside a record as damage; without the zeros it is a log that is cut short.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_PIECE = 64 * 1024


@contextmanager
def without_zeros(database: Path) -> Iterator[bool]:
    """Cuts the zeros off the end of the newest log; restores the log if the block raises.

    Yields False, and changes nothing, where there are no zeros. A copy of the log before the cut stays beside it.
    """
    logs = sorted(database.glob("*.log"))
    newest = logs[-1] if logs else None
    length = newest.stat().st_size if newest else 0
    without_zeros_length = _without_zeros(newest, length) if newest else 0
    if newest is None or without_zeros_length == length:
        yield False
        return
    copy = next(c for n in count() if not (c := newest.with_name(f"{newest.name}-before-cut-{n}")).exists())
    shutil.copyfile(newest, copy)
    _truncate(newest, without_zeros_length)
    try:
        yield True
    except BaseException:
        copy.replace(newest)
        raise


def _truncate(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)
        os.fsync(file.fileno())


def _without_zeros(path: Path, length: int) -> int:
    with path.open("rb") as file:
        end = length
        while end:
            start = max(0, end - _PIECE)
            file.seek(start)
            piece = file.read(end - start).rstrip(b"\0")
            if piece:
                return start + len(piece)
            end = start
    return 0
