"""How a record is stored: its version, the task, and, while the task is leased, the arguments of the claim.

A script can assign a version and append a claim without knowing what a task is: the first eight bytes are the version,
and a record that was claimed is [task, claim] instead of [task]. Whoever reads it applies `lifecycle.claim` to it.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from codeq.domain import lifecycle
from codeq.domain.task import Task
from codeq.store import codec
from codeq.store.redis import keys

CLAIM_RULE = 1
"""Names the rule by which a claim is applied. A new rule gets a new number, and old claims are read by the old one."""


class StoredClaim(Struct, frozen=True, array_like=True, gc=False):
    rule: int
    worker: str
    at_ms: int
    lease_ms: int
    previous: int
    """The version of the task that was claimed. Appended by the script."""


class StoredTask(Struct, frozen=True, array_like=True, gc=False):
    task: Task
    claim: StoredClaim | None = None


_decode = msgspec.msgpack.Decoder(StoredTask).decode
_decode_many = msgspec.msgpack.Decoder(list[Raw]).decode
_VERSION_BYTES = 8
_CLAIM_FIELDS = b"\x95"


def claim_arguments(worker: str, at_ms: int, lease_ms: int) -> bytes:
    """Returns the encoded claim up to its last field, which the script appends."""
    return _CLAIM_FIELDS + b"".join(map(codec.encode, (CLAIM_RULE, worker, at_ms, lease_ms)))


def decode(data: bytes) -> Task:
    """Returns the stored task. Raises one of `codec.UNREADABLE` for bytes that are not one."""
    return _applied(_decode(memoryview(data)[_VERSION_BYTES:]), int.from_bytes(data[:_VERSION_BYTES], "big"))


def decode_events(first: int, data: bytes) -> list[Task]:
    """Returns the events of one entry of the stream, whose first one has this number."""
    return [_applied(_decode(raw), first + place) for place, raw in enumerate(_decode_many(data))]


def encode_events(events: Sequence[Task]) -> list[Raw]:
    return [Raw(codec.encode(event)) for event in events]


def is_current(data: bytes | None, task: Task) -> bool:
    return data is not None and data[:_VERSION_BYTES] == keys.version_bytes(task.version)


def _applied(stored: StoredTask, version: int) -> Task:
    task, claim = stored.task, stored.claim
    if claim is not None:
        claimed = codec.versioned(task, claim.previous)
        task = lifecycle.claim(claimed, claim.worker, claim.at_ms, lease_ms=claim.lease_ms).after
    return codec.versioned(task, version)
