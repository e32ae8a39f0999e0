"""Tenants as issuers really send them, in every place where a tenant's name is used (13.23)."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow.ipc
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from prometheus_client.parser import text_string_to_metric_families
from tests.server.issuer import Issuer, by_hand, claims, key_pair, sign, worker_claims
from tests.server.server_process import Server, answered, at, refused, run_codeq, start_server

import codeq
from codeq.pipeline.client import EventFilter, PipelineClient, ServerOptions
from codeq.pipeline.lake import tables
from codeq.pipeline.report.data import DeadLetter, ReportData, TenantUsage, Totals, WorkerUsage
from codeq.pipeline.report.page import render
from codeq.wire import paths
from codeq.wire.events import ARROW

TENANTS = [
    "auth0|123", "alice@example.com", "spiffe://example.org/ns/a/sa/b", "CN=Alice Smith,O=Acme", 'a"b\\c', "{a}",
    "<script>alert(1)</script>", "a:pending", "50%", "50%25", "a%3Apending", "../../etc", "a&tenant=b#c?d", "*", "'--",
    "$HOME `x`", "x" * 255, "[red]", "a,b", "~",
]  # fmt: skip
DONE = {"status": "COMPLETED", "result": {}}
LOGGED = {"log": {"access": "all"}}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Issuer().context() as issuer:
        own = issuer.settings() | LOGGED
        with start_server(tmp_path_factory.mktemp("tenants"), dev=False, settings=own) as running:
            yield running


class Subject:
    """A tenant that is known by the `sub` of its tokens alone."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.producer = sign(claims(sub=name, tid=None, scope="codeq:admin codeq:events"))
        self.worker = sign(worker_claims(sub=name, tid=None))

    def get(self, path: str, **params: Any) -> Any:
        return answered(self.server.request("GET", path, token=self.producer, params=params), 200)

    def post(self, path: str, body: Any = None, *, status: int = 200, token: str | None = None) -> Any:
        return answered(self.server.request("POST", path, body, token=token or self.producer), status)

    def create(self, **fields: Any) -> Any:
        return self.post(paths.TASKS, {"command": "work", "payload": 1, **fields}, status=202)

    def claim(self) -> Any:
        return self.post(paths.CLAIM, {"commands": ["work"]}, token=self.worker)


@pytest.fixture(params=TENANTS)
def subject(guarded: Server, request: pytest.FixtureRequest) -> Subject:
    return Subject(guarded, request.param)


def test_every_verb_works_for_the_tenant_and_its_name_comes_back_as_it_was(subject: Subject) -> None:
    """(13.23)"""
    task = subject.create(idempotencyKey="k")
    assert task["tenantId"] == subject.name
    assert subject.create(idempotencyKey="k")["id"] == task["id"]
    assert subject.claim()["id"] == task["id"]
    subject.post(at(paths.HEARTBEAT, task["id"]), {}, token=subject.worker)
    subject.post(at(paths.RESULT, task["id"]), DONE, token=subject.worker)
    dead = subject.create(maxAttempts=1)
    subject.claim()
    subject.post(at(paths.NACK, dead["id"]), {"reason": "x"}, token=subject.worker)
    delayed = subject.create(delaySeconds=600)
    pending = subject.create()
    listed = subject.get(paths.TASKS)["tasks"]
    assert {one["id"] for one in listed} >= {task["id"], dead["id"], delayed["id"], pending["id"]}
    assert {one["tenantId"] for one in listed} == {subject.name}
    assert dead["id"] in {one["id"] for one in subject.get(paths.DLQ)["tasks"]}
    assert {one["tenantId"] for one in subject.get(paths.QUEUES)["queues"]} == {subject.name}
    put = subject.server.request("PUT", at(paths.TOPIC, "work"), {"policy": {"maxAttempts": 7}}, token=subject.producer)
    assert put.status_code in (200, 201)
    assert subject.get(at(paths.TOPIC, "work"))["tenantId"] == subject.name
    assert [move["move"] for move in subject.get(at(paths.HISTORY, task["id"]))["events"]][:2] == ["enqueue", "claim"]
    subject.post(at(paths.CANCEL, pending["id"]))


