"""What happens in a demo, and when. Each step is a coroutine; `STEPS` lists them in their order."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic, time_ns
from typing import NamedTuple

from codeq.demo import producers
from codeq.demo.acknowledged import FinalState
from codeq.demo.environment import COMMANDS, DemoEnvironment, WorkerSpec
from codeq.demo.handlers import REPORT
from codeq.demo.processes import wait_until
from codeq.domain.errors import AlreadyFinal
from codeq.domain.task import Move, Status

WORKERS = (
    WorkerSpec("worker-1", "acme"),
    WorkerSpec("worker-2", "acme"),
    WorkerSpec("worker-3", "globex"),
    WorkerSpec("worker-4", "globex", slow=True),
    WorkerSpec("worker-5", "initech"),
)
RUSH = (("acme", "send_receipt"), ("globex", "make_thumbnail"), ("initech", "import_row"))
WAIT_S_MAX = 20.0
OUTAGE_S = 0.7


class Step(NamedTuple):
    name: str
    at: float
    """The earliest start, as a fraction of the demo's duration."""
    run: Callable[[DemoEnvironment], Awaitable[None]]


async def kill_worker(demo: DemoEnvironment) -> None:
    """Kills a worker that holds tasks: its leases expire, and other workers claim the tasks."""
    victim = demo.workers["worker-2"][1]
    work = [producers.plan("acme", "send_receipt", 500_000 + n, work_s=0.4, priority=5) for n in range(60)]
    await producers.enqueue_batch(demo, "acme", work)
    await wait_until(lambda: demo.states.held["worker-2"] >= 4, WAIT_S_MAX)
    victim.kill()
    demo.kills.append("worker-2")
    await asyncio.sleep(0.5)  # until the last events of the worker have been read
    held = demo.states.held["worker-2"]
    demo.record(f"kill -9 worker-2 (held {held} tasks)", "red")
    demo.start_worker(WorkerSpec("worker-6", "acme"))
    demo.record("worker-6 started in its place")
    if held and await wait_until(lambda: demo.states.held["worker-2"] == 0, WAIT_S_MAX):
        demo.record(f"the leases of worker-2 expired: {held} tasks redelivered", "green")


async def cancel_tasks(demo: DemoEnvironment) -> None:
    """Cancels tasks that are delayed until tomorrow, and one that is in progress."""
    globex, acme = demo.tenants["globex"].producer, demo.tenants["acme"].producer
    delayed = [producers.plan("acme", "send_receipt", 600_000 + n, delay_ms=86_400_000) for n in range(25)]
    running = producers.plan("globex", "render_video", 600_000, work_s=60.0, priority=9)
    await producers.enqueue_batch(demo, "acme", delayed)
    await producers.enqueue_batch(demo, "globex", [running])
    keys = {planned.task.idempotency_key for planned in (*delayed, running)}
    tasks = [task for task in demo.acknowledged.tasks if task.planned.task.idempotency_key in keys]
    for task in tasks:
        if task.tenant == "globex":
            await _wait_until_claimed(demo, task.task_id)
        with suppress(AlreadyFinal):  # cancelled by a call whose answer was lost, unless the audit finds otherwise
            await (acme if task.tenant == "acme" else globex).cancel(task.task_id)
        demo.acknowledged.expect(task.task_id, FinalState.CANCELLED)
    demo.record(f"{len(tasks)} tasks cancelled: {len(delayed)} due tomorrow, one in progress", "yellow")


async def kill_server(demo: DemoEnvironment) -> None:
    """Kills the server under load and restarts it on the same data and port. Clients reconnect by themselves."""
    open_tasks, acknowledged = demo.states.open_tasks, len(demo.acknowledged.tasks)
    killed_s = monotonic()
    demo.server.kill()
    demo.kills.append("server")
    demo.record(f"kill -9 server ({acknowledged} tasks acknowledged, {open_tasks} open)", "red bold")
    await asyncio.sleep(OUTAGE_S)
    await demo.server.serve()
    demo.downtime_s = monotonic() - killed_s
    demo.record(f"server back after {demo.downtime_s:.1f} s on the same data; clients reconnect by themselves", "green")
    counts = [await producers.enqueue_again(demo, tenant, 20) for tenant in demo.tenants]
    sent, same = (sum(numbers) for numbers in zip(*counts, strict=True))
    demo.record(f"{sent} tasks from before the crash enqueued again with their keys: {same} gave the same task")


