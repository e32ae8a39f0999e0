"""The last act: the whole event log on Spark. A lake is made of it, audited, and shown on a page."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import msgspec

from codeq.demo.environment import Stage, token_of_platform
from codeq.demo.processes import Child, DemoFailed, until

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


async def make_lake(stage: Stage, page: Path) -> LakeFigures:
    """Run the pipeline as a user would, in a process of its own. Raises DemoFailed if it does not come to an end."""
    stage.act = "the pipeline"
    stage.note("Spark takes in the whole event log: bronze, silver, gold, audit, report", "cyan")
    began_s = monotonic()
    child = Child("pipeline", stage.folder / "pipeline.log")
    child.start(
        "codeq.cli.main:app", "pipeline", "run", "--json", "--audit", "--report", str(page.absolute()),
        "--lake", str(stage.folder / "lake"),
        env={"CODEQ_URL": stage.server.url, "CODEQ_TOKEN": token_of_platform(stage.server.data)},
    )  # fmt: skip
    child.is_expected_to_run = False  # it ends by itself
    try:
        if not await until(lambda: not child.is_running, PIPELINE_S_MAX):
            raise DemoFailed(f"the pipeline took more than {PIPELINE_S_MAX:.0f} s")
    finally:
        await asyncio.to_thread(child.kill)
    figures = _figures(child)
    checked = sum(word != "not checked" for word in figures.audit.values())
    stage.note(
        f"{figures.events:,} events in a lake after {monotonic() - began_s:.0f} s: {checked - len(figures.broken)} of "
        f"{checked} rules hold; see {page}",
        "red bold" if figures.broken else "green",
    )
    return figures


def _figures(child: Child) -> LakeFigures:
    for line in reversed(child.log.read_text(errors="replace").splitlines()):
        if line.startswith('{"events"'):
            return msgspec.json.decode(line, type=LakeFigures)
    raise DemoFailed(f"the pipeline did not come to an end:\n{child.last_words()}")
