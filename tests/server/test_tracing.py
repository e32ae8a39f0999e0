"""What a collector receives of a server that traces: verbs and sweeps, linked to where their tasks came from."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.otlp_collector import Collected, Collector, collecting
from tests.server.server_process import Server, Tenant, answered, at, environment, eventually, start_server

from codeq.domain.limits import TRACE_LINKS_MAX
from codeq.wire import paths

DONE = {"status": "COMPLETED", "result": {}}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    """A server that sends its spans to the collector, and deletes tasks as soon as they have ended."""
    settings = {
        "tracing": {"enabled": True, "endpoint": collector.endpoint, "service_name": "codeq-tested"},
        "retention": {"seconds": 0},
        "leases": {"on_expiry": "immediate"},
    }
    env = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    with start_server(tmp_path_factory.mktemp("traced"), settings=settings, env=env) as own:
        yield own


@pytest.fixture
def caller(traced: Server) -> Tenant:
    return traced.tenant()


def create(tenant: Tenant, trace_id: str, **fields: Any) -> tuple[dict[str, Any], tuple[str, str]]:
    """Creates a task in a trace. Returns it and the span that later spans must link to."""
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    task = answered(
        tenant.producer.post(paths.TASKS, {"command": "work", "payload": 1, **fields}, headers=headers), 202
    )
    _, trace, span, _ = task["traceParent"].split("-")
    assert trace == trace_id
    return task, (trace, span)


def linked(collector: Collector, name: str, link: tuple[str, str]) -> Collected:
    """Returns the one span of this name that links to the other; waits for it to arrive."""
    found = eventually(lambda: [span for span in collector.named(name) if link in span.links], 20)
    assert len(found) == 1
    return found[0]


def test_every_verb_links_to_the_trace_in_which_its_task_was_created(collector: Collector, caller: Tenant) -> None:
    """(13.25)"""
    task, link = create(caller, f"{TRACE[:-2]}01")
    worker, task_id = caller.worker, task["id"]
    caller.claim()
    answered(worker.post(at(paths.HEARTBEAT, task_id), {}), 200)
    answered(worker.post(at(paths.NACK, task_id), {"delaySeconds": 0}), 200)
    caller.claim()
    answered(worker.post(at(paths.ABANDON, task_id), {}), 200)
    caller.claim()
    answered(worker.post(at(paths.RESULT, task_id), DONE), 200)
    for verb in ("heartbeat", "nack", "abandon", "submit_result"):
        span = linked(collector, f"codeq.task.{verb}", link)
        assert (span.tracer, span.service) == ("codeq/tasks", "codeq-tested")
        assert span.links == [link]
        assert span.attributes["codeq.task_id"] == task_id
        assert span.trace_id != link[0]
    claims = eventually(
        lambda: [s for s in collector.named("codeq.task.claim") if link in s.links][2:] and collector.spans
    )
    [created] = [span for span in claims if span.span_id == link[1]]
    assert (created.tracer, created.name, created.trace_id) == ("codeq/http", f"HTTP POST {paths.TASKS}", link[0])
    assert created.parent_id == "b7ad6b7169203331"


def test_sweeps_link_to_the_traces_of_what_they_move(collector: Collector, caller: Tenant) -> None:
    """(13.25) A delay that ends, a lease that expires, an ended task that is deleted."""
    task, link = create(caller, f"{TRACE[:-2]}02", delaySeconds=0.3)
    assert linked(collector, "codeq.task.promote", link).tracer == "codeq/sweep"
    caller.claim(leaseSeconds=0.1)
    assert linked(collector, "codeq.task.expire", link).attributes["codeq.batch"] >= 1
    caller.claim()
    answered(caller.worker.post(at(paths.RESULT, task["id"]), DONE), 200)
    assert linked(collector, "codeq.task.purge", link).tracer == "codeq/sweep"


def test_a_batch_links_to_the_traces_of_its_first_tasks(collector: Collector, caller: Tenant) -> None:
    """(13.25)"""
    number = TRACE_LINKS_MAX + 8
    links = [create(caller, f"{TRACE[:-4]}9{n:03x}")[1] for n in range(number)]
    claimed = answered(caller.worker.post(paths.CLAIM_BATCH, {"commands": ["work"], "count": number}), 200)["tasks"]
    results = [{"taskId": task["id"], **DONE} for task in claimed]
    assert len(results) == number
    answered(caller.worker.post(paths.RESULTS_BATCH, {"results": results}), 200)
    for verb in ("claim", "submit_result"):
        assert linked(collector, f"codeq.task.{verb}", links[0]).links == links[:TRACE_LINKS_MAX]


def test_a_refused_verb_links_too_and_a_task_without_a_trace_needs_no_link(
    collector: Collector, caller: Tenant
) -> None:
    task, link = create(caller, f"{TRACE[:-2]}03")
    assert caller.worker.post(at(paths.HEARTBEAT, task["id"]), {"leaseToken": 7}).status_code == 409
    assert linked(collector, "codeq.task.heartbeat", link).links == [link]
    unknown = "00000000-0000-7000-8000-000000000000"
    assert caller.worker.post(at(paths.HEARTBEAT, unknown), {}).status_code == 404
    [span] = eventually(lambda: [s for s in collector.spans if s.attributes.get("codeq.task_id") == unknown], 20)
    assert span.links == []


def test_provider_and_propagator_are_those_of_the_whole_process(collector: Collector) -> None:
    """(13.25) So a plugin's own spans, and its calls to other services, are part of the request's trace."""
    program = f"""
from opentelemetry import propagate, trace
from codeq.server.tracing import set_up
tracing = set_up(service="whole", endpoint={collector.endpoint!r}, insecure=True, ratio=1.0)
with tracing.request("GET", "/route", "/path", {{b"traceparent": b"00-{TRACE}-b7ad6b7169203331-01"}}):
    with trace.get_tracer("plugin").start_as_current_span("of a plugin"):
        carrier = {{}}
        propagate.inject(carrier)
        assert carrier["traceparent"].split("-")[1] == {TRACE!r}
        assert propagate.get_global_textmap().fields == {{"traceparent", "tracestate"}}
tracing.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment(), cwd=Path.cwd())
    [span] = collector.named("of a plugin")
    assert (span.tracer, span.service, span.trace_id) == ("plugin", "whole", TRACE)
