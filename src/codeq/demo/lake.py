"""Runs the data pipeline on the event log of the demo: a lake, its audit and its report."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import msgspec

from codeq.demo.environment import DemoEnvironment, platform_token
from codeq.demo.processes import ChildProcess, DemoFailed, wait_until

PIPELINE_S_MAX = 300.0


class LakeFigures(msgspec.Struct, frozen=True):
    events: int
    seconds: dict[str, float]
    """By layer."""
    audit: dict[str, str]
    """By rule: ok, FAIL or not checked."""
    report: str

    @property
    def broken(self) -> list[str]:
        return [rule for rule, word in self.audit.items() if word == "FAIL"]


def has_spark() -> bool:
    return find_spec("pyspark") is not None


async def make_lake(demo: DemoEnvironment, page: Path) -> LakeFigures:
    """Runs `codeq pipeline run` in a process of its own. Raises DemoFailed if it does not finish."""
    demo.step = "the pipeline"
    demo.record("Spark reads the whole event log: bronze, silver, gold, audit, report", "cyan")
    started_s = monotonic()
    child = ChildProcess("pipeline", demo.folder / "pipeline.log")
    child.start(
        "codeq.cli.main:app", "pipeline", "run", "--json", "--audit", "--report", str(page.absolute()),
        "--lake", str(demo.folder / "lake"),
        env={"CODEQ_URL": demo.server.url, "CODEQ_TOKEN": platform_token(demo.server.data)},
    )  # fmt: skip
    child.is_expected_to_run = False  # it exits when it is done
    try:
        if not await wait_until(lambda: not child.is_running, PIPELINE_S_MAX):
            raise DemoFailed(f"the pipeline took more than {PIPELINE_S_MAX:.0f} s")
    finally:
        await asyncio.to_thread(child.kill)
    figures = _figures(child)
    checked = sum(word != "not checked" for word in figures.audit.values())
    demo.record(
        f"{figures.events:,} events in a lake after {monotonic() - started_s:.0f} s: "
        f"{checked - len(figures.broken)} of {checked} rules hold; see {page}",
        "red bold" if figures.broken else "green",
    )
    return figures


def _figures(child: ChildProcess) -> LakeFigures:
    for line in reversed(child.log.read_text(errors="replace").splitlines()):
        if line.startswith('{"events"'):
            return msgspec.json.decode(line, type=LakeFigures)
    raise DemoFailed(f"the pipeline did not finish:\n{child.log_end()}")
