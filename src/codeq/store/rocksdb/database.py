"""How the RocksDB files of one shard are opened, read and written, and what their errors mean."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from codeq.domain.errors import StoreCorrupt, StoreError, StoreFailed, StoreLocked
from codeq.domain.limits import OPEN_TABLES_MAX
from codeq.store.rocksdb.wal_repair import without_zeros

_CHECKPOINT = ".checkpoint-"


class Database:
    def __init__(self, path: Path, *, recover: bool = False, open_tables_max: int = OPEN_TABLES_MAX) -> None:
        """Opens or creates. With `recover`, damaged write-ahead logs are read up to the damage instead of refused."""
        self.path = path
        try:
            self._db = _open(path, recover=recover, open_tables_max=open_tables_max)
        except StoreCorrupt:
            with without_zeros(path) as has_changed:
                if not has_changed:
                    raise
                self._db = _open(path, recover=recover, open_tables_max=open_tables_max)
        for left in path.parent.glob(f"{_CHECKPOINT}*"):
            shutil.rmtree(left, ignore_errors=True)  # by a process that was killed during a backup
        self._write_options = WriteOptions()

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._db.get(key)  # type: ignore[no-any-return]
        except Exception as fault:
            raise _meaning(self.path, str(fault)) from fault

    def get_many(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        try:
            return self._db.get(list(wanted))  # type: ignore[no-any-return]
        except Exception as fault:
            raise _meaning(self.path, str(fault)) from fault

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries from `start` up to but not including `end`, in order.

        A generator on purpose: rocksdict borrows the bytes of the bound, and the generator's frame keeps them alive.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        yield from self._db.items(from_key=start, read_opt=options)

    def scan_back(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yields keys from just before `end` down to and including `start`.

        rocksdict's lower bound has no effect, so it passes what was deleted before `start`, unless a key at `start`
        stops it.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        cursor = self._db.iter(options)
        cursor.seek_for_prev(end)
        while cursor.valid() and (key := cursor.key()) >= start:
            yield key
            if key == start:
                return
            cursor.prev()

    def last(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last entry from `start` up to but not including `end`."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        cursor = self._db.iter(options)
        cursor.seek_for_prev(end)
        return (cursor.key(), cursor.value()) if cursor.valid() and cursor.key() >= start else None

    def write(self, batch: WriteBatch) -> None:
        """Applies the batch atomically. It survives a process crash, and a machine crash once `flush` has returned."""
        try:
            self._db.write(batch, self._write_options)
        except Exception as fault:
            raise StoreFailed(f"cannot write to {self.path}: {fault}") from fault

    def flush(self) -> int:
        """Forces everything written before this call to disk; returns RocksDB's sequence number at that time.

        `flush_wal` releases the interpreter lock while the disk works, which `write(sync=True)` does not.
        """
        sequence: int = self._db.latest_sequence_number()
        try:
            self._db.flush_wal(True)
        except Exception as fault:
            raise StoreFailed(f"cannot force writes of {self.path} to disk: {fault}") from fault
        return sequence

    def sequence(self) -> int:
        return self._db.latest_sequence_number()  # type: ignore[no-any-return]

    def checkpoint(self, target: Path) -> None:
        """Writes a copy into the new directory `target`. For a thread, while others read and write.

        RocksDB keeps the interpreter lock while it makes a checkpoint. So memory is flushed before, which does not, and
        the checkpoint is made beside the database, where its files are links; from there it is moved.
        """
        try:
            self._db.flush(True)
            with tempfile.TemporaryDirectory(prefix=_CHECKPOINT, dir=self.path.parent) as folder:
                linked = Path(folder) / self.path.name
                Checkpoint(self._db).create_checkpoint(str(linked))
                shutil.move(linked, target)
        except Exception as fault:
            raise StoreError(f"cannot copy {self.path} to {target}: {fault}") from fault

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as fault:
            raise StoreFailed(f"{self.path} was closed after a failure: {fault}") from fault


def read_keys(path: Path, prefix: bytes, end: bytes, limit: int) -> list[bytes]:
    """Returns the first keys of a range, of files that another process may have open."""
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    try:
        database = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            return [key for key, _ in islice(database.items(from_key=prefix, read_opt=options), limit)]
        finally:
            database.close()
    except Exception as fault:  # as in `_open`
        raise _meaning(path, str(fault)) from fault


def batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


def _open(path: Path, *, recover: bool, open_tables_max: int) -> Rdict:
    try:
        return Rdict(str(path), _options(recover=recover, open_tables_max=open_tables_max))
    except Exception as fault:  # rocksdict raises bare Exceptions; their text is all there is
        raise _meaning(path, str(fault)) from fault


def _options(*, recover: bool, open_tables_max: int) -> Options:
    options = Options(raw_mode=True)  # bytes only: the default mode unpickles what it reads
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    modes = DBRecoveryMode
    # RocksDB's own default silently drops acknowledged records behind a damaged one.
    options.set_wal_recovery_mode(modes.point_in_time() if recover else modes.tolerate_corrupted_tail_records())
    options.set_allow_concurrent_memtable_write(False)  # one writer: saves a fifth of every write
    options.set_write_buffer_size(32 << 20)
    options.set_memtable_whole_key_filtering(True)  # a new idempotency key is looked up in every buffer and not found
    options.set_memtable_prefix_bloom_ratio(0.05)
    options.set_max_write_buffer_number(4)  # a burst may outrun the flushing of full buffers without a write stall
    options.set_max_total_wal_size(128 << 20)  # bounds what a restart must replay
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(1 << 20)
    options.set_keep_log_file_num(5)
    options.set_max_open_files(open_tables_max)
    options.set_level_compaction_dynamic_level_bytes(True)
    # Delivered tasks leave tombstones; files full of them are compacted early, so that scans stay short.
    options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(64 << 20))
    table.set_bloom_filter(10, False)
    # In small pieces: the filter of a file with a million keys is larger than a shard of the cache, so it would never
    # stay cached, and every look-up of a missing key would read a megabyte.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(table)
    return options


def _meaning(path: Path, text: str) -> StoreError:
    if "lock" in text.lower() and ("LOCK" in text or "hold" in text):
        return StoreLocked(f"{path} is open in another process (or twice in this one); close that first")
    if "Corruption" in text or "checksum" in text.lower():
        return StoreCorrupt(
            f"{path} is damaged: {text}. Restore a backup, or open it with recover=True to keep what precedes it"
        )
    if "No space" in text:
        return StoreFailed(f"the disk of {path} is full: {text}")
    return StoreFailed(f"cannot use {path}: {text}")
