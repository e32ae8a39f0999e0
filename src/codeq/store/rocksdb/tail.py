"""What a power cut may leave at the end of RocksDB's log, and how it is cut off.

A file system can make the new length of a log durable before its last blocks, which then read as zeros. Nothing
acknowledged is there: an fsync makes length and blocks durable together. RocksDB forgives a log that is cut
short, but takes zeros inside a record for damage; without the zeros it is a log that is cut short.
"""

import os
import shutil
from pathlib import Path

_PIECE = 64 * 1024


def cut_zeros(database: Path) -> bool:
    """Cut the zeros off the end of the newest log, keeping a copy of it as it was. False if there are none."""
    logs = sorted(database.glob("*.log"))
    if not logs:
        return False
    newest = logs[-1]
    length = newest.stat().st_size
    kept = _without_zeros(newest, length)
    if kept == length:
        return False
    shutil.copyfile(newest, newest.with_suffix(".log-before-cut"))
    with newest.open("r+b") as file:
        file.truncate(kept)
        os.fsync(file.fileno())
    return True


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
