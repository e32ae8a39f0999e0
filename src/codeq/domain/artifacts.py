"""What an artifact is, a file that belongs to the result of a task, and how a stored result lists its artifacts.

An artifact is visible once the result that names it is committed, because the list of artifacts is part of the stored
result: there is no other record of it. Its content is stored before, under keys of the delivery that produced it.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from codeq.domain import limits

OCTET_STREAM = "application/octet-stream"

_SEPARATOR = b"\x00"
"""Between the result and its artifacts where they are stored. JSON has no such byte."""


class Artifact(Struct, frozen=True, omit_defaults=True, gc=False):
    """A file of a result: stored here, or linked by `url`."""

    name: str
    content_type: str = OCTET_STREAM
    size: int = 0
    sha256: str = ""
    """Of the content, in hexadecimal; empty for a link, whose content is not known."""
    url: str | None = None


class ArtifactInput(Struct, frozen=True, kw_only=True, gc=False):
    """An artifact as a result names it: with its content, with a link, or with neither if it was uploaded before."""

    name: str
    content: bytes | None = None
    url: str | None = None
    content_type: str | None = None
    sha256: str | None = None
    """Of an uploaded one: which, if it was uploaded more than once."""


class ArtifactLimits(Struct, frozen=True, kw_only=True, gc=False):
    """Bytes, and files of a task, at most; 0 for no limit."""

    artifact_bytes: int = limits.ARTIFACT_BYTES_MAX
    task_bytes: int = limits.TASK_ARTIFACT_BYTES_MAX
    tenant_bytes: int = limits.TENANT_ARTIFACT_BYTES_MAX
    task_artifacts: int = limits.TASK_ARTIFACTS_MAX


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Artifact, ...]).decode


def join_result(result: bytes | None, artifacts: Sequence[Artifact]) -> bytes | None:
    """Returns what is stored of a result: its JSON, and behind it the list of artifacts if there are any."""
    if not artifacts:
        return result
    return (result or b"") + _SEPARATOR + _encode(artifacts)


def split_result(stored: bytes | None) -> tuple[bytes | None, tuple[Artifact, ...]]:
    """Returns the JSON of a stored result, and its artifacts."""
    if stored is None or _SEPARATOR not in stored:
        return stored, ()
    result, _, artifacts = stored.partition(_SEPARATOR)
    return result or None, _decode(artifacts)
