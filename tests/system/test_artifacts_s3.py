"""Artifacts in a bucket: a real S3 API on loopback, for a server with RocksDB and for two that share a Redis."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.redis_servers import start_node
from tests.s3_servers import BUCKET, start_rclone
from tests.server.artifact_calls import inline, path, put, sha256, submit
from tests.server.server_process import Server, answered, eventually, start_server

from codeq.domain.limits import ARTIFACT_PART_BYTES as PART
from codeq.wire import paths

BIG = os.urandom(PART + 1000)


class Bucket(NamedTuple):
    folder: Path
    """What the bucket contains, as files."""
    environment: dict[str, str]

    def files(self) -> list[str]:
        found = [Path(place, name) for place, _, names in os.walk(self.folder) for name in names]  # as they vanish
        return sorted(str(file.relative_to(self.folder)) for file in found)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """The S3 server of rclone, from its wheel, which has no other use here."""
    with start_rclone(tmp_path) as environment:
        yield Bucket(tmp_path / "s3" / BUCKET, environment)


def store_and_read(server: Server, reader: Server, tenant_name: str) -> str:
    """Stores files through one server and reads them through another. Returns the task's id."""
    tenant = server.tenant(tenant_name)
    task = tenant.held()
    answered(put(tenant, task, "big", BIG[:PART], headers={"upload-complete": "?0"}), 202)
    rest = put(tenant, task, "big", BIG[PART:], headers={"upload-offset": str(PART)})
    assert answered(rest, 201)["sha256"] == sha256(BIG)
    answered(put(tenant, task, "unused", b"1"), 201)
    answered(submit(tenant, task, {"name": "big"}, inline("small", b"s")), 200)
    other = reader.tenant(tenant_name)
    other_token = tenant.producer.token
    read = reader.request("GET", path(task, "big"), token=other_token)
    assert read.content == BIG
    ranged = reader.request("GET", path(task, "big"), token=other_token, headers={"range": f"bytes={PART - 1}-{PART}"})
    assert ranged.content == BIG[PART - 1 : PART + 1]
    assert reader.request("GET", path(task, "small"), token=other_token).content == b"s"
    assert other.name == tenant.name
    return str(task["id"])


def test_a_bucket_holds_the_files_of_a_server(bucket: Bucket, tmp_path: Path) -> None:
    settings = {"artifacts": {"url": "s3://bucket/codeq", "sweep_interval_seconds": 2}}
    with start_server(tmp_path / "server", settings=settings, env=bucket.environment) as server:
        task_id = store_and_read(server, server, "Acme|1")
        eventually(lambda: len(bucket.files()) == 5, 30)
        assert [name for name in bucket.files() if task_id not in name] == ["codeq/codeq-owner"]
        admin = server.tenant("Acme|1").admin
        answered(admin.post(paths.CLEANUP, {"before": "2100-01-01T00:00:00Z"}), 200)
        eventually(lambda: bucket.files() == ["codeq/codeq-owner"], 30)


def test_another_installation_deletes_nothing_of_the_first(bucket: Bucket, tmp_path: Path) -> None:
    settings = {"artifacts": {"url": "s3://bucket/codeq", "sweep_interval_seconds": 2}}
    with start_server(tmp_path / "first", settings=settings, env=bucket.environment) as first:
        store_and_read(first, first, "acme")
        eventually(lambda: len(bucket.files()) == 5, 30)
    before = bucket.files()
    with start_server(tmp_path / "second", settings=settings, env=bucket.environment) as second:
        eventually(lambda: "another installation" in second.log_text(), 30)
        store_and_read(second, second, "acme")
        assert set(before) < set(bucket.files())


def test_servers_on_one_redis_share_the_files(bucket: Bucket, tmp_path: Path) -> None:
    with start_node(tmp_path / "redis", appendonly="yes") as node:
        settings = {
            "store": {"url": node.url},
            "artifacts": {"url": "s3://bucket/codeq", "sweep_interval_seconds": 2},
        }
        data = tmp_path / "data"
        with (
            start_server(tmp_path / "one", settings=settings, env=bucket.environment, data=data) as one,
            start_server(tmp_path / "two", settings=settings, env=bucket.environment, data=data) as two,
        ):
            task_id = store_and_read(one, two, "acme")
            eventually(lambda: len(bucket.files()) == 5, 30)
            assert [name for name in bucket.files() if task_id not in name] == ["codeq/codeq-owner"]


def test_a_server_on_redis_without_a_place_for_files_says_so(tmp_path: Path) -> None:
    with (
        start_node(tmp_path / "redis", appendonly="yes") as node,
        start_server(tmp_path / "server", settings={"store": {"url": node.url}}) as server,
    ):
        tenant = server.tenant("acme")
        task = tenant.held()
        assert "artifacts.url" in answered(put(tenant, task, "x", b"1"), 400)["error"]
        assert "artifacts.url" in answered(submit(tenant, task, inline("x", b"1")), 400)["error"]
        answered(submit(tenant, task, {"name": "x", "url": "https://example.com"}), 200)


def test_a_bucket_that_does_not_answer_refuses_results_with_files_only(tmp_path: Path) -> None:
    nowhere = {
        "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }  # fmt: skip
    settings = {"artifacts": {"url": "s3://bucket/codeq"}}
    with start_server(tmp_path, settings=settings, env=nowhere) as server:
        tenant = server.tenant("acme")
        task = tenant.held()
        refused = answered(submit(tenant, task, inline("x", b"1")), 503)
        assert refused["code"] == "store-unavailable"
        assert "127.0.0.1" not in refused["error"]
        answered(submit(tenant, task), 200)


def test_a_missing_bucket_is_waited_for(bucket: Bucket, tmp_path: Path) -> None:
    settings = {"artifacts": {"url": "s3://later/codeq", "sweep_interval_seconds": 1}}
    with start_server(tmp_path / "server", settings=settings, env=bucket.environment) as server:
        tenant = server.tenant("acme")
        task = tenant.held()
        eventually(lambda: "cannot be swept" in server.log_text(), 30)
        for refused in (put(tenant, task, "x", b"1"), submit(tenant, task, inline("x", b"1"))):
            assert answered(refused, 503)["code"] == "store-unavailable"
        (bucket.folder.parent / "later").mkdir()
        eventually(lambda: put(tenant, task, "x", b"1").status_code == 201, 30)
        answered(submit(tenant, task, {"name": "x"}), 200)
        assert tenant.producer.request("GET", path(task, "x")).content == b"1"
