"""The show from curtain to curtain: set up, play the acts, audit, clear away. Bounded in time, whatever happens."""

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
from codeq.demo.audit import Finding, audit
from codeq.demo.environment import CALM, Note, Stage
from codeq.demo.evidence import gather_evidence
from codeq.demo.figures import Figures
from codeq.demo.lake import LakeFigures, make_lake
from codeq.demo.processes import DemoFailed
from codeq.demo.producers import produce
from codeq.demo.scenario import ACTS, HIRES, planned_tasks
from codeq.demo.screen import View
from codeq.domain.errors import InvalidRequest

Answer = TypeVar("Answer")

TASKS_PER_SECOND = 450
DRAW_EVERY_S = 0.2
AUDIT_S_MAX = 120.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float = 45
    tasks: int | None = None
    keep: Path | None = None
    """Where to leave data, logs and ledger; if not said, nothing is left."""
    page: Path | None = None
    """Where to leave the report of the lake; if not said, the pipeline is left out."""

    @property
    def deadline_s(self) -> float:
        """A machine may be three times slower than planned before the show is given up."""
        return 60 + 3 * self.seconds


class Report(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    figures: Figures
    findings: list[Finding]
    timeline: list[Note]
    lake: LakeFigures | None = None


def run(options: Options, view: View) -> Report:
    """Play the demo. Raises DemoFailed when it cannot be played to its end; leaves no process behind."""
    with _folder(options.keep) as folder:
        return asyncio.run(_perform(options, view, folder))


async def _perform(options: Options, view: View, folder: Path) -> Report:
    me = asyncio.current_task()
    if me is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    tasks = options.tasks if options.tasks is not None else round(options.seconds * TASKS_PER_SECOND)
    async with Stage(folder, seconds=options.seconds, tasks=planned_tasks(tasks)) as stage:
        with view:
            watching = asyncio.create_task(_watch(stage, view))
            playing = asyncio.create_task(_play(stage, options))
            report = await _first_of(playing, watching)
            view.draw(stage)
    return report


async def _play(stage: Stage, options: Options) -> Report:
    deadline_s = options.deadline_s
    await stage.set_up(HIRES)
    stage.note(f"server at {stage.server.url}, {len(stage.tenants)} tenants, {len(HIRES)} workers, one of them slow")
    following = asyncio.create_task(stage.follow())
    stage.producers = [asyncio.create_task(produce(stage, tenant)) for tenant in stage.tenants]
    acting = asyncio.create_task(_act(stage))
    try:
        async with asyncio.timeout(deadline_s):
            await _first_of(acting, following, *stage.producers)
    except TimeoutError:
        stage.note(f"not done after {deadline_s:.0f} s: what is open now will be reported", "red bold")
    stage.act = "the audit"
    stage.note("the audit begins: every task, every event, every tenant")
    try:
        async with asyncio.timeout(AUDIT_S_MAX):
            report = await _audit(stage)
    except TimeoutError:
        raise DemoFailed(f"the audit took more than {AUDIT_S_MAX:.0f} s") from None
    if options.page is None:
        return report
    lake = await make_lake(stage, options.page)
    return msgspec.structs.replace(report, lake=lake, ok=report.ok and not lake.broken)


async def _act(stage: Stage) -> None:
    for act in ACTS:
        stage.act = CALM
        await asyncio.sleep(max(0.0, act.at * stage.seconds - stage.now_s))
        stage.act = act.name
        await act.play(stage)


async def _first_of(main: "asyncio.Task[Answer]", *others: "asyncio.Task[None]") -> Answer:
    """The answer of the first task. When another one fails before, all are stopped and its error is raised."""
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


async def _watch(stage: Stage, view: View) -> None:
    while True:
        stage.check()
        view.draw(stage)
        await asyncio.sleep(DRAW_EVERY_S)


async def _audit(stage: Stage) -> Report:
    evidence = await gather_evidence(stage)
    findings = await asyncio.to_thread(audit, evidence)
    counted = figures.count(
        evidence.events,
        rush_at_ms=stage.rush_at_ms,
        acknowledged=len(evidence.receipts),
        repeats=len(evidence.repeats),
        workers_killed=sum(name != "server" for name in stage.kills),
        servers_killed=stage.kills.count("server"),
        downtime_seconds=round(stage.downtime_s, 2),
    )
    is_ok = bool(evidence.receipts) and all(finding.is_kept for finding in findings)
    return Report(ok=is_ok, figures=counted, findings=findings, timeline=stage.notes)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise InvalidRequest(f"{keep} is there already; name a new directory to keep things in")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="codeq-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