def test_events_have_the_name_as_it_is_and_can_be_selected_by_it(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(13.23) Also in Arrow, and through the pipeline's own client, which puts it into an address."""
    task = subject.create()
    own = [event for event in subject.get(paths.EVENTS, limit=50_000)["events"] if event["taskId"] == task["id"]]
    assert [event["tenant"] for event in own] == [subject.name]
    everybody = sign(claims(scope="codeq:platform"))
    headers = {"Accept": ARROW}
    answer = subject.server.request(
        "GET", paths.EVENTS, token=everybody, headers=headers, params={"tenant": subject.name, "limit": 50_000}
    )
    read = pyarrow.ipc.open_stream(answer.content).read_all()
    assert set(read["tenant"].to_pylist()) == {subject.name}
    assert task["id"] in read["task_id"].to_pylist()
    monkeypatch.setenv("CODEQ_TOKEN", everybody)
    client = PipelineClient(ServerOptions(endpoint=subject.server.base))
    try:
        stream, _ = client.events(0, 1, 50_000, EventFilter(tenant=subject.name))
    finally:
        client.close()
    assert set(pyarrow.ipc.open_stream(stream).read_all()["tenant"].to_pylist()) == {subject.name}


def test_metrics_and_logs_have_the_name_as_it_is(subject: Subject) -> None:
    """(13.23)"""
    task = subject.create()
    subject.get(at(paths.TASK, task["id"]))
    text = subject.server.request("GET", paths.METRICS, token=None).text
    created = {
        sample.labels["tenant"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "codeq_task_created_total"
    }
    assert subject.name in created
    logged = [json.loads(line) for line in subject.server.log_text().splitlines()]
    assert {line["tenant"] for line in logged if line.get("task_id") == task["id"]} == {subject.name}


def test_the_flat_map_of_the_original_has_a_key_of_its_own_for_each_tenant(guarded: Server) -> None:
    """(13.23) A colon in a tenant is escaped, because colons separate the parts."""
    for name in TENANTS:
        Subject(guarded, name).create()
    everybody = sign(claims(scope="codeq:admin codeq:platform"))
    flat = answered(guarded.request("GET", paths.ADMIN_QUEUES, token=everybody), 200)
    work = [key for key in flat if key.startswith("codeq:q:work:") and key.endswith(":pending")]
    assert len(work) >= len(TENANTS)
    assert {key.count(":") for key in work} == {4}
    assert "codeq:q:work:alice@example.com:pending" in flat
    assert "codeq:q:work:a%3Apending:pending" in flat
    assert "codeq:q:work:a%253Apending:pending" in flat


def test_no_tenant_sees_the_tasks_of_one_with_a_similar_name(guarded: Server) -> None:
    """(13.23)"""
    names = ["auth0|1", "auth0|12", "auth0", "AUTH0|1", "auth0%7C1", "auth0/1", "auth0|1/"]
    made = {name: Subject(guarded, name).create()["id"] for name in names}
    for name in names:
        listed = Subject(guarded, name).get(paths.TASKS)["tasks"]
        assert [task["id"] for task in listed] == [made[name]]


def test_the_tasks_of_all_are_there_after_a_restart(tmp_path: Path) -> None:
    """(13.23) Keys on disk are read back as the names that they were made of."""
    with Issuer().context() as issuer:
        for is_first in (True, False):
            with start_server(tmp_path, dev=False, settings=issuer.settings()) as server:
                for name in TENANTS:
                    subject = Subject(server, name)
                    if is_first:
                        subject.create(idempotencyKey="k")
                    else:
                        [task] = subject.get(paths.TASKS)["tasks"]
                        assert task["tenantId"] == name
                        assert subject.create(idempotencyKey="k")["id"] == task["id"]
                        assert subject.claim()["id"] == task["id"]


def test_the_embedded_queue_and_the_command_line_take_them(tmp_path: Path) -> None:
    """(13.23)"""
    for name in TENANTS:
        with codeq.open(tmp_path / "data", tenant=name) as queue:
            queue.enqueue("work", name)
    for name in TENANTS[:3]:
        done = run_codeq("stats", str(tmp_path / "data"), "--tenant", name, "--json")
        assert done.returncode == 0, done.stderr
        assert "work" in done.stdout
    with start_server(tmp_path / "dev") as server:
        token = run_codeq("token", "--data", str(server.data), "--tenant", "auth0|123", "--role", "producer").stdout
        task = {"command": "a", "payload": 1}
        made = answered(server.request("POST", paths.TASKS, task, token=token.strip()), 202)
        assert made["tenantId"] == "auth0|123"


def test_no_folder_of_the_lake_is_named_after_a_tenant_and_the_report_escapes_it() -> None:
    """(13.23)"""
    assert {table.partition for table in tables.ALL} <= {None, "hour", "day", "is_open"}
    name, now = "<script>alert(1)</script>", datetime(2026, 1, 1, tzinfo=UTC)
    zero: dict[str, Any] = {"tenant": name, "completed": 1, "deliveries": 1}
    worker = WorkerUsage(worker=name, failures=0, expiries=0, busy_seconds=1, failure_share=None, **zero)
    letter = DeadLetter(
        signature=name, deaths=1, first_at=now, last_at=now, tenants=[name], commands=[], workers=[name], task_ids=[],
        errors=[],
    )  # fmt: skip
    data = ReportData(
        title="t", made_at=now, first_at=now, last_at=now, step_seconds=60, totals=Totals(), dead_letters=[letter],
        tenants=[TenantUsage(tasks=1, payload_bytes=1, run_seconds=1, **zero)], workers=[worker],
    )  # fmt: skip
    page = render(data)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4


def by_claims(server: Server, **given: Any) -> httpx.Response:
    """Creates a task with a token that has these claims exactly, null ones too."""
    token = by_hand(
        {"alg": "RS256", "kid": "rsa"},
        claims(tid=None) | given,
        lambda text: key_pair("rsa").sign(text, padding.PKCS1v15(), hashes.SHA256()),
    )
    return server.request("POST", paths.TASKS, {"command": "a", "payload": 1}, token=token)


@pytest.mark.parametrize("nothing", [None, "", " ", "\t "])
def test_a_null_or_blank_claim_beside_a_good_one_says_nothing(guarded: Server, nothing: str | None) -> None:
    """(13.23) It was 403."""
    for given in ({"tid": nothing, "tenantId": "acme"}, {"tid": "acme", "organization_id": nothing}):
        assert answered(by_claims(guarded, **given), 202)["tenantId"] == "acme"
    refused(by_claims(guarded, tid=nothing, sub="somebody"), 403, "forbidden")


@pytest.mark.parametrize("other", ["b", "ACME", " acme", "a\nb", 7, 0, 1.5, True, False, [], ["acme"], {}])
def test_any_other_claim_beside_a_good_one_is_refused(guarded: Server, other: Any) -> None:
    """(13.23) Two different claims stay 403."""
    refused(by_claims(guarded, tid="acme", tenantId=other), 403, "forbidden")
    refused(by_claims(guarded, tid=other, tenantId="acme"), 403, "forbidden")


@pytest.mark.parametrize("name", ["a\nb", "a\0", "\x1b[31m", "a\x7f", "x" * 256, "\u202eevil", "\u0430cme", " a", "a "])
def test_control_characters_and_long_names_are_refused(guarded: Server, name: str) -> None:
    """(13.23)"""
    for given in ({"sub": name}, {"tid": name}):
        refused(by_claims(guarded, **given), 403, "forbidden")
