"""Artifacts of results: which of them a new result names, which a task has, and their content."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from codeq.domain import artifact_checks
from codeq.domain.artifacts import Artifact, ArtifactInput
from codeq.domain.errors import ArtifactTooLarge, InvalidRequest, NotFound
from codeq.domain.limits import ARTIFACT_PART_BYTES, ARTIFACT_READ_BYTES, INLINE_ARTIFACTS_BYTES_MAX
from codeq.domain.requests import Record
from codeq.domain.task import Task
from codeq.store.objects import ObjectMissing
from codeq.usecases import artifact_keys as keys
from codeq.usecases import queries
from codeq.usecases.artifact_storage import ArtifactStorage
from codeq.usecases.artifact_upload import Upload, delivery_uploads, read_complete, read_whole, storage_of
from codeq.usecases.core import Core


def check(core: Core, inputs: Sequence[ArtifactInput]) -> None:
    """Refuses artifacts of a result for all that can be known before anything is stored."""
    limits = core.artifacts.limits if core.artifacts is not None else None
    artifact_checks.check_inputs(inputs, limits.task_artifacts if limits else 0)
    if any(each.url is None for each in inputs):
        storage_of(core)
    size = sum([len(each.content or b"") for each in inputs])
    if size > INLINE_ARTIFACTS_BYTES_MAX:
        raise ArtifactTooLarge(
            f"a result contains at most {INLINE_ARTIFACTS_BYTES_MAX} bytes of artifacts, not {size}; upload larger ones"
        )


async def store(core: Core, task: Task, inputs: Sequence[ArtifactInput]) -> list[Artifact]:
    """Stores the content that a result contains, and finds what was uploaded for it. Nothing of it is visible yet.

    If the result is refused after all, its content is deleted by the next walk over all objects, not here: another
    call of the same worker may have stored the same bytes.
    """
    found: list[Artifact] = []
    if not core.store.is_local and any(_is_last_upload(each) for each in inputs):
        await delivery_uploads(core, task, look_again=True)  # another process may have stored a later one
    for each in inputs:
        if each.url is not None:
            found.append(Artifact(each.name, artifact_checks.content_type(each.content_type), url=each.url))
        elif each.content is not None:
            upload = Upload(core, task, each.name, artifact_checks.content_type(each.content_type))
            found.append(await upload.put_whole(each.content))
        else:
            found.append(await _uploaded(core, task, each))
    limit = storage_of(core).limits.task_bytes if core.artifacts is not None else 0
    if limit and sum([artifact.size for artifact in found]) > limit:
        raise ArtifactTooLarge(f"the artifacts of a task have at most {limit} bytes together")
    return found


def _is_last_upload(wanted: ArtifactInput) -> bool:
    return wanted.url is None and wanted.content is None and wanted.sha256 is None


async def _uploaded(core: Core, task: Task, wanted: ArtifactInput) -> Artifact:
    storage = storage_of(core)
    if wanted.sha256 is not None:
        prefix = keys.upload_prefix(task.tenant, task.id, task.lease_token, wanted.name)
        stored = {each.key async for page in storage.objects.list(prefix) for each in page}
        try:
            return (await read_whole(storage, keys.complete(prefix, wanted.sha256), stored)).artifact
        except ObjectMissing:
            raise _not_uploaded(wanted.name) from None
    for look_again in (False, True):
        uploads = await delivery_uploads(core, task, look_again=look_again)
        progress = uploads.by_name.get(keys.name_hash(wanted.name))
        if progress is not None and progress.complete is not None:
            return progress.complete
    raise _not_uploaded(wanted.name)


def _not_uploaded(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"artifact {name!a} has no contentBase64 and no url, and no complete upload under this lease: upload it first"
    )


def find(record: Record, name: str) -> Artifact:
    for artifact in record.artifacts:
        if artifact.name == name:
            return artifact
    raise NotFound(f"task {record.task.id} has no artifact {name[:80]!a}")


async def listed(core: Core, tenant: str, task_id: str) -> Record:
    """Returns the task with its artifacts: those of its result, so none before it has ended."""
    return await queries.get(core, tenant, task_id)


async def parts_of(core: Core, task: Task, artifact: Artifact) -> "ArtifactContent":
    """Finds where the content of a visible artifact is. Raises InvalidRequest for a link."""
    if artifact.url is not None:
        raise InvalidRequest(f"artifact {artifact.name!a} is a link; its content is at {artifact.url}")
    storage = storage_of(core)
    prefix = keys.upload_prefix(task.tenant, task.id, task.lease_token, artifact.name)
    digests = [artifact.sha256]
    if artifact.size > ARTIFACT_PART_BYTES:
        try:
            digests = (await read_complete(storage, keys.complete(prefix, artifact.sha256))).parts
        except ObjectMissing:
            raise _lost(artifact) from None
    return ArtifactContent(storage, prefix, artifact, digests)


class ArtifactContent:
    """The stored content of one artifact."""

    def __init__(self, storage: ArtifactStorage, prefix: str, artifact: Artifact, digests: Sequence[str]) -> None:
        self.artifact = artifact
        self._storage = storage
        self._prefix = prefix
        self._digests = digests

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Iterates over the bytes from `start` to before `end`, a megabyte at a time, the next of which is read while
        one is used. Raises NotFound if the content is gone."""
        storage = self._storage
        ahead: asyncio.Future[bytes] | None = None
        following: asyncio.Future[bytes] | None = None
        storage.counts.downloads += 1
        try:
            while start < end or ahead is not None:
                if start < end:
                    stop = min(
                        end, start + ARTIFACT_READ_BYTES, start - start % ARTIFACT_PART_BYTES + ARTIFACT_PART_BYTES
                    )
                    following = asyncio.ensure_future(self._piece(start, stop))
                    start = stop
                piece = await ahead if ahead is not None else b""
                ahead, following = following, None
                if piece:
                    storage.counts.downloaded_bytes += len(piece)
                    yield piece
        finally:
            for reading in (ahead, following):
                if reading is not None:
                    reading.cancel()
                    reading.add_done_callback(_ignore)

    async def _piece(self, start: int, stop: int) -> bytes:
        number, begin = divmod(start, ARTIFACT_PART_BYTES)
        key = keys.part(self._prefix, number * ARTIFACT_PART_BYTES, self._digests[number])
        try:
            found = await self._storage.objects.read(key, begin, begin + stop - start)
        except ObjectMissing:
            raise _lost(self.artifact) from None
        if len(found) != stop - start:
            raise _lost(self.artifact)
        return found


def _ignore(reading: "asyncio.Future[bytes]") -> None:
    """Takes note of how a read ended that nobody waits for any more: it would else be logged as a fault."""
    if not reading.cancelled():
        reading.exception()


def _lost(artifact: Artifact) -> NotFound:
    return NotFound(f"the content of artifact {artifact.name!a} is not in the object store")
