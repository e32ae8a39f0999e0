"""Cutting the power loses nothing that was acknowledged after an fsync. A control shows that losses are detected."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.system.audit import faults_of, read_shards
from tests.system.disks import LoopDisk, loop_disk
from tests.system.ledger import Child, Ledger

import codeq

CYCLES = 8


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_acknowledged_survives_power_loss(shards: int, tmp_path: Path) -> None:
    dice = random.Random(shards)
    ledger = Ledger()
    with loop_disk(tmp_path) as disk:
        for cycle in range(CYCLES):
            ledger.add(_work_until_power_loss(disk, dice, "data", "--shards", str(shards)))
            codeq.open(disk.path / "data", sweeping=False).close()  # without `recover`: a torn tail is no damage
            shutil.copytree(disk.path / "data", tmp_path / f"copy-{cycle}")
            found = read_shards(tmp_path / f"copy-{cycle}")
            assert faults_of(found) == [], f"after power loss {cycle + 1}"
            assert ledger.broken(found) == [], f"after power loss {cycle + 1}"
    print(f"{CYCLES} power losses, acknowledged: {ledger.verbs}")  # noqa: T201 - a figure to quote
    assert len(ledger.lines) > 100


@pytest.mark.slow
def test_without_fsync_power_loss_does_lose_something_or_this_harness_is_broken(tmp_path: Path) -> None:
    dice = random.Random(7)
    with loop_disk(tmp_path) as disk:
        for cycle in range(6):
            ledger = Ledger()
            name = f"data-{cycle}"
            ledger.add(_work_until_power_loss(disk, dice, name, "--durability", "process"))
            if _lost(disk.path / name, ledger):
                return
    pytest.fail("six power losses without fsync, and nothing was lost: the power was not really cut")


def _lost(path: Path, ledger: Ledger) -> bool:
    if not (path / "codeq.json").exists():
        return bool(ledger.lines)
    try:
        return bool(ledger.broken(read_shards(path)))
    except Exception:  # noqa: BLE001 - rocksdict has no other; files that cannot be read are lost as well
        return True


def _work_until_power_loss(disk: LoopDisk, dice: random.Random, name: str, *options: str) -> list[dict[str, Any]]:
    """Returns what was acknowledged before the power was cut."""
    with Child(disk.path / name, "--seed", str(dice.getrandbits(32)), "--until-failed", *options) as child:
        child.wait_until_ready()
        child.read_for(dice.uniform(0.05, 0.5))
        # The child's power would be cut at the same instant; here it may still see an fsync that completed too late.
        cut_ns = time.monotonic_ns()
        disk.cut_power()
        child.kill()
    disk.unmount()
    disk.mount()
    return [line for line in child.lines if line["at_ns"] < cut_ns]
