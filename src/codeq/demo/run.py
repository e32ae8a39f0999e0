"""Runs the demo from start to end: start everything, run the scenario, audit, clean up. Bounded in time."""

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from codeq.demo import figures
from codeq.demo.audit import PromiseCheck, audit
from codeq.demo.environment import NO_STEP, DemoEnvironment, TimelineEntry
from codeq.demo.evidence import collect_evidence
from codeq.demo.figures import Figures
from codeq.demo.lake import LakeFigures, make_lake
from codeq.demo.processes import DemoFailed
from codeq.demo.producers import produce
from codeq.demo.redis_store import DemoStore, emptied_at_the_end, own_redis
from codeq.demo.scenario import STEPS, WORKERS, task_count
from codeq.demo.screen import View
from codeq.domain.errors import InvalidRequest
from codeq.domain.queue import is_system

Answer = TypeVar("Answer")

TASKS_PER_SECOND = 450
DRAW_EVERY_S = 0.2
AUDIT_S_MAX = 120.0


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float = 45
    tasks: int | None = None
    keep: Path | None = None
    """Where to leave data, logs and the list of acknowledged tasks; None leaves nothing."""
    page: Path | None = None
    """Where to write the report of the lake; None skips the pipeline."""
    store: str | None = None
    """`redis` for a Redis of its own, or the address of one; None for RocksDB."""

    @property
    def deadline_s(self) -> float:
        """Allows a machine to be three times slower than planned."""
        return 60 + 3 * self.seconds


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    figures: Figures
    findings: list[PromiseCheck]
    timeline: list[TimelineEntry]
    lake: LakeFigures | None = None


def run(options: DemoOptions, view: View) -> DemoReport:
    """Runs the demo. Raises DemoFailed if it cannot be finished; leaves no process behind."""
    with _folder(options.keep) as folder, own_redis(options.store, folder) as store:
        return asyncio.run(_run(options, view, folder, store=store))


async def _run(options: DemoOptions, view: View, folder: Path, *, store: DemoStore | None) -> DemoReport:
    this_task = asyncio.current_task()
    if this_task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this_task.cancel)
    tasks = options.tasks if options.tasks is not None else round(options.seconds * TASKS_PER_SECOND)
    is_kept = options.keep is not None
    async with (
        emptied_at_the_end(store, is_kept=is_kept),
        DemoEnvironment(folder, seconds=options.seconds, tasks=task_count(tasks), store=store) as demo,
    ):
        with view:
            drawing = asyncio.create_task(_draw(demo, view))
            running = asyncio.create_task(_run_all(demo, options))
            report = await _first_of(running, drawing)
            view.draw(demo)
    return report


async def _run_all(demo: DemoEnvironment, options: DemoOptions) -> DemoReport:
    deadline_s = options.deadline_s
    await demo.start(WORKERS)
    demo.record(f"server at {demo.server.url}, {len(demo.tenants)} tenants, {len(WORKERS)} workers, one of them slow")
    following = asyncio.create_task(demo.follow_events())
    demo.producers = [asyncio.create_task(produce(demo, tenant)) for tenant in demo.tenants]
    steps = asyncio.create_task(_run_steps(demo))
    try:
        async with asyncio.timeout(deadline_s):
            await _first_of(steps, following, *demo.producers)
    except TimeoutError:
        demo.record(f"not finished after {deadline_s:.0f} s: open tasks will be reported", "red bold")
    demo.step = "the audit"
    demo.record("the audit starts: every task, every event, every tenant")
    try:
        async with asyncio.timeout(AUDIT_S_MAX):
            report = await _audit(demo)
    except TimeoutError:
        raise DemoFailed(f"the audit took more than {AUDIT_S_MAX:.0f} s") from None
    if options.page is None:
        return report
    lake = await make_lake(demo, options.page)
    return msgspec.structs.replace(report, lake=lake, ok=report.ok and not lake.broken)


async def _run_steps(demo: DemoEnvironment) -> None:
    for step in STEPS:
        demo.step = NO_STEP
        await asyncio.sleep(max(0.0, step.at * demo.seconds - demo.now_s))
        demo.step = step.name
        await step.run(demo)


async def _first_of(main: "asyncio.Task[Answer]", *others: "asyncio.Task[None]") -> Answer:
    """Returns the result of `main`. If another task fails first, stops all of them and raises its error."""
    everyone: set[asyncio.Task[Any]] = {main, *others}
    try:
        while not main.done():
            done, _ = await asyncio.wait([task for task in everyone if not task.done()], return_when="FIRST_COMPLETED")
            for task in done:
                task.result()
        return main.result()
    finally:
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


async def _draw(demo: DemoEnvironment, view: View) -> None:
    while True:
        demo.check()
        view.draw(demo)
        await asyncio.sleep(DRAW_EVERY_S)


async def _audit(demo: DemoEnvironment) -> DemoReport:
    evidence = await collect_evidence(demo)
    checks = await asyncio.to_thread(audit, evidence)
    counted = figures.count(
        [event for event in evidence.events if not is_system(event.command)],
        rush_at_ms=demo.rush_at_ms,
        events=len(evidence.events),  # of deliveries of webhooks too, which are audited as well
        acknowledged=len(evidence.acknowledged),
        repeats=len(evidence.repeats),
        workers_killed=sum(name != "server" for name in demo.kills),
        servers_killed=demo.kills.count("server"),
        downtime_seconds=round(demo.downtime_s, 2),
    )
    is_ok = bool(evidence.acknowledged) and all(check.is_kept for check in checks)
    return DemoReport(ok=is_ok, figures=counted, findings=checks, timeline=demo.timeline)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise InvalidRequest(f"{keep} already exists; name a new directory")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="codeq-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
