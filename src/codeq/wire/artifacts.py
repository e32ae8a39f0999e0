"""Messages about artifacts, and the headers of uploads and downloads."""

import base64
import binascii
import re
from typing import Annotated, NamedTuple
from urllib.parse import quote

from msgspec import Meta

from codeq.domain import artifacts as domain
from codeq.domain.errors import ArtifactTooLarge, InvalidRequest
from codeq.domain.limits import INLINE_ARTIFACTS_BYTES_MAX
from codeq.wire import paths
from codeq.wire.message import Request, WireStruct

UPLOAD_OFFSET, UPLOAD_LENGTH, UPLOAD_COMPLETE, REPR_DIGEST, CONTENT_RANGE = (
    "upload-offset",
    "upload-length",
    "upload-complete",
    "repr-digest",
    "content-range",
)
"""As in the IETF's draft of resumable uploads, and RFC 9530. `Upload-Complete: ?0` says that more follows.
`Content-Range` is what curl sends with `-C`."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15}|\*)", re.ASCII)
_DIGEST = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):", re.ASCII)


class UploadRange(NamedTuple):
    """Which bytes of a file a request has."""

    start: int
    end: int
    """Behind the last one."""
    size: int | None
    """Of the whole file; None if the client does not know it."""


class SubmittedArtifact(Request, frozen=True, kw_only=True, gc=False):
    """A file of a result: with its content, with a link, or uploaded before."""

    name: str
    content_base64: str | None = None
    url: str | None = None
    content_type: str | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """Of an uploaded file: which, if the name was uploaded more than once. By default the last."""


class ArtifactView(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    name: str
    url: str
    """Where its content is: a path of this server, or the link that the worker submitted."""
    content_type: str | None = None
    size: int | None = None
    """In bytes; absent for a link, as is the hash."""
    sha256: str | None = None


class ArtifactViews(WireStruct, frozen=True, kw_only=True, gc=False):
    artifacts: list[ArtifactView]


class UploadView(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    """How far an upload is."""

    name: str
    offset: int
    """How many bytes are stored. The next request continues there."""
    complete: bool
    """A result may name it."""
    content_type: str | None = None
    sha256: str | None = None
    """Of a complete one."""


def artifact_view(task_id: str, artifact: domain.Artifact) -> ArtifactView:
    if artifact.url is not None:
        return ArtifactView(name=artifact.name, url=artifact.url, content_type=artifact.content_type)
    url = paths.ARTIFACT.format(id=task_id, name=quote(artifact.name, safe=""))
    return ArtifactView(
        name=artifact.name,
        url=url,
        content_type=artifact.content_type,
        size=artifact.size,
        sha256=artifact.sha256,
    )


def artifact_of(view: ArtifactView) -> domain.Artifact:
    """Returns the artifact of a response."""
    kind = view.content_type or domain.OCTET_STREAM
    if view.size is None:
        return domain.Artifact(view.name, kind, url=view.url)
    return domain.Artifact(view.name, kind, view.size, view.sha256 or "")


def artifact_input(message: SubmittedArtifact) -> domain.ArtifactInput:
    """Returns the artifact of a submitted result. Its length is checked before it is decoded."""
    content = None
    if message.content_base64 is not None:
        if len(message.content_base64) > INLINE_ARTIFACTS_BYTES_MAX * 4 // 3 + 4:
            raise ArtifactTooLarge(
                f"a result contains at most {INLINE_ARTIFACTS_BYTES_MAX} bytes of artifacts; upload larger ones"
            )
        try:
            content = base64.b64decode(message.content_base64, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"contentBase64 of artifact {message.name[:80]!a} is not base64") from None
    return domain.ArtifactInput(
        name=message.name,
        content=content,
        url=message.url,
        content_type=message.content_type,
        sha256=message.sha256,
    )


def digest_header(sha256: str) -> str:
    """Returns the value of `Repr-Digest`."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def sha256_of(header: str) -> str | None:
    """Returns the SHA-256 in the value of `Repr-Digest`, in hexadecimal; None if it has only other hashes, or none."""
    found = None
    for member in header.split(",") if header else ():
        digest = _DIGEST.fullmatch(member.strip())
        if digest is None:
            raise InvalidRequest("repr-digest is like sha-256=:...:, with the hash in base64")
        if digest[1] == "sha-256":
            found = _sha256_of(digest[2])
    return found


def _sha256_of(encoded: str) -> str:
    try:
        found = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != 32:
        raise InvalidRequest("sha-256 in repr-digest has 32 bytes in base64")
    return found.hex()


def upload_range_of(header: str) -> UploadRange:
    """Returns what the value of `Content-Range` says."""
    match = _CONTENT_RANGE.fullmatch(header)
    if match is not None:
        start, end = int(match[1]), int(match[2]) + 1
        size = None if match[3] == "*" else int(match[3])
        if start < end and (size is None or end <= size):
            return UploadRange(start, end, size)
    raise InvalidRequest(f"content-range is like bytes 0-99/200, not {header[:60]!a}")


def is_complete(header: str) -> bool:
    """Returns what the value of `Upload-Complete` says."""
    if header not in ("?0", "?1"):
        raise InvalidRequest(f"upload-complete is ?0 or ?1, not {header[:60]!a}")
    return header == "?1"
