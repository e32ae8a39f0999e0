"""The limit of a run: exactly the writes that the engine made, recorded once and replayed into a bare RocksDB."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rocksdict import WriteBatch

from codeq.store.rocksdb import database as engine
from codeq.store.rocksdb.database import Database

Operation = tuple[bytes, bytes | None]
"""A key with its new value, or with None to delete it."""


class Batch:
    """One atomic write of the engine, and whether it forced the disk before it wrote the next."""

    __slots__ = ("flushed", "operations", "ranges")

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        self.flushed = False


class Tape:
    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @property
    def operations(self) -> int:
        return sum(len(batch.operations) for batch in self.batches)

    @property
    def bytes(self) -> int:
        return sum(len(key) + len(value or b"") for batch in self.batches for key, value in batch.operations)

    @property
    def flushes(self) -> int:
        return sum(batch.flushed for batch in self.batches)

    def mark_flushed(self) -> None:
        if self.batches:
            self.batches[-1].flushed = True

    def replay(self, path: Path) -> float:
        """Write everything again into a new database with the engine's options; answers the seconds it took."""
        database = Database(path)
        try:
            started_s = time.perf_counter()
            for batch in self.batches:
                database.write(_rebuilt(batch))
                if batch.flushed:
                    database.flush()
            return time.perf_counter() - started_s
        finally:
            database.close()


def key_per_index(payload: bytes, *, batch: int, rounds: int, flushed: bool) -> Tape:
    """The same cycles in the layout of a first draft: one key per task and index, fifteen to a cycle.

    Enqueue, claim and result each write state, index entries, event and retention of every task under keys of its own.
    """
    tape = Tape()
    state = b"s" * 120
    for start in range(0, rounds * batch, batch):
        numbers = [number.to_bytes(8, "big") for number in range(start, start + batch)]
        opening, claiming, ending = Batch(), Batch(), Batch()
        for n in numbers:
            queue = b"codeq/q/bench/default/"
            task = b"01a1e1da-ee8e-7001-8739-" + n.hex().encode()[:12]
            opening.operations += [(b"codeq/body/" + task, payload), (b"codeq/tasks/" + task, state)]
            opening.operations += [(queue + b"pending/\x04" + n + task, b""), (b"codeq/ttl/" + n + task, b"")]
            opening.operations += [(b"codeq/ev/a" + n, state)]
            claiming.operations += [(queue + b"pending/\x04" + n + task, None), (queue + b"inprog/" + task, b"")]
            claiming.operations += [(b"codeq/tasks/" + task, state), (b"codeq/lease/" + task, n)]
            claiming.operations += [(b"codeq/ev/b" + n, state)]
            ending.operations += [(b"codeq/tasks/" + task, state), (b"codeq/results/" + task, b"null")]
            ending.operations += [(queue + b"inprog/" + task, None), (b"codeq/lease/" + task, None)]
            ending.operations += [(b"codeq/ev/c" + n, state)]
        for written in (opening, claiming, ending):
            written.flushed = flushed
            tape.batches.append(written)
    return tape


class _Recording:
    """Stands in for a WriteBatch, which cannot be subclassed: notes the operations and passes them on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.inner = WriteBatch(*args, **kwargs)
        self.noted = Batch()

    def put(self, key: bytes, value: bytes) -> None:
        self.noted.operations.append((key, value))
        self.inner.put(key, value)

    def delete(self, key: bytes) -> None:
        self.noted.operations.append((key, None))
        self.inner.delete(key)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.noted.ranges.append((start, end))
        self.inner.delete_range(start, end)


@contextmanager
def recording(*, flushes: bool) -> Iterator[Tape]:
    """Record what every engine of this process writes meanwhile. Slows it down, so never time what runs inside.

    Without `flushes`, the one at closing is left out: no call waits for it.
    """
    tape = Tape()
    write, flush = Database.write, Database.flush

    def noting_write(self: Database, batch: _Recording) -> None:
        tape.batches.append(batch.noted)
        write(self, batch.inner)

    def noting_flush(self: Database) -> int:
        if flushes:
            tape.mark_flushed()
        return flush(self)

    with (
        patch.object(engine, "WriteBatch", _Recording),
        patch.object(Database, "write", noting_write),
        patch.object(Database, "flush", noting_flush),
    ):
        yield tape
    if not tape.batches:
        raise RuntimeError("the engine wrote nothing through Database.write: benchmarks/tape.py no longer fits it")


def _rebuilt(batch: Batch) -> WriteBatch:
    rebuilt = WriteBatch(raw_mode=True)
    put, delete = rebuilt.put, rebuilt.delete
    for key, value in batch.operations:
        if value is None:
            delete(key)
        else:
            put(key, value)
    for start, end in batch.ranges:
        rebuilt.delete_range(start, end)
    return rebuilt
