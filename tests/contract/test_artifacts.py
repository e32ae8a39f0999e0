"""Files of results on every engine: visible with the result and with nothing else, gone with the task."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from tests.contract.engines import on_every_engine
from tests.contract.world import KEEP_MS, TENANT, World

from codeq.domain.artifacts import Artifact, ArtifactInput, ArtifactLimits
from codeq.domain.errors import (
    ArtifactTooLarge,
    Cancelled,
    CodeqError,
    InvalidRequest,
    NotFound,
    NotOwner,
    QuotaExceeded,
    StoreUnavailable,
    UploadOffset,
)
from codeq.domain.limits import ARTIFACT_PART_BYTES as PART
from codeq.domain.requests import Outcome
from codeq.domain.task import Holder, Status, Task
from codeq.store.objects import Content, StoredObject
from codeq.usecases import artifact_sweep, artifacts, purge
from codeq.usecases.artifact_storage import ArtifactStorage
from codeq.usecases.artifact_upload import begin_upload, delete_upload, upload_progress
from codeq.usecases.submit import Submitted, submit

pytestmark = on_every_engine


def storage(world: World) -> ArtifactStorage:
    assert world.core.artifacts is not None
    return world.core.artifacts


def holder(task: Task) -> Holder:
    return Holder(task.worker or "", task.lease_token)


async def upload(world: World, task: Task, name: str, content: bytes, *, offset: int = 0) -> Artifact:
    begun = await begin_upload(world.core, TENANT, task.id, holder(task), name=name, offset=offset)
    await begun.write(content)
    try:
        return await begun.finish()
    finally:
        begun.close()


async def upload_many(world: World, task: Task) -> None:
    for number in range(100):
        await upload(world, task, f"n{number}", bytes(100))


async def complete(world: World, task: Task, *inputs: ArtifactInput) -> Submitted | CodeqError:
    outcome = Outcome(
        task_id=task.id, holder=holder(task), status=Status.COMPLETED, result=b'{"a":1}', artifacts=inputs
    )
    [answer] = await submit(world.core, TENANT, [outcome])
    return answer


async def content(world: World, task: Task, name: str) -> bytes:
    record = await world.get(task)
    found = await artifacts.parts_of(world.core, record.task, artifacts.find(record, name))
    return b"".join([piece async for piece in found.read(0, found.artifact.size)])


async def keys(world: World) -> list[str]:
    return sorted([each.key async for page in storage(world).objects.list() for each in page])


async def _objects(world: World) -> AsyncIterator[StoredObject]:
    async for page in storage(world).objects.list():
        for each in page:
            yield each


async def held(world: World) -> Task:
    await world.enqueue()
    return await world.claim_one()


async def test_files_survive_with_their_result(world: World) -> None:
    task, big = await held(world), os.urandom(PART + 7)
    uploaded = await upload(world, task, "big", big)
    answer = await complete(
        world, task, ArtifactInput(name="big"), ArtifactInput(name="small", content=b"s", content_type="text/plain")
    )
    assert isinstance(answer, Submitted)
    assert list(answer.artifacts) == [uploaded, Artifact("small", "text/plain", 1, answer.artifacts[1].sha256)]
    record = await world.get(task)
    assert (record.result, list(record.artifacts)) == (b'{"a":1}', list(answer.artifacts))
    assert (record.task.artifacts, record.task.artifact_bytes) == (2, PART + 8)
    assert await content(world, task, "big") == big
    assert await content(world, task, "small") == b"s"


async def test_check_69_a_refused_result_leaves_nothing_visible_and_the_sweep_removes_it(world: World) -> None:
    task = await held(world)
    await upload(world, task, "up", b"1")
    [nacked] = [await world.nack(task)]
    assert nacked.status is Status.PENDING
    late = await complete(world, task, ArtifactInput(name="in", content=b"2"), ArtifactInput(name="up"))
    assert isinstance(late, CodeqError)
    assert (await world.get(task)).artifacts == ()
    swept = await artifact_sweep.walk(world.core)
    assert (swept.objects, swept.deleted) == (0, 2)
    assert await keys(world) == []


async def test_the_sweep_keeps_what_is_needed(world: World) -> None:
    running, done = await held(world), await held(world)
    await upload(world, running, "r", b"1")
    await upload(world, done, "named", os.urandom(PART + 1))
    await upload(world, done, "forgotten", b"2")
    await complete(world, done, ArtifactInput(name="named"), ArtifactInput(name="inline", content=b"3"))
    swept = await artifact_sweep.walk(world.core)
    assert swept.deleted == 2, "a part, and the record that it is complete"
    assert len(await content(world, done, "named")) == PART + 1
    assert await content(world, done, "inline") == b"3"
    assert (await upload_progress(world.core, TENANT, running.id, holder(running), name="r")).complete is not None
    assert await storage(world).usage.of(TENANT) == swept.bytes
    assert (await artifact_sweep.walk(world.core)).deleted == 0


async def test_the_sweep_removes_earlier_uploads_of_a_file_that_a_result_names(world: World) -> None:
    task = await held(world)
    same = os.urandom(PART)
    wanted = {"small": b"new", "large": same + b"new", "empty": b""}
    for name in wanted:
        for earlier in (b"old", same + b"old", os.urandom(2 * PART + 9)):
            await upload(world, task, name, earlier)
    for name, whole in wanted.items():
        await upload(world, task, name, whole)
    assert (await artifact_sweep.walk(world.core)).deleted == 0, "until the task ends, a result may name any of them"
    await complete(world, task, *[ArtifactInput(name=name) for name in wanted])
    await artifact_sweep.walk(world.core)
    left = await keys(world)
    assert len(left) == (1 + 1) + (2 + 1) + (0 + 1), "parts, and the records that they are complete"
    for name, whole in wanted.items():
        assert await content(world, task, name) == whole
    assert await storage(world).usage.of(TENANT) == sum([each.size async for each in _objects(world)])


async def test_a_walk_deletes_nothing_that_was_uploaded_after_it_looked(world: World) -> None:
    first = await held(world)
    await upload(world, first, "x", b"1")
    listed = storage(world).objects.list

    async def late_list(prefix: str = "") -> object:
        async for page in listed(prefix):
            await world.nack(first, delay_ms=0)
            again = await world.claim_one()
            await upload(world, again, "x", b"2")
            yield page

    storage(world).objects.list = late_list  # type: ignore[method-assign, assignment]
    await artifact_sweep.walk(world.core)
    storage(world).objects.list = listed  # type: ignore[method-assign]
    left = await keys(world)
    assert len(left) == 2
    assert all(f"/{first.lease_token + 1}/" in key for key in left)


async def test_files_are_deleted_with_their_task(world: World) -> None:
    task, other = await held(world), await held(world)
    await complete(world, task, ArtifactInput(name="a", content=b"1"))
    await complete(world, other, ArtifactInput(name="a", content=b"1"))
    world.clock.pass_ms(KEEP_MS)
    await purge.purge_before(world.core, TENANT, world.core.now_ms(), limit=1)
    assert await artifact_sweep.delete_purged(world.core) == 1
    assert len(await keys(world)) == 1
    await world.sweep()
    storage(world).purged.clear()  # as after a crash
    assert (await artifact_sweep.walk(world.core)).deleted == 1
    assert await keys(world) == []


async def test_a_download_of_what_is_deleted_meanwhile_ends_without_a_word_in_the_log(world: World) -> None:
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    for reads_on in (True, False):
        task = await held(world)
        await upload(world, task, "x", os.urandom(PART + 1))
        await complete(world, task, ArtifactInput(name="x"))
        record = await world.get(task)
        found = await artifacts.parts_of(world.core, record.task, artifacts.find(record, "x"))
        pieces = found.read(0, found.artifact.size)
        assert await anext(pieces)
        await storage(world).objects.delete(await keys(world))
        if reads_on:
            with pytest.raises(NotFound):
                b"".join([piece async for piece in pieces])
        await pieces.aclose()
        for _ in range(10):
            await asyncio.sleep(0.01)
        gc.collect()
    assert unseen == []


async def test_a_late_worker_cannot_touch_what_was_accepted(world: World) -> None:
    task = await held(world)
    begun = await begin_upload(world.core, TENANT, task.id, holder(task), name="x")
    await begun.write(b"late")
    await world.nack(task, delay_ms=0)
    again = await world.claim_one()
    await upload(world, again, "x", b"accepted")
    with pytest.raises(NotOwner):
        await begun.finish()
    await complete(world, again, ArtifactInput(name="x"))
    with pytest.raises(CodeqError):
        await begun.finish()
    assert await content(world, again, "x") == b"accepted"


async def test_the_worker_of_a_cancelled_task_cannot_upload(world: World) -> None:
    task = await held(world)
    await world.cancel(task)
    with pytest.raises(Cancelled):
        await upload(world, task, "x", b"1")


async def test_an_upload_continues_in_another_process_with_the_right_hash(world: World) -> None:
    task, whole = await held(world), os.urandom(2 * PART + 5)
    begun = await begin_upload(world.core, TENANT, task.id, holder(task), name="x")
    await begun.write(whole[: PART + 9])
    begun.close()
    storage(world).deliveries.clear()
    with pytest.raises(UploadOffset) as refused:
        await upload(world, task, "x", b"", offset=2 * PART)
    assert refused.value.offset == PART
    artifact = await upload(world, task, "x", whole[PART:], offset=PART)
    await complete(world, task, ArtifactInput(name="x", sha256=artifact.sha256))
    assert await content(world, task, "x") == whole


async def test_a_damaged_part_is_sent_again(world: World) -> None:
    task, whole = await held(world), os.urandom(PART + 5)
    begun = await begin_upload(world.core, TENANT, task.id, holder(task), name="x")
    await begun.write(whole[:PART])
    begun.close()
    [part] = await keys(world)
    await storage(world).objects.put(part, bytes(PART))
    storage(world).deliveries.clear()
    with pytest.raises(UploadOffset) as refused:
        await upload(world, task, "x", whole[PART:], offset=PART)
    assert refused.value.offset == 0
    await upload(world, task, "x", whole)


async def test_limits_hold_per_artifact_task_and_tenant(world: World) -> None:
    task = await held(world)
    limits = ArtifactLimits(artifact_bytes=100, task_bytes=1500, tenant_bytes=3000)
    storage(world).limits = limits
    with pytest.raises(ArtifactTooLarge):
        await upload(world, task, "x", bytes(101))
    with pytest.raises(ArtifactTooLarge):
        await upload_many(world, task)
    storage(world).limits = replace(limits, task_bytes=0)
    with pytest.raises(QuotaExceeded) as refused:
        await upload_many(world, task)
    assert refused.value.limit == "artifact_bytes"
    await world.nack(task)
    await artifact_sweep.walk(world.core)
    await upload(world, await held(world), "x", b"1")


async def test_a_delivery_uploads_no_more_files_than_a_result_may_name(world: World) -> None:
    storage(world).limits = ArtifactLimits(task_artifacts=3, task_bytes=PART)
    task = await held(world)
    for number in range(5):  # nothing of them is stored
        (await begin_upload(world.core, TENANT, task.id, holder(task), name=f"empty-handed{number}")).close()
    begun = await begin_upload(world.core, TENANT, task.id, holder(task), name="under way")
    for name in ("a", "b", "a"):
        await upload(world, task, name, b"")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="at most 3 artifacts"):
            await upload(world, task, "c", b"")
    await begun.finish()
    begun.close()
    await delete_upload(world.core, TENANT, task.id, holder(task), name="b")
    await upload(world, task, "c", b"")
    with pytest.raises(InvalidRequest, match="at most 3 artifacts"):
        await upload(world, task, "b", b"")


async def test_earlier_uploads_of_a_name_count(world: World) -> None:
    storage(world).limits = ArtifactLimits(task_artifacts=3, task_bytes=PART)
    task = await held(world)
    for number in range(6):
        await upload(world, task, "a", b"%d" % number)
    with pytest.raises(ArtifactTooLarge, match="delete some"):
        await upload(world, task, "a", b"more")
    await delete_upload(world.core, TENANT, task.id, holder(task), name="a")
    await upload(world, task, "a", b"more")


async def test_what_was_deleted_while_it_was_uploaded_is_in_no_result(world: World) -> None:
    """Else the result would have a file without content, for good."""
    task, whole = await held(world), os.urandom(PART + 5)
    begun = await begin_upload(world.core, TENANT, task.id, holder(task), name="x")
    await begun.write(whole)
    await delete_upload(world.core, TENANT, task.id, holder(task), name="x")
    uploaded = await begun.finish()
    for sha256 in (uploaded.sha256, None):
        answer = await complete(world, task, ArtifactInput(name="x", sha256=sha256))
        assert "upload it first" in str(answer)
    await upload(world, task, "x", whole)
    assert isinstance(await complete(world, task, ArtifactInput(name="x")), Submitted)
    assert await content(world, task, "x") == whole


async def test_a_failing_object_store_refuses_the_result_and_the_next_try_succeeds(world: World) -> None:
    task = await held(world)
    put = storage(world).objects.put

    async def fail(key: str, data: Content) -> None:
        raise StoreUnavailable("no")

    storage(world).objects.put = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable):
        await complete(world, task, ArtifactInput(name="x", content=b"1"))
    assert (await world.get(task)).task.status is Status.IN_PROGRESS
    storage(world).objects.put = put  # type: ignore[method-assign]
    assert isinstance(await complete(world, task, ArtifactInput(name="x", content=b"1")), Submitted)


async def test_two_calls_that_upload_the_same_artifact_do_not_mix(world: World) -> None:
    task, ones, twos = await held(world), b"1" * (PART + 3), b"2" * (PART + 3)
    both = [await begin_upload(world.core, TENANT, task.id, holder(task), name="x") for _ in range(2)]
    await asyncio.gather(both[0].write(ones), both[1].write(twos))
    first, second = await asyncio.gather(both[0].finish(), both[1].finish())
    await complete(world, task, ArtifactInput(name="x", sha256=first.sha256))
    assert await content(world, task, "x") == ones
    assert first.sha256 != second.sha256