async def replay_dead_letters(demo: DemoEnvironment) -> None:
    """Lists the dead letters, replaces the worker by one with the bug fixed, and replays them."""
    queue = "initech", "file_report"
    admin = demo.tenants["initech"].admin
    await wait_until(lambda: demo.states.queues[queue]["dead"] > 0, WAIT_S_MAX)
    dead = (await admin.list(command="file_report", dead=True, limit=1000)).tasks
    reason = (dead[0].last_error or "").partition(" (at")[0] if dead else "nothing"
    demo.record(f"{len(dead)} dead letters of file_report: {reason}", "yellow")
    await demo.workers["worker-5"][1].stop()
    demo.start_worker(WorkerSpec("worker-7", "initech", release=2))
    demo.record("worker-5 stopped gracefully; worker-7 started with release 2")
    replayed = await admin.replay_dead("file_report")
    demo.record(f"{replayed.changed} dead letters replayed", "green")


async def rush_hour(demo: DemoEnvironment) -> None:
    """Enqueues all remaining tasks at once."""
    await asyncio.gather(*demo.producers)
    remaining = max(0, demo.tasks - len(demo.acknowledged.tasks))
    shares = [(remaining + index) // len(RUSH) for index in range(len(RUSH))]
    demo.record(f"rush hour: {remaining:,} tasks at once", "cyan")
    started_s = monotonic()
    demo.rush_at_ms = time_ns() // 1_000_000
    await asyncio.gather(*[producers.rush(demo, *queue, share) for queue, share in zip(RUSH, shares, strict=True)])
    took_s = monotonic() - started_s
    demo.record(f"all enqueued and on disk within {took_s:.1f} s ({remaining / max(took_s, 0.001):,.0f} tasks/s)")


async def drain(demo: DemoEnvironment) -> None:
    """Waits until every acknowledged task has ended. The deadline of the whole demo bounds it."""
    admin = demo.tenants["initech"].admin
    await asyncio.gather(*demo.producers)
    while demo.states.ended_tasks < len(demo.acknowledged.tasks) or demo.states.open_tasks:
        await asyncio.sleep(0.1)
        if demo.states.queues["initech", "file_report"]["dead"]:  # on a machine so slow that leases expired
            await admin.replay_dead("file_report")
    demo.record("every task has ended", "green")
    wanted = {task.task_id for task in demo.acknowledged.tasks if task.planned.task.webhook}
    await wait_until(lambda: wanted <= demo.callbacks.task_ids, WAIT_S_MAX)
    got = demo.callbacks
    demo.record(
        f"{got.accepted} result callbacks arrived, all signed; {got.refused} of them were refused at first", "green"
    )
    await _fetch_report(demo)


async def _fetch_report(demo: DemoEnvironment) -> None:
    """Downloads the file of one report. The audit compares more of them with what their handlers attached."""
    done = (await demo.tenants["initech"].producer.list(command="file_report", status="COMPLETED", limit=1)).tasks
    made = [event for event in demo.states.events if event.move == Move.COMPLETE and event.artifacts]
    for task in done:
        content = await demo.tenants["initech"].producer.read_artifact(task.id, REPORT)
        size = sum(event.artifact_bytes for event in made)
        demo.record(
            f"{len(made)} artifacts made by handlers ({size:,} bytes); fetched {REPORT} of {task.id}: "
            f"{len(content):,} bytes",
            "green",
        )


STEPS = (
    Step("a worker is killed", 0.15, kill_worker),
    Step("tasks are cancelled", 0.32, cancel_tasks),
    Step("the server is killed", 0.45, kill_server),
    Step("dead letters are replayed", 0.62, replay_dead_letters),
    Step("rush hour", 0.78, rush_hour),
    Step("the last tasks", 0.8, drain),
)


def task_count(tasks: int) -> int:
    """At least as many tasks as every step needs to have something to do."""
    return max(tasks, 300 * len(COMMANDS))


async def _wait_until_claimed(demo: DemoEnvironment, task_id: str) -> None:
    client = demo.tenants["globex"].producer
    deadline_s = monotonic() + WAIT_S_MAX
    while monotonic() < deadline_s:
        if (await client.get(task_id)).task.status is not Status.PENDING:
            return
        await asyncio.sleep(0.1)
