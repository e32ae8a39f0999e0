"""Changes that are decided and not yet written: one atomic batch shared by all calls that wait for the same fsync."""

from collections.abc import Callable, Iterator, Sequence

from codeq.domain.errors import StoreError
from codeq.domain.limits import EVENT_SEGMENT_MAX
from codeq.domain.task import Task
from codeq.store.codec import encode, joined, set_field
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database, batch

_REPORTED_MAX = 10_000


class WriteBuffer:
    """Reads by key see its content at once; scans write it to RocksDB first."""

    def __init__(self, database: Database, next_version: int) -> None:
        self.next_version = next_version
        self.writes = 0
        """How many batches were written to RocksDB. A flush covers those written before it began."""
        self._database = database
        self._batch = batch()
        self.recent: dict[bytes, bytes | None] = {}
        self._events: list[bytes] = []
        self._reported: set[bytes] = set()
        self._before_write: list[Callable[[], None]] = []
        self.on_failure: Callable[[StoreError], None] = lambda _: None
        self.on_unreadable: Callable[[bytes, str], None] = lambda *_: None
        """Called with the key of a record that cannot be read, and the reason."""
        self.original: Callable[[int], Task | None] = lambda _: None
        """Returns the task as the event of that number left it, if the event can be read."""

    def before_write(self, prepare: Callable[[], None]) -> None:
        """Calls `prepare` before each write, to add what is stored per batch rather than per change."""
        self._before_write.append(prepare)

    @property
    def is_dirty(self) -> bool:
        return bool(self.recent)

    def event(self, task: Task) -> bytes:
        """Numbers the task's move, and returns the encoded task."""
        version = self.next_version
        self.next_version = version + 1
        set_field(task, "version", version)
        data = encode(task)
        self._events.append(data)
        return data

    def put(self, key: bytes, value: bytes) -> None:
        self._batch.put(key, value)
        self.recent[key] = value

    def delete(self, key: bytes) -> None:
        self._batch.delete(key)
        self.recent[key] = None

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.write()
        self._batch.delete_range(start, end)
        self.recent[start] = None

    def set_aside(self, key: bytes, value: bytes, reason: str) -> None:
        """Moves an entry that cannot be read out of its index, so that it stops no other."""
        self.delete(key)
        self.put(keys.UNREADABLE + key, value)
        self.report(key, reason)

    def restore(self, key: bytes, value: bytes, task: Task) -> None:
        """Replaces an entry that cannot be read by the task that belongs there. What it was is kept beside."""
        self.put(keys.UNREADABLE + key, value)
        self.put(key, encode(task))
        self.report(key, "restored from the event of the same number")

    def forget_earlier_reports(self) -> None:
        """Deletes what was kept of records that earlier openings could not read, and that this one has not met."""
        for key, _ in self.scan(keys.UNREADABLE, keys.after(keys.UNREADABLE)):
            if key.removeprefix(keys.UNREADABLE) not in self._reported:
                self.delete(key)

    def report(self, key: bytes, reason: str) -> None:
        """Reports a record that cannot be read, and leaves it where it is; `codeq doctor` finds a note of it."""
        if key not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(key)
            if self.get(keys.UNREADABLE + key) is None:
                self.put(keys.UNREADABLE + key, b"")
        self.on_unreadable(key, reason)

    def get(self, key: bytes) -> bytes | None:
        if key in self.recent:
            return self.recent[key]
        return self._database.get(key)

    def get_many(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        recent = self.recent
        if not recent:
            return self._database.get_many(wanted)
        missing = [key for key in wanted if key not in recent]
        found = dict(zip(missing, self._database.get_many(missing), strict=True)) if missing else {}
        return [recent[key] if key in recent else found[key] for key in wanted]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.write()
        return self._database.scan(start, end)

    def scan_back(self, start: bytes, end: bytes) -> Iterator[bytes]:
        self.write()
        return self._database.scan_back(start, end)

    def last(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        self.write()
        return self._database.last(start, end)

    def write(self) -> None:
        """Writes everything to RocksDB in one atomic batch: visible to scans, and safe from a killed process."""
        if not self.recent:
            return
        for prepare in self._before_write:
            prepare()
        events = self._events
        first = self.next_version - len(events)
        if 0 < len(events) <= EVENT_SEGMENT_MAX:
            self._batch.put(keys.events(first), joined(events))
        else:
            for i in range(0, len(events), EVENT_SEGMENT_MAX):
                self._batch.put(keys.events(first + i), joined(events[i : i + EVENT_SEGMENT_MAX]))
        try:
            self._database.write(self._batch)
        except StoreError as fault:
            self.on_failure(fault)  # whether a verb wrote that waits for it, or a scan
            raise
        self.writes += 1
        self._batch = batch()
        self.recent = {}
        self._events = []
