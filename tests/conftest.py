"""How tests are split over several processes (`pytest -n 2`): by file, so that each file sets up once.

Also the set-up of every test process.
"""

import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TESTS = Path(__file__).parent
_ENGINE = re.compile(
    r"tests/(?:contract/.*\[(?:.*-)?(r(?:ocksdb|edis)(?:-3-shards|-cluster|-full-filters)?)(?:-.*)?\]"
    r"|lockstep/.*::TestLockstepOn(\w+))"
)
"""The engine that is named in the id of a contract test, or in that of a lockstep test."""
LONGEST_FIRST = ("pipeline", "system", "worker", "server", "sdk")
"""Started first, so that no process is left with a long file at the end."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder, name = file.split("/")[1:3]
        if folder == "pipeline":
            return folder  # one Spark session for all
        if folder == "server" and name.startswith(("test_auth", "test_endpoints")):
            return "endpoints"  # the last of them checks what the others called
        return file


def pytest_configure() -> None:
    """Ctrl-C reaches what the tests start, also where it does not reach the tests: after `nohup`, or behind `&`.

    A child process inherits an ignored signal. Handled here, the signal has its usual effect in every process started.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST_FIRST.index(folder) if (folder := _folder(item)) in LONGEST_FIRST else 9)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says on which engines the contract and the lockstep tests have run."""
    ran: Counter[str] = Counter()
    for report in [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]:
        if found := _ENGINE.match(report.nodeid):
            ran[found[1] or found[2]] += 1
    if ran:
        named = ", ".join(f"{engine} {number}" for engine, number in sorted(ran.items()))
        terminalreporter.write_line(f"contract and lockstep tests by engine: {named}")


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
