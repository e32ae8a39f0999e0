"""A task carries the trace of whoever enqueued it, by every kind of client."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sdk.clients import token_for
from tests.server.server_process import Server, environment

PROGRAM = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import codeq

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("test")
kind, where, token = sys.argv[1:]
told = []

def traced(enqueue):
    with tracer.start_as_current_span("producing") as span:
        told.append(f"{span.get_span_context().trace_id:032x}")
        return enqueue()

def plain(queue):
    traced(lambda: queue.enqueue("one", 1))
    traced(lambda: queue.enqueue_many([codeq.NewTask(command="many"), codeq.NewTask(command="many")]))
    with queue.batcher(size=100, linger=60) as batcher:
        traced(lambda: batcher.enqueue("first", 1))
        traced(lambda: batcher.enqueue("second", 1))
        batcher.enqueue("none", 1)
    return {job.command: job.trace_parent for job in queue.claim(limit=10)}

async def awaited(queue):
    async def put(batcher, command):
        with tracer.start_as_current_span("producing") as span:
            told.append(f"{span.get_span_context().trace_id:032x}")
            await batcher.enqueue(command, 1)

    async with queue:
        with tracer.start_as_current_span("producing") as span:
            told.append(f"{span.get_span_context().trace_id:032x}")
            await queue.enqueue("one", 1)
        with tracer.start_as_current_span("producing") as span:
            told.append(f"{span.get_span_context().trace_id:032x}")
            await queue.enqueue_many(codeq.new_tasks("many", [1, 2]))
        async with queue.batcher(size=100, linger=0.001) as batcher:
            await put(batcher, "first")
            await put(batcher, "second")
            await (await batcher.enqueue("none", 1))
        return {job.command: job.trace_parent for job in await queue.claim(limit=10)}

async def opened():
    return await awaited(await codeq.open_async(where))

if kind == "Client":
    with codeq.Client(where, token) as queue:
        found = plain(queue)
elif kind == "open":
    with codeq.open(where) as queue:
        found = plain(queue)
elif kind == "AsyncClient":
    found = asyncio.run(awaited(codeq.AsyncClient(where, token)))
else:
    found = asyncio.run(opened())
print(json.dumps([told, found]))
"""


@pytest.mark.parametrize("kind", ["Client", "AsyncClient", "open", "open_async"])
def test_a_task_carries_the_trace_of_its_producer(server: Server, tmp_path: Path, kind: str) -> None:
    where = server.base if "Client" in kind else str(tmp_path / "data")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, where, token_for(server)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    assert run.returncode == 0, run.stderr
    traces, found = json.loads(run.stdout)
    assert len(set(traces)) == 4
    for command, trace in zip(["one", "many", "first", "second"], traces, strict=True):
        assert found[command].split("-")[1] == trace, command
    assert found["none"] is None


def test_a_task_without_a_trace_has_none(server: Server) -> None:
    program = """
import sys, codeq
with codeq.Client(*sys.argv[1:]) as client:
    client.enqueue("work", 1)
    assert client.claim("work")[0].trace_parent is None
"""
    subprocess.run([sys.executable, "-c", program, server.base, token_for(server)], timeout=60, check=True)
