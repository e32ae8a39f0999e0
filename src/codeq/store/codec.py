"""How tasks are encoded: as MessagePack arrays by position, small, fast, and readable by any MessagePack library.

A record is encoded once per change. The same bytes are the task's state, its entry in an index and its event.
"""

from collections.abc import Sequence
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from codeq.domain.queue import QueuePolicy
from codeq.domain.task import Body, Task

FORMAT = 3
"""The version of everything on disk. Since version 2 large payloads and results are stored apart, and delayed tasks by
queue; since version 3 a claim may have a request id, and counts have a checksum. Older files are converted, or read as
they are. Files of a newer format are refused, never overwritten."""


class CreatedRecord(Struct, frozen=True, array_like=True, gc=False):
    """Written once: the task as it was enqueued, and its body. A large payload is stored apart, and empty here."""

    task: Raw
    body: Raw


class CurrentRecord(Struct, frozen=True, array_like=True, gc=False):
    """Written at every later move but the claim: the task, and its result once it has one."""

    task: Raw
    result: bytes | None
    result_bytes: int = 0
    """The length of a large result, which is stored apart."""


class ClaimWithId(Struct, frozen=True, array_like=True, gc=False):
    """The tasks of a claim that has a request id. Without one, a claim is stored as the array of its tasks alone."""

    tasks: Raw
    request_id: str


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_task = msgspec.msgpack.Decoder(Task).decode
decode_tasks = msgspec.msgpack.Decoder(list[Task]).decode
split_tasks = msgspec.msgpack.Decoder(list[Raw]).decode
"""Splits the output of `joined` into its tasks, still encoded."""
decode_body = msgspec.msgpack.Decoder(Body).decode
decode_created = msgspec.msgpack.Decoder(CreatedRecord).decode
decode_current = msgspec.msgpack.Decoder(CurrentRecord).decode
_decode_claim_with_id = msgspec.msgpack.Decoder(ClaimWithId).decode
decode_policy = msgspec.msgpack.Decoder(QueuePolicy).decode
decode_pairs = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode

_CHECKSUM_BYTES = 4


def with_checksum(key: bytes, data: bytes) -> bytes:
    """Returns the record with a checksum behind it: for numbers, because wrong ones decode as well as right ones."""
    return data + crc32(data, crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")


def without_checksum(key: bytes, data: bytes) -> bytes:
    """Returns the record. Raises one of UNREADABLE if it is not as it was written under this key."""
    record = data[:-_CHECKSUM_BYTES]
    if with_checksum(key, record) != data:
        raise msgspec.DecodeError("the checksum does not match")
    return record


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are not a record."""

_CLAIM_WITH_ID = b"\x92"
"""The first byte of a `ClaimWithId`; `joined` begins with another."""

set_field = msgspec.structs.force_setattr
"""Sets the version of a task, and nothing else of a frozen value is ever set: the version is the number of the task's
event, which the shard knows only at commit. A function of our own would cost half of what encoding a task does."""


def created_record(task: bytes, body: Body) -> bytes:
    """Returns a `CreatedRecord` around a task that is encoded already."""
    return b"\x92" + task + encode(body)


def current_record(task: bytes, result: bytes | None) -> bytes:
    """Returns a `CurrentRecord` around a task that is encoded already."""
    return b"\x92" + task + encode(result)


def current_record_apart(task: bytes, result_bytes: int) -> bytes:
    """Returns a `CurrentRecord` whose result is stored apart."""
    return b"\x93" + task + encode(None) + encode(result_bytes)


def joined(tasks: Sequence[bytes | Raw]) -> bytes:
    """Returns many encoded tasks as one MessagePack array, without decoding them."""
    return b"\xdd" + len(tasks).to_bytes(4, "big") + b"".join(tasks)


def claim_record(tasks: bytes, request_id: str | None) -> bytes:
    """Returns the record of a claim around the output of `joined`."""
    return tasks if request_id is None else _CLAIM_WITH_ID + tasks + encode(request_id)


def split_claim(record: bytes) -> tuple[bytes | Raw, str | None]:
    """Returns the tasks of a claim, as `joined` encoded them, and its request id."""
    if not record.startswith(_CLAIM_WITH_ID):
        return record, None
    claim = _decode_claim_with_id(record)
    return claim.tasks, claim.request_id
