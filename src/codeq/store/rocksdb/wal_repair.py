"""What a power cut may leave at the end of RocksDB's log, and how it is cut off.

A file system can make the new length of a log durable before its last blocks, which then read as zeros. Nothing
acknowledged is there: an fsync makes length and blocks durable together. RocksDB forgives a log that is cut
short, but takes zeros inside a record for damage; without the zeros it is a log that is cut short.
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
    """Try with the zeros cut off the end of the newest log; whatever fails then finds the log put back as it was.

    Gives False, and changes nothing, where there are no zeros. A log that was cut is kept beside the one that is used.
    """
    logs = sorted(database.glob("*.log"))
    newest = logs[-1] if logs else None
    length = newest.stat().st_size if newest else 0
    kept = _without_zeros(newest, length) if newest else 0
    if newest is None or kept == length:
        yield False
        return
    copy = next(c for n in count() if not (c := newest.with_name(f"{newest.name}-before-cut-{n}")).exists())
    shutil.copyfile(newest, copy)
    _truncate(newest, kept)
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
