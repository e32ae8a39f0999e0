"""A second opinion on how much was promised: RocksDB's sequence number, kept in a small file beside its own.

If RocksDB comes back with less than the witness saw forced to disk, then acknowledged writes are missing (a damaged
log that was cut short, an old copy put in place of the newer one), and opening is refused instead of going on short.
"""

import os
import struct
import time
import zlib
from pathlib import Path

from codeq.domain.errors import StoreCorrupt

_PERIOD_S = 1.0


class HighWaterMark:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._next_s = 0.0

    def verify(self, sequence: int) -> None:
        promised = self._read()
        if promised is not None and sequence < promised:
            raise StoreCorrupt(
                f"{self.path.parent} holds {promised - sequence} fewer writes than were acknowledged: it was cut short "
                "or replaced by an older copy. Restore a backup, or open it with recover=True to go on with the rest"
            )

    def record_periodically(self, sequence: int) -> None:
        """Record at most once a second: a second fsync per group would halve the speed for a check of the tail."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PERIOD_S
            self.record(sequence)

    def record(self, sequence: int) -> None:
        number = struct.pack(">Q", sequence)
        os.pwrite(self._file, number + struct.pack(">I", zlib.crc32(number)), 0)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _read(self) -> int | None:
        data = os.pread(self._file, 12, 0)
        if len(data) < 12 or struct.unpack(">I", data[8:])[0] != zlib.crc32(data[:8]):
            return None  # new, or torn while it was written: then the second before it is not checked
        number: int = struct.unpack(">Q", data[:8])[0]
        return number
