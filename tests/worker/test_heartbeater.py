"""Heartbeats from the event loop: what is sent, and when."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, cast

import httpx
import msgspec
import pytest
from tests.server.server_process import Server
from tests.worker.workers import Tenant

import codeq
from codeq.domain.errors import StaleTask
from codeq.domain.requests import NewTask
from codeq.domain.task import Holder
from codeq.sdk.backend import Backend
from codeq.sdk.durations import unix_ms
from codeq.sdk.jobs import Job
from codeq.sdk.tasks import record_of
from codeq.sdk.worker.heartbeat import LoopHeartbeater
from codeq.sdk.worker.heartbeat_process import HeartbeatCommand
from codeq.wire import paths
from codeq.wire.errors import Unreachable

LEASE_MS = 40_000


class Recorder:
    """The one verb of a backend that a heartbeater calls."""

    def __init__(self) -> None:
        self.sent: list[str | None] = []

    async def heartbeat(self, _job: Job, _extend_ms: int | None, progress: str | None = None) -> int:
        self.sent.append(progress)
        return 0


def test_progress_is_sent_at_once_and_then_at_most_once_a_second() -> None:
    async def story() -> list[str | None]:
        recorder = Recorder()
        heartbeater = LoopHeartbeater(cast("Backend", cast("Any", recorder)), {"work": 60_000}, lambda *_: None)
        job = Job("id", "work", b"null", Holder("ann", 1))
        heartbeater.hold([job])
        for text in ("10%", "20%", "30%"):
            heartbeater.report({job.key: text})
            await asyncio.sleep(0.01)
        await heartbeater.close()
        return recorder.sent

    assert asyncio.run(story()) == ["10%"]


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    class Away(Recorder):
        async def heartbeat(self, _job: Job, _extend_ms: int | None, progress: str | None = None) -> int:
            self.sent.append(progress)
            if len(self.sent) <= 4:
                raise Unreachable("nobody is there")
            return 0

    async def story() -> None:
        away = Away()
        heartbeater = LoopHeartbeater(cast("Backend", cast("Any", away)), {"work": 1_000}, lambda *_: None)
        heartbeater.hold([Job("id", "work", b"null", Holder("ann", 1))], at_once=True)
        async with asyncio.timeout(30):
            while len(away.sent) < 6:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
        await heartbeater.close()

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "heartbeats fail, and are repeated: nobody is there", "heartbeats are answered again",
    ]  # fmt: skip


def test_the_heartbeat_process_logs_as_the_worker_does() -> None:
    line = [sys.executable, "-m", "codeq.sdk.worker.heartbeat_process", str(os.getpid())]
    client = {"url": "http://127.0.0.1:1", "token": "any", "timeout": 1, "retry_for": 0}
    command = HeartbeatCommand(hold=[("id", "work", 1)], client=client, leases_ms={"work": 1_000})
    with subprocess.Popen(line, stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(msgspec.json.encode(command) + b"\n")
        process.stdin.flush()
        said = process.stderr.readline().decode()
        process.kill()
    assert re.match(
        r"\d{4}-\d\d-\d\d \S+ WARNING codeq.worker: heartbeats fail, and are repeated: cannot reach", said
    ), said


def test_a_heartbeat_that_may_succeed_when_repeated_loses_no_lease() -> None:
    """Of two heartbeats of one lease at the same moment, one may be told to try again."""

    class Busy(Recorder):
        async def heartbeat(self, _job: Job, _extend_ms: int | None, progress: str | None = None) -> int:
            self.sent.append(progress)
            if len(self.sent) == 1:
                raise StaleTask("the task kept changing; try again")
            return 0

    async def story() -> list[tuple[str, str]]:
        busy = Busy()
        lost: list[tuple[str, str]] = []
        backend = cast("Backend", cast("Any", busy))
        heartbeater = LoopHeartbeater(backend, {"work": 1_200}, lambda key, code: lost.append((key, code)))
        heartbeater.hold([Job("id", "work", b"null", Holder("ann", 1))], at_once=True)
        async with asyncio.timeout(30):
            while len(busy.sent) < 2:  # noqa: ASYNC110 - the heartbeater has no event for this
                await asyncio.sleep(0.01)
        await heartbeater.close()
        return lost

    assert asyncio.run(story()) == []


def requests_of(tenant: Tenant, path: str) -> int:
    """How many requests of this route the server has answered."""
    text = httpx.get(tenant.url + paths.METRICS, trust_env=False).text
    counts = re.findall(rf'codeq_http_request_seconds_count{{route="{re.escape(path)}",[^}}]*}} (\d+)', text)
    return sum(int(count) for count in counts)


async def extend_all(
    tenant: Tenant, jobs: Sequence[Job], *, token: str | None = None, until: Sequence[Job] | None = None
) -> list[tuple[str, str]]:
    """Sends heartbeats until the server has extended these leases but those that it refuses, which are returned."""
    lost: list[tuple[str, str]] = []
    async with codeq.AsyncClient(tenant.url, token or tenant.token) as client:
        heartbeater = LoopHeartbeater(
            client.backend, {"work": LEASE_MS, "other": LEASE_MS}, lambda key, code: lost.append((key, code))
        )
        heartbeater.hold(jobs, at_once=True)
        left = list(jobs if until is None else until)
        while left:
            await asyncio.sleep(0.05)
            gone = {key for key, _ in lost}
            records = [(job, (await client.get(job.id)).task) for job in left if job.key not in gone]
            left = [job for job, task in records if record_of(task).lease_until_ms <= unix_ms(job.lease_until)]
        await heartbeater.close()
    return lost


def claimed(tenant: Tenant, number: int) -> list[Job]:
    tenant.client.enqueue_many([NewTask(command="work")] * number)
    return tenant.client.claim("work", limit=number, lease=30)


def test_the_leases_of_many_jobs_are_renewed_in_one_call_and_a_lost_one_is_told(tenant: Tenant) -> None:
    jobs = claimed(tenant, 40)
    tenant.client.cancel(jobs[3].id)
    before = {path: requests_of(tenant, path) for path in (paths.HEARTBEAT, paths.HEARTBEATS_BATCH)}
    assert asyncio.run(asyncio.wait_for(extend_all(tenant, jobs), 60)) == [(jobs[3].key, "cancelled")]
    assert requests_of(tenant, paths.HEARTBEATS_BATCH) - before[paths.HEARTBEATS_BATCH] == 1
    assert requests_of(tenant, paths.HEARTBEAT) == before[paths.HEARTBEAT]


def test_an_older_server_which_takes_no_batches_gets_heartbeats_one_by_one(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "HEARTBEATS_BATCH", f"{paths.TASKS}/batch/of-the-future")
    jobs = claimed(tenant, 3)
    assert asyncio.run(asyncio.wait_for(extend_all(tenant, jobs), 60)) == []


def test_a_token_that_lost_one_command_still_renews_the_leases_of_the_others(tenant: Tenant, server: Server) -> None:
    kept = claimed(tenant, 3)
    tenant.client.enqueue("other")
    [other] = tenant.client.claim("other", lease=30)
    narrow = server.token(tenant.name, "worker", subject="tester", commands=["work"])
    assert asyncio.run(asyncio.wait_for(extend_all(tenant, [other, *kept], token=narrow, until=kept), 60)) == []
    assert record_of(tenant.client.get(other.id).task).lease_until_ms == unix_ms(other.lease_until)
