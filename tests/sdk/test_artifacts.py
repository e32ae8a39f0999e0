"""Files of results through every kind of client: attached, listed, read, downloaded, and continued after a break."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.clients import Connect, token_for
from tests.sdk.proxy import Proxy, cut_answer, lose_answer, lose_request, pass_on
from tests.server.server_process import Server
from tests.server.stores import artifacts_folder

import codeq
from codeq.domain.limits import ARTIFACT_PART_BYTES as PART
from codeq.errors import CodeqError, DigestMismatch, InvalidRequest, NotFound, NotOwner
from codeq.sdk.blocking import BlockingVerbs

BIG = os.urandom(2 * PART + 4321)


def claimed(queue: BlockingVerbs) -> codeq.Job:
    queue.enqueue("work")
    [job] = queue.claim("work")
    return job


def test_a_job_has_the_files_that_were_attached_to_it(queue: BlockingVerbs, tmp_path: Path) -> None:
    job = claimed(queue)
    (tmp_path / "in.bin").write_bytes(BIG)
    attached = queue.attach(job, "big.bin", tmp_path / "in.bin")
    queue.attach(job, "t.csv", b"1,2")
    queue.attach(job, "t.csv", b"3,4", content_type="text/x-own")
    queue.attach(job, "file", io.BytesIO(b"of a file"))
    assert queue.artifacts(job.id) == []
    queue.complete(job, {"n": 1})

    found = queue.artifacts(job.id)
    assert found[0] == attached
    assert [(each.name, each.size, each.content_type) for each in found] == [
        ("big.bin", len(BIG), "application/octet-stream"), ("t.csv", 3, "text/x-own"),
        ("file", 9, "application/octet-stream"),
    ]  # fmt: skip
    assert queue.read_artifact(job.id, "t.csv") == b"3,4"
    assert queue.download_artifact(job.id, "big.bin", tmp_path / "out").read_bytes() == BIG
    (tmp_path / "folder").mkdir()
    assert queue.download_artifact(job.id, "file", tmp_path / "folder") == tmp_path / "folder" / "file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "in.bin", "out"]
    modes = [(tmp_path / name).stat().st_mode for name in ("out", "in.bin")]
    assert modes[0] == modes[1], "whoever may read other files may read a downloaded one"
    details = queue.get(job.id)
    assert (details.result, details.task.artifacts) == ({"n": 1}, 3)


def test_a_failed_job_keeps_its_files(queue: BlockingVerbs) -> None:
    job = claimed(queue)
    queue.attach(job, "log.txt", b"why")
    queue.fail(job, "broken")
    assert queue.read_artifact(job.id, "log.txt") == b"why"
    assert queue.artifacts(job.id)[0].content_type == "text/plain"


def test_a_lost_lease_attaches_nothing(queue: BlockingVerbs) -> None:
    job = claimed(queue)
    queue.nack(job, delay=0)
    [again] = queue.claim("work")
    with pytest.raises(NotOwner):
        queue.attach(job, "x", BIG)
    queue.complete(again)
    assert queue.artifacts(job.id) == []


def test_what_does_not_exist_is_not_found(queue: BlockingVerbs, tmp_path: Path) -> None:
    job = claimed(queue)
    queue.complete(job)
    with pytest.raises(NotFound):
        queue.read_artifact(job.id, "x")
    with pytest.raises(NotFound):
        queue.download_artifact("01a1ecef-bfc8-7001-8623-984b35e40000", "x", tmp_path)
    with pytest.raises(NotFound):
        queue.artifacts("nonsense")


WRONG: dict[str, tuple[str, Any]] = {
    "a path": ("a/b", b"1"), "no name": ("", b"1"), "a control character": ("a\nb", b"1"), "no content": ("x", None),
    "no file": ("x", "/does/not/exist"), "a directory": ("x", "/"), "a number": ("x", 7),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_attached_is_refused(what: str, queue: BlockingVerbs) -> None:
    job = claimed(queue)
    name, content = WRONG[what]
    with pytest.raises(InvalidRequest):
        queue.attach(job, name, content)
    queue.complete(job)
    assert queue.artifacts(job.id) == []


def test_a_file_that_is_too_large_is_not_read_into_memory(queue: BlockingVerbs) -> None:
    job = claimed(queue)
    queue.attach(job, "x", bytes(1000))
    queue.complete(job)
    with pytest.raises(InvalidRequest):
        queue.read_artifact(job.id, "x", most=999)


def test_an_upload_continues_what_an_earlier_call_left(queue: BlockingVerbs) -> None:
    job = claimed(queue)

    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 2 * PART:
                raise OSError("the disk is gone")
            return super().read(size)

    with pytest.raises(OSError, match="the disk is gone"):
        queue.attach(job, "x", Breaking(BIG))
    assert queue.attach(job, "x", BIG, resume=True).size == len(BIG)
    assert queue.attach(job, "x", BIG, resume=True).size == len(BIG), "and is complete"
    other = BIG[::-1]
    queue.attach(job, "x", other, resume=True)
    queue.complete(job)
    assert queue.read_artifact(job.id, "x") == other


def test_lost_answers_and_requests_cost_nothing_but_time(server: Server, proxy: Proxy, connect: Connect) -> None:
    tenant = f"lost-{connect.kind.lower()}"
    connect(server.base, server.token(tenant, "producer")).enqueue("work")
    queue = connect(proxy.url, token_for(server, tenant))
    [job] = queue.claim("work")
    proxy.script(lose_answer, lose_request, pass_on, lose_answer, pass_on, lose_answer, lose_answer)
    queue.attach(job, "x", BIG)
    proxy.script(lose_answer)
    queue.complete(job)
    proxy.script(pass_on, lose_answer, cut_answer(100_000), lose_request)
    assert queue.read_artifact(job.id, "x") == BIG


def test_damaged_content_is_noticed(server: Server, connect: Connect, tmp_path: Path) -> None:
    tenant = f"damaged-{connect.kind.lower()}"
    queue = connect(server.base, server.token(tenant, "producer"))
    worker = connect(server.base, server.token(tenant, "worker"))
    queue.enqueue("work")
    [job] = worker.claim("work")
    worker.attach(job, "x", b"right")
    worker.complete(job)
    [part] = (artifacts_folder(server.data) / tenant / job.id).rglob("part-*")
    part.write_bytes(b"wrong")
    with pytest.raises(DigestMismatch):
        queue.download_artifact(job.id, "x", tmp_path / "x")
    part.unlink()
    with pytest.raises(CodeqError):
        queue.read_artifact(job.id, "x")
    assert list(tmp_path.iterdir()) == []
