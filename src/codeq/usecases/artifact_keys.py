"""Every key of the object store in one place.

    <tenant>/<task id>/<lease token>/<name>/part-<offset>-<sha256>    8 MB of the content, the last part less
    <tenant>/<task id>/<lease token>/<name>/complete-<sha256>.json    an upload that is complete: its parts in order

A key names the delivery that wrote it, so a late worker never touches what another has written, and the hash of its
content, so writing it again changes nothing. `<tenant>` is escaped and `<name>` is a hash: neither can leave its place.
"""

import hashlib
import re
from typing import NamedTuple
from urllib.parse import unquote

_SEGMENT_CHARS = 200
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_PART = re.compile(r"part-([0-9]{14})-([0-9a-f]{64})")
_COMPLETE = re.compile(r"complete-([0-9a-f]{64})\.json")
_TOKEN = re.compile(r"[0-9]{1,19}", re.ASCII)


class ArtifactKey(NamedTuple):
    """What a key says."""

    tenant: str
    task_id: str
    token: int
    name_hash: str
    sha256: str
    offset: int | None
    """Of a part; None for the record of a complete upload."""


def task_prefix(tenant: str, task_id: str) -> str:
    return f"{_escaped(tenant)}/{task_id}"


def upload_prefix(tenant: str, task_id: str, token: int, name: str) -> str:
    return f"{task_prefix(tenant, task_id)}/{token}/{name_hash(name)}"


def part(prefix: str, offset: int, sha256: str) -> str:
    return f"{prefix}/part-{offset:014d}-{sha256}"


def complete(prefix: str, sha256: str) -> str:
    return f"{prefix}/complete-{sha256}.json"


def name_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def parse(key: str) -> ArtifactKey | None:
    """Returns what the key says; None for an object that is none of ours."""
    *tenant, task_id, token, name, file = key.split("/") if key.count("/") >= 4 else ("",) * 5
    found, complete_of = _PART.fullmatch(file), _COMPLETE.fullmatch(file)
    escaped = "".join(segment.removesuffix("+") for segment in tenant)
    if not escaped or not _TOKEN.fullmatch(token) or (found is None and complete_of is None):
        return None
    owner = unquote(escaped.replace("=", "%"), errors="replace")
    if f"{_escaped(owner)}/{task_id}/{token}/{name}/{file}" != key:
        return None
    if found is not None:
        return ArtifactKey(owner, task_id, int(token), name, found[2], int(found[1]))
    return ArtifactKey(owner, task_id, int(token), name, complete_of[1] if complete_of else "", None)


def _escaped(tenant: str) -> str:
    """Escapes all but lower-case letters, digits, `_` and `-`, because file systems may not tell cases apart; a long
    name is several segments, of which all but the last end with `+`, so that no tenant's are within another's."""
    text = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in tenant.encode())
    segments = [text[start : start + _SEGMENT_CHARS] for start in range(0, len(text), _SEGMENT_CHARS)]
    return "+/".join(segments)
