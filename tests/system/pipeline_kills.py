"""Kill the server, the pipeline's driver and its executors with -9 in any order, while everyone works; then compare.

    python -m tests.system.pipeline_kills --kills 30 --seed 1

A kill waits for marks that the pipeline leaves in the lake (files of a table begun, or committed), and a little longer:
so it lands in the middle of real work, and in each step of a run sooner or later. What was killed is started again at
once. In the end the lake must be exactly what the server wrote: see `pipeline_verdict`.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.server.server_process import Server, eventually, launch
from tests.system.pipeline_driver import CLUSTER, LOCAL, Driver, Way
from tests.system.pipeline_load import PATIENCE_S, SETTINGS, Load, come_to_rest
from tests.system.pipeline_verdict import judge

import codeq
from codeq.server.dev import ALL_SCOPES

TENANTS = ("acme", "globex")
MARKS_MAX = 16
"""A kill waits for so many marks at most. A run leaves about 25 of them."""
LINGER_S_MAX = 0.4
"""A table's files take about that long to be written and committed."""
MARK_S_MAX = 400.0
"""On a busy machine a run of the pipeline may take minutes."""
ENDS_MAX = 5
"""How many drivers in a row may end by themselves: Spark gives a job up whose executors are killed too often."""


class Kind(StrEnum):
    SERVER = "server"
    DRIVER = "driver"
    EXECUTOR = "executor"


class Mark(NamedTuple):
    table: str
    name: str
    is_commit: bool

    def __str__(self) -> str:
        return f"{self.table} was {'committed' if self.is_commit else 'begun'}"


def marks_in(lake: Path) -> set[Mark]:
    """What has been begun and committed so far."""
    begun = {Mark(path.parts[-3], path.name, is_commit=False) for path in lake.glob("*/*/b*")}
    return begun | {Mark(path.parts[-3], path.name, is_commit=True) for path in lake.glob("*/_delta_log/*.json")}


class Scene:
    """A server on one data directory and one port, and a pipeline into one lake; each is there whenever it is asked."""

    def __init__(self, folder: Path, dice: random.Random, masters: Sequence[str]) -> None:
        self.folder, self.dice, self.masters = folder, dice, masters
        self.lake = folder / "lake"
        self.server: Server = launch(folder, settings=SETTINGS)
        self.token_file = folder / "token"
        self.token_file.write_text(self.server.token("platform", "admin", scopes=ALL_SCOPES, ttl_s=86_400))
        self.drivers: list[Driver] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        for driver in self.drivers:
            driver.end()
        self.server.kill()

    def client(self, tenant: str) -> codeq.Client:
        scopes = [scope for scope in ALL_SCOPES if scope != "codeq:platform"]
        token = self.server.token(tenant, "worker", scopes=scopes, ttl_s=86_400)
        return codeq.Client(self.server.base, token, retry_for=PATIENCE_S)

    def drive(self) -> Driver:
        """The driver that runs; another one, if the last is dead."""
        if not self.drivers or not self.drivers[-1].is_alive:
            last = self.drivers[-ENDS_MAX:]
            if len(last) == ENDS_MAX and all(driver.ended_by_itself for driver in last):
                raise AssertionError(f"the driver ends by itself: {(self.folder / 'driver.log').read_text()[-3000:]}")
            master = self.dice.choice(self.masters)
            made = Driver(self.folder, url=self.server.base, token_file=self.token_file, master=master)
            self.drivers.append(made)
        return self.drivers[-1]

    def wait_for_marks(self, count: int) -> Mark:
        """Until so many more are left, and a little longer. Answers the last of them."""
        known = marks_in(self.lake)
        left = count

        def news() -> Mark | None:
            nonlocal known, left
            self.drive()
            new = marks_in(self.lake) - known
            known |= new
            left -= len(new)
            return max(new, key=lambda mark: mark.is_commit) if new and left <= 0 else None

        last = eventually(news, MARK_S_MAX, every_s=0.03)
        assert last is not None
        time.sleep(self.dice.uniform(0, LINGER_S_MAX))
        return last

    def kill(self, kind: Kind) -> str:
        """Kill one. Answers what it was."""
        match kind:
            case Kind.SERVER:
                port = self.server.port
                self.server.kill()
                time.sleep(self.dice.choice((0, 0, 1)))  # away for so short a time that it is hardly seen, or longer
                self.server = launch(self.folder, settings=SETTINGS, port=port)
                return "the server"
            case Kind.DRIVER:
                way = self.dice.choice(list(Way))
                self.drive().kill(way)
                return f"the driver, {way}"
            case Kind.EXECUTOR:
                return eventually(lambda: self.drive().kill_executor(self.dice), MARK_S_MAX)


def order_of(kills: int, dice: random.Random) -> list[Kind]:
    """The kinds in random order. A third are drivers, which take seconds to start and so are hit least by chance."""
    order = [list(Kind)[number % len(Kind)] for number in range(kills)]
    dice.shuffle(order)
    return order


def run(folder: Path, *, kills: int, seed: int, masters: Sequence[str]) -> list[str]:
    """Kill that often, and answer what is wrong with the lake afterwards, as sentences."""
    dice = random.Random(seed)
    began_s = time.monotonic()
    done: Counter[str] = Counter()
    with Scene(folder, dice, masters) as scene:
        clients = [scene.client(tenant) for tenant in TENANTS]
        with Load(clients, dice):
            for number, kind in enumerate(order_of(kills, dice), 1):
                mark = scene.wait_for_marks(dice.randint(1, MARKS_MAX))
                master = scene.drivers[-1].master
                what = scene.kill(kind)
                done[what] += 1
                say(f"{time.monotonic() - began_s:5.0f} s  kill {number} of {kills}: {what}, after {mark} ({master})")
        come_to_rest(clients)
        for driver in scene.drivers:
            driver.end()
        figures = judge(scene.lake, url=scene.server.base, clients=clients, token_file=scene.token_file)
        say(f"{kills} kills in {time.monotonic() - began_s:.0f} s, {len(scene.drivers)} drivers: {dict(done)}")
        for line in figures.lines:
            say(line)
    return figures.faults


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--master", action="append", help="where Spark runs; may be repeated")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through every `with`, so that nothing is left running
    say(f"--kills {given.kills} --seed {given.seed}")
    folder = Path(tempfile.mkdtemp(prefix="codeq-kills-"))
    faults = run(folder, kills=given.kills, seed=given.seed, masters=given.master or [LOCAL, CLUSTER])
    if faults:
        sys.exit("\n".join([*faults, f"what it is about is in {folder}"]))
    shutil.rmtree(folder)
    say("the lake is exactly what the server wrote")


if __name__ == "__main__":
    main()
