"""Stores the content of an artifact while it arrives, part by part, for the worker that holds the task.

Nothing of it is visible before a result names it. An upload that breaks off continues after its last whole part.
"""

import asyncio
import contextlib
import hashlib
import mmap
from collections.abc import Container, Sequence

import msgspec
from msgspec import Struct

from codeq.domain import artifact_checks, lifecycle
from codeq.domain.artifacts import Artifact
from codeq.domain.errors import (
    ArtifactTooLarge,
    DigestMismatch,
    InvalidRequest,
    NotFound,
    NotOwner,
    StoreError,
    UploadOffset,
)
from codeq.domain.limits import ARTIFACT_PART_BYTES, ARTIFACT_READ_BYTES
from codeq.domain.task import Holder, Task
from codeq.store.objects import ObjectMissing, StoredObject
from codeq.usecases import artifact_keys as keys
from codeq.usecases.artifact_storage import ArtifactStorage, DeliveryUploads, UploadProgress
from codeq.usecases.core import Core


class CompleteUpload(Struct, frozen=True):
    """The record of a complete upload in the object store."""

    artifact: Artifact
    parts: list[str]
    """SHA-256 of each part."""
    at_ms: int = 0
    """When it ended."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CompleteUpload).decode
COMPLETE_BYTES_MAX = 1 << 20
"""More than the record of the largest artifact has."""
MODIFIED_STEP_S = 1.0
"""Buckets know in which second an object was stored. Which of them was the last is in the records."""


def storage_of(core: Core) -> ArtifactStorage:
    if core.artifacts is None:
        raise InvalidRequest(
            "this queue has no place for artifacts: tasks are in Redis, so set artifacts.url to a bucket or directory"
        )
    return core.artifacts


class Upload:
    """One artifact that is being uploaded. Bytes are stored in parts of 8 MB, each before the next is accepted."""

    def __init__(self, core: Core, task: Task, name: str, content_type: str) -> None:
        self._core = core
        self._storage = storage_of(core)
        self._task = task
        self._name = name
        self._content_type = content_type
        self._prefix = keys.upload_prefix(task.tenant, task.id, task.lease_token, name)
        self._part: mmap.mmap | None = None
        """Where a part is gathered, in pages of its own, which return to the system. A buffer that grows would copy
        each byte several times, and its memory would stay."""
        self._part_bytes = 0
        self._uploads = DeliveryUploads()
        self._progress = UploadProgress()

    @property
    def offset(self) -> int:
        """How many bytes are stored."""
        return self._progress.offset

    async def begin(self, offset: int, length: int | None) -> None:
        """Starts over at 0, or continues where the last part ended."""
        most = self._storage.limits.artifact_bytes
        if most and max(offset, length or 0) > most:
            raise ArtifactTooLarge(f"an artifact has at most {most} bytes")
        limits, name_hash = self._storage.limits, keys.name_hash(self._name)
        self._uploads = await delivery_uploads(self._core, self._task)
        known = self._uploads.by_name.get(name_hash)
        # Another process may have stored more; and names of which nothing was stored are forgotten.
        if (offset and (known is None or known.offset != offset)) or not self._uploads.has_room(name_hash, limits):
            self._uploads = await delivery_uploads(self._core, self._task, look_again=True)
            known = self._uploads.by_name.get(name_hash)
        if not self._uploads.has_room(name_hash, limits):
            raise InvalidRequest(f"a task has at most {limits.task_artifacts} artifacts; delete uploads of other names")
        if not offset:
            known = UploadProgress(hasher=hashlib.sha256())
        if known is None or known.complete or known.offset != offset:
            stored = known.offset if known else 0
            raise UploadOffset(f"{stored} bytes of this artifact are stored; continue there", offset=stored)
        if known.is_active:  # of a call that was cut off, and has not noticed yet: it may be ahead with its hash
            known = UploadProgress(digests=known.digests[:])
        known.is_active = True
        self._uploads.by_name[name_hash] = self._progress = known

    def close(self) -> None:
        """Ends the call, whether or not the upload is complete. What is not a whole part is dropped."""
        self._progress.is_active = False

    async def write(self, content: bytes) -> None:
        """Takes the next bytes. Returns when every whole part is on disk."""
        most = self._storage.limits.artifact_bytes
        if most and self.offset + self._part_bytes + len(content) > most:
            raise ArtifactTooLarge(f"an artifact has at most {most} bytes")
        if self._part is None:
            self._part = mmap.mmap(-1, ARTIFACT_PART_BYTES)
        left = memoryview(content)
        while left:
            begin, end = self._part_bytes, min(self._part_bytes + len(left), ARTIFACT_PART_BYTES)
            self._part[begin:end] = left[: end - begin]
            left, self._part_bytes = left[end - begin :], end
            if end == ARTIFACT_PART_BYTES:
                self._progress.digests += await self._store_part()

    async def finish(self, *, length: int | None = None, sha256: str | None = None) -> Artifact:
        """Stores what is left, and makes the upload ready to be named by a result."""
        size = self.offset + self._part_bytes
        if length is not None and length != size:
            raise DigestMismatch(f"the artifact has {size} bytes, not {length}")
        try:
            artifact, digests = await self._finished(size)
            if sha256 is not None and sha256 != artifact.sha256:
                raise DigestMismatch(f"the SHA-256 of what arrived is {artifact.sha256}, not {sha256}")
            await self._check_held()
            record = _encode(CompleteUpload(artifact, digests, self._core.now_ms()))
            await self._count(len(record))
            await self._storage.objects.put(keys.complete(self._prefix, artifact.sha256), record)
        except BaseException:
            self._storage.forget(self._task.id, self._task.lease_token)  # its hash has what is not stored
            raise
        self._progress.complete = artifact
        self._storage.counts.uploads += 1
        return artifact

    async def _finished(self, size: int) -> tuple[Artifact, list[str]]:
        digests = self._progress.part_digests()
        if self._part_bytes:
            digests.append((await self._store_part()).hex())
        if self._progress.hasher is None:
            self._progress.hasher = await self._hash_again(digests, size)
        return Artifact(self._name, self._content_type, size, self._progress.hasher.hexdigest()), digests

    async def put_whole(self, content: bytes) -> Artifact:
        """Stores an artifact that a result contains, of one part. It needs no record: the result is one."""
        self._uploads = await delivery_uploads(self._core, self._task)
        digest = await self._store(content) if content else hashlib.sha256().digest()
        self._storage.counts.uploads += 1
        return Artifact(self._name, self._content_type, len(content), digest.hex())

    async def _store_part(self) -> bytes:
        """Stores what was gathered."""
        assert self._part is not None  # noqa: S101 - `write` has filled it
        part, self._part_bytes = memoryview(self._part)[: self._part_bytes], 0
        return await self._store(part)

    async def _store(self, part: bytes | memoryview) -> bytes:
        """Stores one part, and returns its digest. The lease is checked each time: a long upload may outlive it."""
        await self._check_held()
        await self._count(len(part))
        try:
            digest = await asyncio.to_thread(_digest, part, self._progress.hasher)
            await self._storage.objects.put(keys.part(self._prefix, self.offset, digest.hex()), part)
        except BaseException:
            with contextlib.suppress(StoreError):  # the next walk counts again
                await self._storage.release(self._task.tenant, len(part))
            self._storage.forget(self._task.id, self._task.lease_token)  # its hash has what is not stored
            raise
        self._storage.counts.uploaded_bytes += len(part)
        return digest

    async def _count(self, size: int) -> None:
        self._uploads.add(size, self._storage.limits)
        await self._storage.reserve(self._task.tenant, size)

    async def _check_held(self) -> None:
        task = self._task
        await held_task(self._core, task.tenant, task.id, Holder(task.worker or "", task.lease_token))

    async def _hash_again(self, digests: Sequence[str], size: int) -> "hashlib._Hash":
        """Returns the hash of everything, and checks each part, after the upload was continued by another process."""
        whole, offset = hashlib.sha256(), 0
        for digest in digests:
            end, part = min(offset + ARTIFACT_PART_BYTES, size), hashlib.sha256()
            key = keys.part(self._prefix, offset, digest)
            for start in range(0, end - offset, ARTIFACT_READ_BYTES):
                stop = min(start + ARTIFACT_READ_BYTES, end - offset)
                try:
                    piece = await self._storage.objects.read(key, start, stop)
                except ObjectMissing:
                    piece = b""
                await asyncio.to_thread(_update, (part, whole), piece)
            if part.hexdigest() != digest:
                await self._storage.objects.delete([key])
                self._storage.forget(self._task.id, self._task.lease_token)
                raise UploadOffset("a part of this artifact is damaged; send it again", offset=offset)
            offset = end
        return whole


def _digest(part: bytes | memoryview, whole: "hashlib._Hash | None") -> bytes:
    if whole is not None:
        whole.update(part)
    return hashlib.sha256(part).digest()


def _update(hashers: Sequence["hashlib._Hash"], piece: bytes) -> None:
    for hasher in hashers:
        hasher.update(piece)


async def held_task(core: Core, tenant: str, task_id: str, holder: Holder) -> Task:
    """Returns the task if this worker holds its lease; refuses everybody else."""
    [task] = await core.store.get_tasks(tenant, [task_id])
    if task is None:
        raise NotFound(f"there is no task {task_id[:64]!r}")
    lifecycle.check_held(task, holder)
    if task.worker is None:
        raise NotOwner(f"task {task_id} is not leased")
    return task


async def begin_upload(
    core: Core,
    tenant: str,
    task_id: str,
    holder: Holder,
    *,
    name: str,
    content_type: str | None = None,
    offset: int = 0,
    length: int | None = None,
) -> Upload:
    """Begins, or continues at `offset`, the upload of an artifact. `length` is that of the whole, where it is known."""
    artifact_checks.artifact_name(name)
    known_type = artifact_checks.content_type(content_type)
    upload = Upload(core, await held_task(core, tenant, task_id, holder), name, known_type)
    await upload.begin(offset, length)
    return upload


async def upload_progress(core: Core, tenant: str, task_id: str, holder: Holder, *, name: str) -> UploadProgress:
    """Returns how far the upload of an artifact is. Raises NotFound if it has not begun."""
    artifact_checks.artifact_name(name)
    task = await held_task(core, tenant, task_id, holder)
    uploads = await delivery_uploads(core, task, look_again=True)
    progress = uploads.by_name.get(keys.name_hash(name))
    if progress is None:
        raise NotFound(f"nothing of artifact {name!a} is stored")
    return progress


async def delete_upload(core: Core, tenant: str, task_id: str, holder: Holder, *, name: str) -> None:
    """Deletes what this worker has uploaded under the name, before its result."""
    artifact_checks.artifact_name(name)
    storage = storage_of(core)
    task = await held_task(core, tenant, task_id, holder)
    prefix = keys.upload_prefix(tenant, task.id, task.lease_token, name)
    async for page in storage.objects.list(prefix):
        await storage.objects.delete([each.key for each in page])
        await storage.release(tenant, sum([each.size for each in page]))
        storage.counts.deleted_objects += len(page)
    storage.forget(task.id, task.lease_token)


async def delivery_uploads(core: Core, task: Task, *, look_again: bool = False) -> DeliveryUploads:
    """Returns what this delivery has uploaded: as remembered, or as the object store lists it."""
    storage = storage_of(core)
    known = storage.deliveries.get((task.id, task.lease_token))
    if known is None or look_again:
        found = DeliveryUploads()
        by_name: dict[str, list[StoredObject]] = {}
        async for page in storage.objects.list(f"{keys.task_prefix(task.tenant, task.id)}/{task.lease_token}"):
            for each in page:
                parsed = keys.parse(each.key)
                if parsed is not None:
                    found.bytes += each.size
                    found.objects += 1
                    by_name.setdefault(parsed.name_hash, []).append(each)
        for name_hash, objects in by_name.items():
            found.by_name[name_hash] = await _progress_of(storage, objects, known, name_hash)
        for name_hash, progress in known.by_name.items() if known else ():
            if progress.is_active:
                found.by_name.setdefault(name_hash, progress)
        known = found
    storage.remember(task.id, task.lease_token, known)
    return known


async def _progress_of(
    storage: ArtifactStorage, objects: Sequence[StoredObject], known: DeliveryUploads | None, name_hash: str
) -> UploadProgress:
    """Returns the progress that these objects show. Where two uploads wrote different bytes at one offset, that is
    where it ends: which of them is meant is not known."""
    complete = [each for each in objects if "/complete-" in each.key]
    stored = {each.key for each in objects}
    whole: list[CompleteUpload] = []
    since_s = 0.0
    for each in sorted(complete, key=lambda each: each.modified_s, reverse=True):
        if each.modified_s < since_s:
            break
        with contextlib.suppress(ObjectMissing):
            whole.append(await read_whole(storage, each.key, stored))
            since_s = max(since_s, each.modified_s - MODIFIED_STEP_S)
    if whole:
        return UploadProgress(complete=max(whole, key=lambda each: each.at_ms).artifact)
    parts: dict[int, list[str]] = {}
    for each in objects:
        parsed = keys.parse(each.key)
        if parsed is not None and parsed.offset is not None and each.size == ARTIFACT_PART_BYTES:
            parts.setdefault(parsed.offset, []).append(parsed.sha256)
    digests, offset = bytearray(), 0
    while len(parts.get(offset, ())) == 1:
        digests += bytes.fromhex(parts[offset][0])
        offset += ARTIFACT_PART_BYTES
    before = known.by_name.get(name_hash) if known else None
    if before is not None and not before.complete and before.digests == digests:
        return before  # with its hash
    return UploadProgress(digests=digests, hasher=None if digests else hashlib.sha256())


async def read_complete(storage: ArtifactStorage, key: str) -> CompleteUpload:
    """Reads the record of a complete upload. One that cannot be read was torn by a power cut: it counts as missing."""
    try:
        return _decode(await storage.objects.read(key, 0, COMPLETE_BYTES_MAX))
    except msgspec.DecodeError as fault:
        raise ObjectMissing(f"{key}: {fault}") from None


async def read_whole(storage: ArtifactStorage, key: str, stored: Container[str]) -> CompleteUpload:
    """As `read_complete`, and counts an upload as missing of which a part is not stored: it was deleted while another
    call had not ended."""
    found, prefix = await read_complete(storage, key), key.rpartition("/")[0]
    for number, digest in enumerate(found.parts):
        if keys.part(prefix, number * ARTIFACT_PART_BYTES, digest) not in stored:
            raise ObjectMissing(f"{key}: a part is missing")
    return found
