"""Deletes the files that no result names, and counts what each tenant has stored.

Those of purged tasks are deleted at once, those of lost leases and broken uploads by a walk over all objects.

The walk reads a task after it has seen its objects, and lease tokens only grow: what it finds unused stays unused.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from codeq.domain.artifacts import Artifact
from codeq.domain.errors import StoreBusy, StoreFull, StoreUnavailable
from codeq.domain.limits import ARTIFACT_PART_BYTES
from codeq.domain.task import Move, Status, Task
from codeq.store.objects import ObjectMissing, StoredObject
from codeq.usecases import artifact_keys as keys
from codeq.usecases.artifact_storage import TENANTS_MAX, ArtifactStorage
from codeq.usecases.artifact_upload import read_complete, storage_of
from codeq.usecases.budget import LoopBudget
from codeq.usecases.core import Core

PURGED_EVERY_S = 1.0
OWNER_KEY = "codeq-owner"
UNFINISHED_S_MAX = 600.0
"""How old a file that is being written must be to be left behind by a process that is gone."""
SWEEPER = ""
"""As in `sweep`: stands for background work among the tenants that take turns."""

log = logging.getLogger("codeq.sweep")
_ENDED_BY_WORKER = (Move.COMPLETE, Move.FAIL)


class SweepResult(NamedTuple):
    objects: int
    bytes: int
    deleted: int


async def run(core: Core, on_failure: Callable[[str], None]) -> None:
    """Deletes what is not needed until cancelled. A failing object store is tried again at the next interval."""
    storage = storage_of(core)
    next_walk_s = 0.0
    while True:
        try:
            await delete_purged(core)
            if asyncio.get_running_loop().time() >= next_walk_s:
                next_walk_s = asyncio.get_running_loop().time() + storage.sweep_every_s
                is_sweeper = await core.store.peers.is_sweeper(0)
                await walk(core, deletes=is_sweeper and await is_owner(storage), corrects=is_sweeper)
        except (StoreBusy, StoreFull, StoreUnavailable) as fault:
            log.warning("artifacts cannot be swept, trying again later: %s", fault)
            on_failure("sweep_artifacts")
        await asyncio.sleep(min(PURGED_EVERY_S, storage.sweep_every_s))


async def is_owner(storage: ArtifactStorage) -> bool:
    """Returns whether the objects of unknown tasks there are left by this installation. The first one there owns them:
    another must not delete what it knows nothing of."""
    if storage.owner is None:
        return True
    ours = await storage.owner()
    try:
        theirs = (await storage.objects.read(OWNER_KEY, 0, 256)).decode("ascii", "replace")
    except ObjectMissing:
        await storage.objects.put(OWNER_KEY, ours.encode())
        return True
    if theirs != ours:
        log.error("artifacts.url is used by another installation: unused artifacts are not deleted; use another prefix")
    return theirs == ours


async def delete_purged(core: Core) -> int:
    """Deletes the files of tasks that were purged. Returns of how many tasks."""
    storage = storage_of(core)
    tasks = 0
    while storage.purged:
        tenant, task_id = storage.purged.popleft()
        await core.store.flush([task_id])  # first the task for good, then its files
        async for page in storage.objects.list(keys.task_prefix(tenant, task_id)):
            await _delete(storage, tenant, page)
        tasks += 1
    return tasks


async def walk(
    core: Core, *, deletes: bool = True, corrects: bool = True, unfinished_s: float = UNFINISHED_S_MAX
) -> SweepResult:
    """Looks at every object once: counts it, or deletes it if no result and no running task needs it. Of processes that
    share what they count, one corrects it."""
    storage, budget = storage_of(core), LoopBudget(core, SWEEPER)
    before = await storage.usage.all()
    by_tenant = dict.fromkeys(before, 0)
    objects = size = deleted = 0
    async for page in storage.objects.list():
        needed = _Needed(core, page)  # another for each page: what it reads must be newer than what was listed
        unused: list[tuple[str, StoredObject]] = []
        for each in page:
            await budget.yield_if_spent()
            key = keys.parse(each.key)
            if key is None:
                continue  # not ours
            if deletes and not await needed.has(key):
                unused.append((key.tenant, each))
                continue
            objects, size = objects + 1, size + each.size
            if key.tenant in by_tenant or len(by_tenant) < TENANTS_MAX:
                by_tenant[key.tenant] = by_tenant.get(key.tenant, 0) + each.size
        await storage.objects.delete([each.key for _, each in unused])
        deleted += len(unused)
    if deletes:
        deleted += await storage.objects.remove_unfinished(core.now_ms() / 1000 - unfinished_s)
    for tenant, found in by_tenant.items() if corrects else ():
        if found != before.get(tenant, 0):  # what was stored meanwhile may count twice until the next walk
            await storage.usage.add(tenant, found - before.get(tenant, 0), 0)
    counts = storage.counts
    counts.objects, counts.bytes, counts.deleted_objects = objects, size, counts.deleted_objects + deleted
    return SweepResult(objects, size, deleted)


class _Needed:
    """Answers whether an object is needed. Objects of one task follow each other, so the last task is remembered."""

    def __init__(self, core: Core, page: Sequence[StoredObject]) -> None:
        self._core = core
        self._repeated = _repeated(page)
        self._of: tuple[str, str] = ("", "")
        self._task: Task | None = None
        self._named: dict[str, Artifact] | None = None
        """The files that are in its result, by the hash of their names, once somebody asked."""
        self._parts: dict[str, Sequence[str]] = {}
        """What their parts hash to, of those of which it was asked."""

    async def has(self, key: keys.ArtifactKey) -> bool:
        if self._of != (key.tenant, key.task_id):
            [self._task] = await self._core.store.get_tasks(key.tenant, [key.task_id])
            self._of, self._named, self._parts = (key.tenant, key.task_id), None, {}
        task = self._task
        if task is None or task.lease_token != key.token:
            return False
        if task.status is Status.IN_PROGRESS:
            return True
        if task.move not in _ENDED_BY_WORKER or not task.artifacts:
            return False
        if self._named is None:
            self._named = await self._read_named(task)
        artifact = self._named.get(key.name_hash)
        return artifact is not None and await self._is_of(key, artifact)

    async def _is_of(self, key: keys.ArtifactKey, artifact: Artifact) -> bool:
        """Returns whether the object is of this file, not of another upload of its name."""
        if key.offset is None or artifact.size <= ARTIFACT_PART_BYTES:
            return key.sha256 == artifact.sha256
        if key.offset >= artifact.size:
            return False
        if (key.task_id, key.token, key.name_hash) not in self._repeated:
            return True  # most often, and without reading anything
        if key.name_hash not in self._parts:
            prefix = keys.upload_prefix(key.tenant, key.task_id, key.token, artifact.name)
            try:
                complete = await read_complete(storage_of(self._core), keys.complete(prefix, artifact.sha256))
            except ObjectMissing:
                return True  # nobody knows which parts are its own
            self._parts[key.name_hash] = complete.parts
        return self._parts[key.name_hash][key.offset // ARTIFACT_PART_BYTES] == key.sha256

    async def _read_named(self, task: Task) -> dict[str, Artifact]:
        [record] = await self._core.store.get_records(task.tenant, [task.id])
        if record is None:
            raise StoreUnavailable(f"the result of task {task.id} cannot be read")
        return {keys.name_hash(artifact.name): artifact for artifact in record.artifacts}


def _repeated(page: Sequence[StoredObject]) -> set[tuple[str, int, str]]:
    """Returns the uploads of which two parts begin at one place: the name was uploaded more than once."""
    parts = [key for each in page if (key := keys.parse(each.key)) is not None and key.offset is not None]
    begins = Counter([(key.task_id, key.token, key.name_hash, key.offset) for key in parts])
    return {begin[:3] for begin, number in begins.items() if number > 1}


async def _delete(storage: ArtifactStorage, tenant: str, page: Sequence[StoredObject]) -> None:
    await storage.objects.delete([each.key for each in page])
    await storage.release(tenant, sum([each.size for each in page]))
    storage.counts.deleted_objects += len(page)
