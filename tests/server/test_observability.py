"""What a running server shows: metrics, logs, request ids, traces. And what it must not show: secrets."""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from tests.server.server_process import Caller, Server, Tenant, answered, at, eventually, refused, start_server
from tests.server.stores import on_rocksdb
from uvicorn.server import ServerState

from codeq.clock import SteadyClock
from codeq.domain.errors import StoreBusy
from codeq.server.app import App
from codeq.server.auth.claims import make_validator
from codeq.server.auth.principal import Authenticator
from codeq.server.backups import Backups
from codeq.server.connection import Connection
from codeq.server.connection_limit import ConnectionLimit
from codeq.server.dev import auth_config
from codeq.server.durability import DurabilityInForce
from codeq.server.logs import JsonLines, log
from codeq.server.metrics import Metrics
from codeq.server.ratelimit import RateLimiter
from codeq.server.response_head import ResponseHeads
from codeq.server.routes import ROUTES
from codeq.server.server_context import ServerContext
from codeq.server.settings import Settings
from codeq.server.state import AppState
from codeq.server.tracing import Tracing
from codeq.store.data_dir import back_up, open_rocksdb
from codeq.usecases.core import make_core
from codeq.usecases.waiters import Waiters
from codeq.wire import paths

DONE = {"status": "COMPLETED", "result": {}}
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that logs every request, and lets an admin clean up twice before it limits the rate."""
    limits = {"admin": {"requests_per_minute": 1, "burst_size": 2}}
    settings = {"log": {"access": "all", "level": "debug"}, "rate_limit": limits}
    with start_server(tmp_path_factory.mktemp("talkative"), settings=settings) as running:
        yield running


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(server: Server) -> Samples:
    answer = server.request("GET", paths.METRICS, token=None)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of(samples: Samples, tenant: Tenant, name: str, **labels: str) -> float | None:
    wanted = {"tenant": tenant.name, "command": "work", **labels}
    return samples.get((name, tuple(sorted(wanted.items()))))


# Metrics


def test_metrics_tell_the_truth_after_a_known_sequence_of_calls(talkative: Server) -> None:
    tenant, bystander = talkative.tenant(), talkative.tenant()
    bystander.create()
    answered(tenant.admin.put(at(paths.TOPIC, "work"), {"policy": {"onExpiry": "immediate"}}), 201)
    tenant.ended()
    failed = tenant.held()
    answered(tenant.worker.post(at(paths.RESULT, failed["id"]), {"status": "FAILED", "error": "no"}), 200)
    tenant.dead()
    tenant.dead()
    cancelled = tenant.create()
    answered(tenant.producer.post(at(paths.CANCEL, cancelled["id"])), 200)
    batch = {"tasks": [{"command": "work", "payload": n} for n in range(3)]}
    answered(tenant.producer.post(paths.TASKS_BATCH, batch), 200)
    held = answered(tenant.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": 2}), 200)["tasks"]
    answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": [{"taskId": held[0]["id"], **DONE}]}), 200)
    answered(tenant.worker.post(at(paths.ABANDON, held[1]["id"]), {}), 200)
    tenant.create(priority=9)
    tenant.claim(leaseSeconds=0.1)
    eventually(lambda: of(scraped(talkative), tenant, "codeq_lease_expired_total") == 1)
    tenant.create(delaySeconds=600)
    tenant.claim()

    samples = scraped(talkative)
    assert of(samples, tenant, "codeq_task_created_total") == 10
    assert of(samples, tenant, "codeq_task_claimed_total") == 8
    ended = {
        s: of(samples, tenant, "codeq_task_completed_total", status=s) for s in ("COMPLETED", "FAILED", "CANCELLED")
    }
    assert ended == {"COMPLETED": 2, "FAILED": 3, "CANCELLED": 1}
    latency = "codeq_task_processing_latency_seconds"
    assert of(samples, tenant, f"{latency}_count", status="COMPLETED") == 2
    assert of(samples, tenant, f"{latency}_count", status="FAILED") == 3
    assert of(samples, tenant, f"{latency}_bucket", status="COMPLETED", le="3600.0") == 2
    assert 0 <= (of(samples, tenant, f"{latency}_sum", status="COMPLETED") or 0) < 30
    depths = {q: of(samples, tenant, "codeq_queue_depth", queue=q) for q in ("ready", "delayed", "in_progress", "dlq")}
    assert depths == {"ready": 2, "delayed": 1, "in_progress": 1, "dlq": 2}
    assert of(samples, tenant, "codeq_dlq_depth") == 2
    assert (of(samples, tenant, "codeq_oldest_pending_age_seconds") or 0) > 0
    assert of(samples, tenant, "codeq_queue_workers") == 1
    moves = {
        dict(labels)["move"]: value
        for (name, labels), value in samples.items()
        if name == "codeq_task_moves_total" and dict(labels)["tenant"] == tenant.name
    }
    assert moves == {
        "enqueue": 10, "claim": 8, "complete": 2, "fail": 1, "nack": 2, "cancel": 1, "abandon": 1, "expire": 1,
    }  # fmt: skip
    assert of(samples, bystander, "codeq_task_created_total") == 1
    assert of(samples, bystander, "codeq_task_claimed_total") is None


def test_what_was_asked_twice_is_counted_once(talkative: Server) -> None:
    tenant = talkative.tenant()
    for _ in range(3):
        tenant.create(idempotencyKey="k")
    task = tenant.claim()
    for _ in range(3):
        answered(tenant.worker.post(at(paths.RESULT, task["id"]), DONE), 200)
    tenant.producer.post(paths.TASKS, {"command": "work", "payload": None})
    samples = scraped(talkative)
    assert of(samples, tenant, "codeq_task_created_total") == 1
    assert of(samples, tenant, "codeq_task_completed_total", status="COMPLETED") == 1


def test_requests_are_counted_by_route_and_status_never_by_path(talkative: Server) -> None:
    tenant = talkative.tenant()

    def count(route: str, status: int) -> float:
        labels = (("route", route), ("status", str(status)))
        return scraped(talkative).get(("codeq_http_request_seconds_count", labels), 0)

    before = count(paths.TASK, 404), count("unknown", 404)
    for n in range(3):
        tenant.producer.get(at(paths.TASK, f"no-such-{n}"))
        tenant.producer.get(f"/nowhere/{n}")
    assert (count(paths.TASK, 404) - before[0], count("unknown", 404) - before[1]) == (3, 3)
    assert "no-such" not in talkative.request("GET", paths.METRICS).text


@on_rocksdb("Redis does the fsync")
def test_every_fsync_and_who_shared_it_is_counted(talkative: Server) -> None:
    tenant = talkative.tenant()
    before = scraped(talkative)
    for _ in range(5):
        tenant.create()
    after = scraped(talkative)

    def rise(name: str) -> float:
        return after[name, ()] - before[name, ()]

    assert rise("codeq_fsync_seconds_count") == rise("codeq_fsync_group_calls_count") >= 5
    assert rise("codeq_fsync_group_calls_sum") >= rise("codeq_fsync_group_calls_count")
    assert after["process_resident_memory_bytes", ()] > 0


def test_a_refusal_by_the_rate_limit_is_counted_and_says_when_to_come_back(talkative: Server) -> None:
    tenant = talkative.tenant()
    for _ in range(2):
        answered(tenant.admin.post(paths.CLEANUP), 200)
    answer = tenant.admin.post(paths.CLEANUP)
    problem = refused(answer, 429, "rate-limited")
    assert (problem["error"], problem["scope"], problem["operation"]) == ("rate limit exceeded", "admin", "cleanup")
    assert 1 <= problem["retryAfterSeconds"] == int(answer.headers["retry-after"]) <= 60
    hits = (("operation", "cleanup"), ("scope", "admin"))
    assert scraped(talkative)["codeq_rate_limit_hits_total", hits] == 1


# Logs


def lines(server: Server) -> list[dict[str, Any]]:
    """Returns every line of the log; each must be one JSON object."""
    return [json.loads(line) for line in server.log_text().splitlines()]


def logged(server: Server, request_id: str) -> dict[str, Any]:
    found = eventually(lambda: [line for line in lines(server) if line.get("request_id") == request_id])
    assert len(found) == 1
    return found[0]


def test_a_request_is_one_line_of_json_with_its_id_tenant_and_task(talkative: Server) -> None:
    tenant = talkative.tenant()
    task = tenant.create()
    answer = tenant.producer.request("GET", at(paths.TASK, task["id"]), headers={"X-Request-Id": "req-1.a_B"})
    assert answer.headers["x-request-id"] == "req-1.a_B"
    line = logged(talkative, "req-1.a_B")
    assert (line["message"], line["method"], line["route"], line["status"]) == ("request", "GET", paths.TASK, 200)
    assert (line["tenant"], line["task_id"]) == (tenant.name, task["id"])
    assert (line["level"], line["service"]) == ("info", "codeq")
    assert line["ms"] >= 0
    assert line["at"].endswith("+00:00")


def test_a_request_without_an_id_gets_one_that_no_other_has(talkative: Server) -> None:
    ids = [talkative.request("GET", paths.HEALTHZ).headers["x-request-id"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(len(made) == 32 and set(made) <= set("0123456789abcdef") for made in ids)
    assert logged(talkative, ids[-1])["route"] == paths.HEALTHZ


@pytest.mark.parametrize("value", ["a b", "x" * 65, "a;b", 'a"b', "<b>", "a/b", "\u00e9".encode(), "{}", "%0a"])
def test_a_request_id_that_could_forge_a_line_is_replaced(talkative: Server, value: str | bytes) -> None:
    answer = talkative.request("GET", paths.HEALTHZ, headers=[("X-Request-Id", value)])  # type: ignore[list-item]
    assert len(answer.headers["x-request-id"]) == 32
    assert logged(talkative, answer.headers["x-request-id"])["status"] == 200


def test_refusals_are_logged_with_their_status_and_nobody_as_tenant(talkative: Server) -> None:
    answer = talkative.request("GET", paths.TASKS, token="wrong")
    line = logged(talkative, answer.headers["x-request-id"])
    assert (line["status"], line["tenant"], line["task_id"]) == (401, None, None)


def test_nothing_that_a_caller_sends_breaks_a_line(talkative: Server) -> None:
    evil = 'x"}\n{"level":"critical","message":"forged'
    tenant = talkative.tenant()
    tenant.producer.get(at(paths.TASK, "%0a%1b[31m%7b%22level%22"))
    tenant.producer.post(paths.TASKS, {"command": evil, "payload": evil})
    tenant.worker.post(at(paths.NACK, tenant.held()["id"]), {"reason": evil})
    assert all(line["message"] != "forged" for line in lines(talkative))


def test_errors_alone_are_logged_unless_asked_for_more(server: Server, tenant: Tenant) -> None:
    tenant.create()
    tenant.producer.get(at(paths.TASK, "unknown"))
    requests = [line for line in lines(server) if line["message"] == "request"]
    assert all(line["status"] >= 500 for line in requests)


def test_the_start_and_the_end_are_logged_and_text_is_for_people(tmp_path: Path) -> None:
    with start_server(tmp_path, settings={"log": {"format": "text", "access": "all"}}) as own:
        own.request("GET", paths.HEALTHZ)
        assert own.stop() == 0
    text = own.log_text()
    assert "INFO started" in text
    assert "INFO stopped" in text
    assert "{" not in text


def test_a_development_server_warns_of_nothing_that_only_production_needs(tmp_path: Path) -> None:
    with start_server(tmp_path, settings={"http": {"connections_max": 1_000_000}}) as own:
        own.stop()
        assert '"warning"' not in own.log_text()


def test_an_unforeseen_fault_is_logged_with_its_trace() -> None:
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(self.format(record))

    handler = Keep()
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("codeq")
    logger.addHandler(handler)
    try:
        raise ZeroDivisionError("unforeseen")
    except ZeroDivisionError:
        log(logging.ERROR, "internal error", exc_info=True, request_id="r")
    finally:
        logger.removeHandler(handler)
    [line] = [json.loads(text) for text in seen]
    assert "ZeroDivisionError: unforeseen" in line["trace"]


def test_secrets_and_payloads_appear_in_no_log_metric_or_refusal(tmp_path: Path) -> None:
    secret, payload = "canary-token-4711", "canary-payload-4712"
    config = {"token": secret, "subject": "s", "scopes": ["codeq:claim", "codeq:nack", "codeq:result", "codeq:admin"]}
    provider = {"provider": "static", "config": {**config, "eventTypes": ["*"], "raw": {"tid": "acme"}}}
    settings = {"log": {"access": "all", "level": "debug"}, "auth": {"producer": provider, "worker": provider}}
    answers: list[httpx.Response] = []
    with start_server(tmp_path, dev=False, settings=settings) as own:
        caller = Caller(own, secret)
        body = {"command": "work", "payload": {"canary": payload}, "idempotencyKey": "canary-key-4713"}
        task = answered(caller.post(paths.TASKS, body), 202)
        answered(caller.post(paths.CLAIM, {}), 200)
        outcome = {"status": "COMPLETED", "result": {"canary": payload}}
        answers = [
            caller.post(paths.TASKS, body | {"priority": payload}),
            caller.post(paths.TASKS, {"command": "work", "payload": [payload] * 3, "unknown": payload}),
            caller.post(paths.TASKS, content=f'{{"command":"work","payload":"{payload}'.encode()),
            caller.post(at(paths.NACK, task["id"]), {"leaseToken": 9, "reason": payload}),
            caller.post(at(paths.RESULT, task["id"]), outcome | {"status": payload}),
            own.request("GET", paths.TASKS, token=f"{secret}-almost"),
            own.request("GET", f"{paths.TASKS}?access_token={secret}", token=None),
            own.request("POST", paths.TASKS, body, token=None, headers={"Authorization": f"Basic {secret}"}),
            own.request("GET", paths.METRICS, token=secret),
            own.request("GET", paths.EVENTS, token=secret),
            own.request("GET", paths.ADMIN_QUEUES, token=secret),
        ]
        answered(caller.post(at(paths.RESULT, task["id"]), outcome), 200)
        assert [answer.status_code for answer in answers] == [400, 400, 400, 403, 400, 401, 401, 401, 200, 200, 200]
        assert own.stop() == 0
    for answer in answers:
        assert "canary" not in answer.text + str(answer.headers)
    assert "canary" not in own.log_text() + (tmp_path / "stdout.log").read_text()
    assert len(lines(own)) > len(answers)


# Traces


class Traced:
    """The service in this process, with its spans collected in memory."""

    def __init__(self, data: Path) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        waiters = Waiters()
        metrics = Metrics()
        store = open_rocksdb(
            data,
            clock=SteadyClock(),
            shards=1,
            fsync=False,
            grace_ms=0,
            listeners=[waiters, metrics],
        )
        fixed = auth_config(data)["providers"][0]
        validator = make_validator(fixed["type"], fixed["config"])
        self.state = AppState(
            core=make_core(store, waiters, Settings().policy(), randomness=random.Random()),
            settings=Settings(),
            authenticator=Authenticator(validator, validator, producers_may_work=False),
            limiter=RateLimiter({}, {}),
            metrics=metrics,
            tracing=Tracing(provider),
            backups=Backups("", partial(back_up, store)),
            durability=DurabilityInForce(Settings().store),
        )
        app = App(self.state, ROUTES, tasks=set(), on_failure=lambda: None)
        self.context = ServerContext(
            app.begin, Settings().http, ResponseHeads(ServerState()), set(), ConnectionLimit(100)
        )

    def run(self, scenario: Callable[[httpx.AsyncClient], Any]) -> dict[str, ReadableSpan]:
        """Runs the scenario. Returns its spans by name."""

        async def running() -> None:
            listening = await asyncio.get_running_loop().create_server(lambda: Connection(self.context), "127.0.0.1", 0)
            base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            headers = {"Authorization": "Bearer dev-token"}
            async with listening, httpx.AsyncClient(base_url=base, headers=headers, trust_env=False) as client:
                try:
                    await scenario(client)
                finally:
                    await self.state.core.store.close()

        asyncio.run(running())
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path / "data")


def context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def test_every_verb_is_a_span_inside_that_of_its_request(traced: Traced) -> None:
    tasks: list[dict[str, Any]] = []

    async def scenario(client: httpx.AsyncClient) -> None:
        headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
        body = {"command": "work", "payload": 1, "priority": 4}
        tasks.append((await client.post(paths.TASKS, json=body, headers=headers)).json())
        task_id = tasks[0]["id"]
        await client.post(paths.CLAIM, json={})
        await client.post(at(paths.HEARTBEAT, task_id), json={})
        await client.post(at(paths.NACK, task_id), json={"delaySeconds": 0})
        await client.post(paths.CLAIM, json={})
        await client.post(at(paths.ABANDON, task_id), json={})
        await client.post(paths.CLAIM, json={})
        await client.post(at(paths.RESULT, task_id), json=DONE)

    spans = traced.run(scenario)
    [task] = tasks
    verbs = {
        "create": paths.TASKS, "claim": paths.CLAIM, "heartbeat": paths.HEARTBEAT, "nack": paths.NACK,
        "abandon": paths.ABANDON, "submit_result": paths.RESULT,
    }  # fmt: skip
    assert set(spans) == {f"codeq.task.{verb}" for verb in verbs} | {f"HTTP POST {path}" for path in verbs.values()}
    for verb, path in verbs.items():
        outer, inner = spans[f"HTTP POST {path}"], spans[f"codeq.task.{verb}"]
        assert outer.kind is SpanKind.SERVER
        status = 202 if verb == "create" else 200
        outer_attributes = dict(outer.attributes or {})
        assert outer_attributes.pop("http.host")
        assert str(outer_attributes.pop("http.path")).startswith(paths.TASKS)
        assert outer_attributes == {"http.method": "POST", "http.route": path, "http.status_code": status}
        assert inner.parent is not None
        assert inner.parent.span_id == context(outer).span_id
        inner_attributes = dict(inner.attributes or {})
        if verb == "create":
            assert inner_attributes == {"codeq.command": "work", "codeq.tenant_id": "dev", "codeq.priority": 4}
        elif verb == "claim":
            assert inner_attributes == {"codeq.worker_id": "dev", "codeq.tenant_id": "dev"}
        else:
            assert inner_attributes == {"codeq.worker_id": "dev", "codeq.task_id": task["id"]}


def test_a_request_joins_the_trace_of_its_caller_and_the_task_carries_it_on(traced: Traced) -> None:
    seen: list[dict[str, Any]] = []

    async def scenario(client: httpx.AsyncClient) -> None:
        headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
        made = await client.post(paths.TASKS, json={"command": "work", "payload": 1}, headers=headers)
        seen.append(made.json())
        seen.append((await client.post(paths.CLAIM, json={})).json())
        seen.append((await client.get(at(paths.HISTORY, made.json()["id"]))).json())

    spans = traced.run(scenario)
    outer = spans[f"HTTP POST {paths.TASKS}"]
    assert outer.parent is not None
    assert (f"{context(outer).trace_id:032x}", f"{outer.parent.span_id:016x}") == (TRACE, "b7ad6b7169203331")
    made, claimed, history = seen
    assert made["traceParent"] == f"00-{TRACE}-{context(outer).span_id:016x}-01"
    assert made["traceState"] == "vendor=1"
    assert claimed["traceParent"] == made["traceParent"]
    assert {event["traceId"] for event in history["events"]} == {TRACE}


def test_without_a_caller_a_trace_begins_here_and_refusals_are_no_errors(traced: Traced) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        await client.post(paths.TASKS, json={"command": "a b", "payload": 1})

    spans = traced.run(scenario)
    assert list(spans) == [f"HTTP POST {paths.TASKS}"]
    assert spans[f"HTTP POST {paths.TASKS}"].parent is None


def test_a_refused_request_has_its_status_in_its_span_and_is_no_error(traced: Traced) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert (await client.get(at(paths.TASK, "unknown"))).status_code == 404

    [span] = traced.run(scenario).values()
    assert (span.attributes or {}).get("http.status_code") == 404
    assert span.status.status_code is not StatusCode.ERROR


def test_a_fault_of_the_server_makes_its_span_an_error(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        async def broken(*_: Any, **__: Any) -> Any:
            raise StoreBusy("/secret/path is busy")

        monkeypatch.setattr(type(traced.state.core.store), "get_records", broken)
        answer = await client.get(at(paths.TASK, "unknown"))
        problem = refused(answer, 503, "busy")
        assert "/secret" not in answer.text
        assert problem["requestId"] == answer.headers["x-request-id"]

    [span] = traced.run(scenario).values()
    assert span.status.status_code is StatusCode.ERROR


def test_an_unforeseen_fault_says_nothing_but_its_request_id(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("canary in a library's words")

        monkeypatch.setattr(type(traced.state.core.store), "get_records", broken)
        for accept in ("*/*", "text/html", "application/msgpack"):
            answer = await client.get(at(paths.TASK, "unknown"), headers={"Accept": accept})
            assert answer.status_code == 500
            assert b"canary" not in answer.content
            assert b"Traceback" not in answer.content
            assert answer.headers["x-request-id"].encode() in answer.content

    traced.run(scenario)


def test_a_trace_of_the_caller_is_kept_though_nothing_is_traced_here(tenant: Tenant) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    made = tenant.producer.post(paths.TASKS, {"command": "work", "payload": 1}, headers=headers)
    task = answered(made, 202)
    assert (task["traceParent"], task["traceState"]) == (PARENT, "vendor=1")
    assert tenant.claim()["traceParent"] == PARENT
    [event] = answered(tenant.admin.get(at(paths.HISTORY, task["id"])), 200)["events"][:1]
    assert event["traceId"] == TRACE


@pytest.mark.parametrize("value", ["not-a-trace", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 600, "00-\tx"])
def test_a_traceparent_that_is_none_is_ignored(tenant: Tenant, value: str) -> None:
    body = {"command": "work", "payload": 1}
    task = answered(tenant.producer.post(paths.TASKS, body, headers={"traceparent": value}), 202)
    assert "traceParent" not in task
    [event] = answered(tenant.admin.get(at(paths.HISTORY, task["id"])), 200)["events"]
    assert event["traceId"] is None
