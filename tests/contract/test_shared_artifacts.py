"""Processes that share a Redis agree on the bytes of artifacts that a tenant has, and on which upload was the last."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.contract.redis_engines import node_url, prefix_of
from tests.contract.test_artifacts import complete, content, held, storage, upload
from tests.contract.world import TENANT, World, Worlds

from codeq.domain.artifacts import ArtifactInput, ArtifactLimits
from codeq.domain.errors import QuotaExceeded
from codeq.domain.task import Task
from codeq.store.object_storage import DirectoryObjects
from codeq.store.objects import StoredObject
from codeq.store.redis.artifact_bytes import RedisArtifactBytes
from codeq.usecases import artifact_sweep, artifacts


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
async def test_processes_that_share_a_redis_never_store_more_than_a_tenant_may_have(worlds: Worlds) -> None:
    """Three processes upload for one tenant at the same time, each as much as the tenant may have in all."""
    size, most = 1000, 20_000
    processes = [worlds.open() for _ in range(3)]
    shared = [RedisArtifactBytes(node_url(), prefix_of(process.path)) for process in processes]
    for process, usage in zip(processes, shared, strict=True):
        storage(process).limits = ArtifactLimits(tenant_bytes=most)
        storage(process).usage = usage
    tasks = [await held(process) for process in processes]
    stored = 0

    async def fill(process: World, task: Task) -> None:
        nonlocal stored
        for number in range(most // size):
            inputs = [ArtifactInput(name=f"n{number}", content=bytes([number]) * size)]
            try:
                await artifacts.store(process.core, task, inputs)
                stored += size
            except QuotaExceeded:
                return

    try:
        await asyncio.gather(*(fill(process, task) for process, task in zip(processes, tasks, strict=True)))
        assert stored == most, "all that there is room for, and not a byte more"
        assert {await usage.of(TENANT) for usage in shared} == {most}
        for process, task in zip(processes, tasks, strict=True):
            await process.nack(task)  # so that nothing of it is needed
        await artifact_sweep.walk(processes[1].core, corrects=False)
        assert await shared[0].of(TENANT) == most
        await artifact_sweep.walk(processes[0].core)
        assert await shared[2].of(TENANT) == 0
    finally:
        for usage in shared:
            await usage.close()


class Bucket(DirectoryObjects):
    async def list(self, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        async for page in super().list(prefix):
            yield [each._replace(modified_s=0.0) for each in page]


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
async def test_the_last_upload_counts_whichever_process_took_it(worlds: Worlds) -> None:
    """Also within the second that is all that buckets tell of the time."""
    first, second = worlds.open(), worlds.open()
    for process in (first, second):
        storage(process).objects = Bucket(worlds.folder / "bucket")
    for takes_old, takes_new in ((first, second), (second, first)):
        task = await held(first)
        for process, text in ((takes_old, b"old"), (takes_new, b"new")):
            await upload(process, task, "x", text)
            worlds.clock.pass_ms(1)
        await complete(first, task, ArtifactInput(name="x"))
        assert await content(first, task, "x") == b"new"
