"""Uploads and downloads artifacts in parts of 8 MB: memory stays small, and what breaks off continues there."""

import hashlib
import io
import mimetypes
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from msgspec import Struct

from codeq.domain import artifact_checks
from codeq.domain.artifacts import OCTET_STREAM, Artifact
from codeq.domain.errors import DigestMismatch, InvalidRequest, UploadOffset
from codeq.domain.limits import ARTIFACT_PART_BYTES
from codeq.sdk.jobs import Job

if TYPE_CHECKING:
    from codeq.sdk.backend import Backend

Source = bytes | str | os.PathLike[str] | BinaryIO
"""The content of an artifact: bytes, the path of a file, or a binary file that can be read from any place."""
RESTARTS_MAX = 3
"""How often an upload continues elsewhere than it expected without getting ahead, before it fails."""


class ArtifactPart(Struct, frozen=True, kw_only=True, gc=False):
    """Bytes of an artifact, to be stored at an offset."""

    name: str
    content_type: str
    offset: int
    content: bytes
    length: int
    """Of the whole artifact. The part that reaches it is the last."""

    @property
    def is_last(self) -> bool:
        return self.offset + len(self.content) == self.length


async def upload(
    backend: "Backend",
    job: Job,
    name: str,
    source: Source,
    *,
    content_type: str | None = None,
    resume: bool = False,
) -> Artifact:
    """Uploads a file under the lease of the job. A result that names it makes it visible.

    With `resume`, continues what an earlier call has left; else starts over.
    """
    artifact_checks.artifact_name(name)
    kind = artifact_checks.content_type(content_type or _guessed(name))
    file, closes = await backend.run(_opened, source)
    try:
        reader = _Reader(file)
        length = await backend.run(reader.measure)
        offset = (await backend.artifact_upload(job, name))[0] if resume else 0
        artifact = await _send(backend, job, reader, ArtifactPart(
            name=name, content_type=kind, offset=min(offset, length), content=b"", length=length
        ))  # fmt: skip
    finally:
        if closes:
            file.close()
    job.attached = [*(each for each in job.attached if each.name != name), artifact]
    return artifact


async def _send(backend: "Backend", job: Job, reader: "_Reader", start: ArtifactPart) -> Artifact:
    offset, length, restarts, furthest = start.offset, start.length, 0, -1
    while True:
        content = await backend.run(reader.read, offset, min(ARTIFACT_PART_BYTES, length - offset))
        part = ArtifactPart(
            name=start.name, content_type=start.content_type, offset=offset, content=content, length=length
        )
        try:
            found = await backend.put_artifact_part(job, part)
            offset += len(content)
        except UploadOffset as elsewhere:
            offset, found = await backend.artifact_upload(job, start.name)
            if found is None or found.size != length:
                restarts += offset <= furthest
                if restarts > RESTARTS_MAX:
                    raise elsewhere from None
                is_start = found is not None or offset >= length  # what is stored there is another file
                offset, found = 0 if is_start else offset, None
        furthest = max(furthest, offset)
        if found is not None:
            sha256 = await backend.run(reader.sha256)
            if found.sha256 == sha256:
                return found
            if restarts > RESTARTS_MAX:
                raise DigestMismatch(
                    f"artifact {start.name!a} has the SHA-256 {sha256}, and arrived with {found.sha256}"
                )
            offset, restarts = 0, restarts + 1


async def download(backend: "Backend", task_id: str, artifact: Artifact, target: str | os.PathLike[str]) -> Path:
    """Writes an artifact to a file, which appears when it is complete and its hash is right. For a directory as the
    target, the file has the artifact's name."""
    place = Path(target)
    if await backend.run(place.is_dir):
        place /= artifact_checks.artifact_name(artifact.name)
    file = await backend.run(_temporary, place)
    try:
        await _receive(backend, task_id, artifact, file.write)
        await backend.run(_publish, file, place)
    except BaseException:
        file.close()
        Path(file.name).unlink(missing_ok=True)
        raise
    return place


async def read(backend: "Backend", task_id: str, artifact: Artifact, most: int) -> bytes:
    """Returns the content of an artifact, if it has at most `most` bytes."""
    if artifact.size > most:
        raise InvalidRequest(f"artifact {artifact.name!a} has {artifact.size} bytes, not up to {most}; download it")
    content = io.BytesIO()
    await _receive(backend, task_id, artifact, content.write)
    return content.getvalue()


async def _receive(backend: "Backend", task_id: str, artifact: Artifact, write: Callable[[bytes], object]) -> None:
    if artifact.url is not None:
        raise InvalidRequest(f"artifact {artifact.name!a} is a link; its content is at {artifact.url}")
    hasher = hashlib.sha256()
    for start in range(0, artifact.size, ARTIFACT_PART_BYTES):
        end = min(start + ARTIFACT_PART_BYTES, artifact.size)
        piece = await backend.read_artifact(task_id, artifact, start, end)
        await backend.run(_write, piece, write, hasher)
    if hasher.hexdigest() != artifact.sha256:
        raise DigestMismatch(f"artifact {artifact.name!a} has another SHA-256 than its result says: {artifact.sha256}")


def _write(piece: bytes, write: Callable[[bytes], object], hasher: "hashlib._Hash") -> None:
    hasher.update(piece)
    write(piece)


class _Reader:
    """Reads a file in parts, and hashes each byte once, in order."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self._hashed = 0

    def measure(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def read(self, offset: int, size: int) -> bytes:
        self._hash_to(offset)
        self._file.seek(offset)
        content = self._file.read(size)
        if len(content) != size:
            raise InvalidRequest("the file became shorter while it was uploaded")
        if self._hashed == offset:
            self._hasher.update(content)
            self._hashed += size
        return content

    def sha256(self) -> str:
        self._hash_to(self.measure())
        return self._hasher.hexdigest()

    def _hash_to(self, offset: int) -> None:
        """Hashes what is left out because it is stored already."""
        self._file.seek(self._hashed)
        while self._hashed < offset:
            piece = self._file.read(min(1 << 20, offset - self._hashed))
            if not piece:
                raise InvalidRequest("the file became shorter while it was uploaded")
            self._hasher.update(piece)
            self._hashed += len(piece)


def _opened(source: Source) -> tuple[BinaryIO, bool]:
    """Returns the file, and whether to close it."""
    try:
        if isinstance(source, (bytes, bytearray, memoryview)):
            return io.BytesIO(source), True
        if isinstance(source, (str, os.PathLike)):
            return Path(source).open("rb"), True
        if source.seekable():
            return source, False
    except (OSError, AttributeError) as fault:
        raise InvalidRequest(f"an artifact cannot be read: {fault}") from None
    raise InvalidRequest("an artifact is bytes, the path of a file, or a file that can be read from any place")


def _guessed(name: str) -> str:
    return mimetypes.guess_type(name)[0] or OCTET_STREAM


def _temporary(place: Path) -> IO[bytes]:
    try:
        # Unlike `tempfile` does, for the result is a file like others: whoever may read those may read it.
        return place.with_name(f".{place.name}.{secrets.token_hex(4)}.part").open("xb")
    except OSError as fault:
        raise InvalidRequest(f"cannot write to {place}: {fault}") from None


def _publish(file: IO[bytes], place: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    Path(file.name).replace(place)
