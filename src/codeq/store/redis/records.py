"""How a record is stored: the task, its version, and, while the task is leased, the arguments of the claim.

    length of the task (4 bytes) | task | version (8 bytes)
    length of the task (4 bytes) | task | version before | arguments of the claim | version

So a script can assign a version, compare it (the last eight bytes) and append a claim without knowing what a task is.
Whoever reads a claimed record applies `lifecycle.claim` to it. The same bytes are the event.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from struct import Struct as Layout

import msgspec
from msgspec import Raw, Struct

from codeq.domain import lifecycle
from codeq.domain.task import Move, Task
from codeq.store import codec
from codeq.store.redis import keys

CLAIM_RULE = 1
"""Names the rule by which a claim is applied. A new rule gets a new number, and old claims are read by the old one."""


class StoredClaim(Struct, frozen=True, array_like=True, gc=False):
    rule: int
    worker: str
    at_ms: int
    lease_ms: int
    worker_name: str | None = None


NULL = b"null"
"""The result of most tasks: those that are completed with it have none stored, and those without a result an empty one.
"""

_COMPLETE = Move.COMPLETE
_LENGTH_BYTES, _VERSION_BYTES = 4, 8
_length, _version = Layout(">I"), Layout(">Q")
_pack_length, _length_at, _version_at = _length.pack, _length.unpack_from, _version.unpack_from
_CACHED_CLAIMS = 1024
_decode_claim = lru_cache(_CACHED_CLAIMS)(msgspec.msgpack.Decoder(StoredClaim).decode)
"""The tasks of a claim have the same arguments."""


def without_version(task: Task) -> bytes:
    """Returns the record of a task up to its version, which the script appends."""
    data = codec.encode(task)
    return _pack_length(len(data)) + data


def claim_arguments(worker: str, at_ms: int, lease_ms: int, worker_name: str | None) -> bytes:
    """Returns the encoded claim, which the script appends to a record with its new version."""
    return codec.encode(StoredClaim(CLAIM_RULE, worker, at_ms, lease_ms, worker_name))


def result_of(task: Task, stored: bytes | None) -> bytes | None:
    """Returns the result of a task of which this is stored."""
    if task.move is _COMPLETE:
        return NULL if stored is None else stored or None
    return stored


def decode(data: bytes) -> Task:
    """Returns the stored task. Raises one of `codec.UNREADABLE` for bytes that are not one."""
    version_at = len(data) - _VERSION_BYTES
    if version_at < _LENGTH_BYTES:
        raise msgspec.DecodeError("the record has no version")
    end = _LENGTH_BYTES + _length_at(data)[0]
    task = codec.decode_task(data[_LENGTH_BYTES:end])
    if version_at != end:
        claim_at = end + _VERSION_BYTES
        if version_at < claim_at:
            raise msgspec.DecodeError("the record has no version")
        claim = _decode_claim(data[claim_at:version_at])
        codec.set_field(task, "version", _version_at(data, end)[0])
        task = lifecycle.claim(
            task, claim.worker, claim.at_ms, lease_ms=claim.lease_ms, worker_name=claim.worker_name
        ).after
    codec.set_field(task, "version", _version_at(data, version_at)[0])
    return task


def readable(
    stored: Sequence[bytes | None],
    beside: Sequence[bytes | None],
    on_unreadable: Callable[[str, str], None] = lambda *_: None,
) -> tuple[list[Task], list[bytes | None]]:
    """Returns the tasks of these records, each with what is beside it. Leaves out, and reports, those that cannot be
    read: if they are leased, they are set aside at the end of the lease."""
    with suppress(*codec.UNREADABLE):
        return [decode(data or b"") for data in stored], list(beside)
    tasks: list[Task] = []
    of_tasks: list[bytes | None] = []
    for data, other in zip(stored, beside, strict=True):
        try:
            tasks.append(decode(data or b""))
            of_tasks.append(other)
        except codec.UNREADABLE as fault:
            on_unreadable(f"the record of version {version_of(data or b'')}", str(fault))
    return tasks, of_tasks


def decode_events(values: Iterable[bytes]) -> list[Task]:
    """Returns the events of one entry of the stream."""
    return [decode(value) for value in values if value]


def encode_events(events: Sequence[Task]) -> list[Raw]:
    return [Raw(codec.encode(event)) for event in events]


def is_current(data: bytes | None, task: Task) -> bool:
    return data is not None and data[-_VERSION_BYTES:] == keys.version_bytes(task.version)


def is_record_of(data: bytes, task: Task) -> bool:
    """Returns whether the stored record is this task, whatever its version."""
    return data[:-_VERSION_BYTES] == without_version(task)


def version_of(data: bytes) -> int:
    """Returns the version of a stored record without decoding it."""
    return int.from_bytes(data[-_VERSION_BYTES:], "big")
