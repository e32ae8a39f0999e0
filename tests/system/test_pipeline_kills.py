"""The lake has exactly the events of the server, whatever was killed in between."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]

LIMIT_S = 900
"""It takes about a minute on an idle machine, and many times longer on a busy one."""
KILLS = 6
PROJECT = Path(__file__).parents[2]


def test_kills_in_any_order_neither_lose_nor_double_a_row(tmp_path: Path) -> None:
    """In its own process: Spark's settings and Java are the same for all sessions of a process."""
    seed = int(os.environ.get("CODEQ_SEED", time.time_ns() % 1_000_000))
    options = ["--kills", str(KILLS), "--seed", str(seed), "--master", "local[2,4]"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.system.pipeline_kills", *options],
        cwd=PROJECT, env={**os.environ, "TMPDIR": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as program:  # fmt: skip
        try:
            output, _ = program.communicate()
        except BaseException:
            program.terminate()  # it kills the processes that it has started
            program.wait(60)
            raise
    print(output)  # noqa: T201 - the seed, to run it again, and figures to quote
    assert program.returncode == 0, output
    assert f"kill {KILLS} of {KILLS}" in output
    assert list(tmp_path.iterdir()) == []
