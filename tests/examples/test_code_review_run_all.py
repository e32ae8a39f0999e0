"""`make code-review`: one command starts everything, sends samples, and Ctrl-C stops everything."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from examples.code_review.database import Database
from tests.examples.review_application import PROJECT
from tests.server.server_process import eventually

pytestmark = pytest.mark.slow
SAMPLES = 6


@pytest.mark.parametrize("queue", [[], ["codeq"]], ids=["redis", "codeq"])
def test_one_command_starts_everything_and_ctrl_c_stops_it(tmp_path: Path, queue: list[str]) -> None:
    out = tmp_path / "out"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CODE_REVIEW_", "CODEQ_"))}
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.code_review", "all", *queue],
            env={**kept, "CODE_REVIEW_DATA": str(tmp_path / "data"), "CODE_REVIEW_PORT": "0"},
            cwd=PROJECT, stdout=stdout, stderr=stdout,
        )  # fmt: skip
    try:
        [url] = eventually(lambda: re.findall(r"findings: (http://\S+)", out.read_text()), 60, every_s=0.1)
        assert out.read_text().count("  202  ") == SAMPLES
        database = Database(tmp_path / "data" / "reviews.sqlite")
        eventually(lambda: database.counts() == {"done": SAMPLES}, 60, every_s=0.1)
        reviews = {review.title: review.findings for review in database.reviews()}
        assert reviews["#7 Welcome discount"] == 3
        assert reviews["#12 Fix a typo"] == 0
        page = httpx.get(url, trust_env=False).text
        assert all(title in page for title in ("#7 Welcome discount", "!3 Import the catalogue"))
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 3
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, out.read_text()
        assert [child for child in started if child.is_running()] == []
    finally:
        process.terminate()
        process.wait(60)
