"""On a slow disk only the calls that wait for it are delayed, and they share its fsyncs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns what the child measured on a disk whose every fdatasync takes 50 ms."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("slow")
    library = folder / "slowsync.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "slowsync.c"), "-ldl"], check=True
    )
    child = subprocess.run(
        [sys.executable, str(HERE / "slow_disk_child.py"), str(folder / "data")],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr.decode()
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def test_the_event_loop_goes_on_while_a_commit_waits_for_the_disk(measured: dict[str, Any]) -> None:
    for ticks, syncs in measured["waits"]:
        assert syncs >= 1, "every enqueue waits for an fsync of its own"
        assert ticks >= 8, "50 ms have passed, in which the loop turned"


def test_calls_made_together_share_an_fsync(measured: dict[str, Any]) -> None:
    assert 1 <= measured["shared"] <= 4


def test_a_reader_is_not_shown_what_is_not_yet_on_disk(measured: dict[str, Any]) -> None:
    assert not measured["shown_before_durable"]


def test_a_waiting_claim_is_not_answered_before_it_is_on_disk(measured: dict[str, Any]) -> None:
    assert not measured["claimed_before_durable"]
