"""Handlers attach files to their jobs: in threads, in child processes and on the event loop."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.worker import handlers

import codeq
from codeq.domain.limits import ARTIFACT_PART_BYTES as PART

Source = codeq.Client | codeq.Queue


def work(worker: codeq.Worker, queue: Source) -> None:
    asyncio.run(worker.run_async(queue, until_idle=True))


def attach_plain(payload: Any, job: codeq.RunningJob) -> str:
    path = Path(payload["folder"]) / "made.bin"
    path.write_bytes(b"x" * payload["size"])
    job.attach("made.bin", path)
    job.attach("note.txt", b"n" * payload["size"], content_type="text/x-note")
    return "done"


async def attach_awaited(payload: Any, job: codeq.RunningJob) -> str:
    path = Path(payload["folder"]) / "made.bin"
    path.write_bytes(b"x" * payload["size"])
    await job.attach_async("made.bin", str(path))
    await job.attach_async("note.txt", b"n" * payload["size"], content_type="text/x-note")
    return "done"


@pytest.mark.parametrize("size", [5, PART + 5], ids=["small", "large"])
@pytest.mark.parametrize("pool", ["thread", "process", "loop"])
def test_a_handler_attaches_files(pool: str, size: int, queue: Source, tmp_path: Path) -> None:
    worker = codeq.Worker(concurrency=2)
    if pool == "process":
        worker.task("attach", process=True)(handlers.attach_files)
    else:
        worker.task("attach")(attach_plain if pool == "thread" else attach_awaited)
    task = queue.enqueue("attach", {"folder": str(tmp_path), "size": size})
    work(worker, queue)
    assert queue.wait(task.id, 10) == "done"
    assert [(each.name, each.size, each.content_type) for each in queue.artifacts(task.id)] == [
        ("made.bin", size, "application/octet-stream"), ("note.txt", size, "text/x-note"),
    ]  # fmt: skip
    assert queue.read_artifact(task.id, "made.bin") == b"x" * size
    assert queue.read_artifact(task.id, "note.txt") == b"n" * size
    assert os.listdir(tmp_path) == ["made.bin"]


def attach_and_fail(payload: Any, job: codeq.RunningJob) -> None:
    job.attach("x", b"of a try that failed")
    if job.attempt == 1:
        raise codeq.Retry(0)
    job.attach("y", b"of the second")


def test_files_of_a_failed_try_are_not_part_of_the_result(queue: Source) -> None:
    worker = codeq.Worker(concurrency=1)
    worker.task("attach")(attach_and_fail)
    task = queue.enqueue("attach")
    work(worker, queue)
    assert sorted(each.name for each in queue.artifacts(task.id)) == ["x", "y"]
    assert queue.read_artifact(task.id, "y") == b"of the second"


@pytest.mark.parametrize("pool", ["thread", "process", "loop"])
def test_a_file_that_cannot_be_attached_is_the_error_of_the_handler(pool: str, queue: Source) -> None:
    def plain(payload: Any, job: codeq.RunningJob) -> None:
        job.attach("../x", b"1")

    async def awaited(payload: Any, job: codeq.RunningJob) -> None:
        await job.attach_async("../x", b"1")

    worker = codeq.Worker(concurrency=1)
    if pool == "process":
        worker.task("attach", process=True)(handlers.attach_badly)
    else:
        worker.task("attach")(plain if pool == "thread" else awaited)
    task = queue.enqueue("attach", max_attempts=1)
    work(worker, queue)
    details = queue.get(task.id)
    assert details.task.is_dead
    assert "InvalidRequest" in (details.task.last_error or "")


def test_each_kind_of_handler_has_its_way_to_attach(queue: Source) -> None:
    def plain(payload: Any, job: codeq.RunningJob) -> None:
        asyncio.run(job.attach_async("x", b"1"))

    async def awaited(payload: Any, job: codeq.RunningJob) -> None:
        job.attach("x", b"1")

    worker = codeq.Worker(concurrency=1)
    worker.task("plain")(plain)
    worker.task("awaited")(awaited)
    for command, hint in (("plain", "job.attach("), ("awaited", "attach_async(")):
        task = queue.enqueue(command, max_attempts=1)
        work(worker, queue)
        assert hint in (queue.get(task.id).task.last_error or "")
