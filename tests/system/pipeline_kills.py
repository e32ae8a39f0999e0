"""Kills the server, the pipeline's driver and its executors with -9 in random order under load; then compares.

    python -m tests.system.pipeline_kills --kills 30 --seed 1 --store s3

A kill waits for marks that the pipeline leaves in the lake (files of a table begun, or committed), and a little longer,
so that over many kills it hits each step of a run. The killed process is started again at once. In the end the lake
must have exactly the events of the server: see `pipeline_verdict`.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pyarrow.fs import FileSelector
from tests.s3_servers import BUCKET, start_moto
from tests.server.server_process import Server, eventually, launch
from tests.system.pipeline_driver import CLUSTER, LOCAL, Driver, Way
from tests.system.pipeline_load import RETRY_S, SETTINGS, Load, finish_tasks
from tests.system.pipeline_verdict import judge

import codeq
from codeq.pipeline.lake.folder import Folder, file_at, folder_of
from codeq.server.dev import ALL_SCOPES

TENANTS = ("acme", "globex")
MARKS_MAX = 16
"""A kill waits for at most so many marks. A run leaves about 25."""
LINGER_S_MAX = 0.4
"""About as long as writing and committing the files of a table takes."""
MARK_S_MAX = 400.0
"""On a busy machine a run of the pipeline may take minutes."""
ENDS_MAX = 5
"""How many drivers in a row may end by themselves: Spark fails a job if its executors are killed too often."""


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


def marks_in(lake: Folder) -> set[Mark]:
    """Returns the marks of all batches begun and committed so far."""
    system, root = file_at(str(lake))
    files = system.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    names = [file.path.removeprefix(f"{root}/").split("/") for file in files if file.is_file]
    names = [path for path in names if not path[0].startswith("_")]  # the check of the store
    begun = {Mark(table, batch, is_commit=False) for table, batch, *_ in names if batch.startswith("b")}
    commits = {Mark(path[0], path[2], is_commit=True) for path in names if path[1:2] == ["_delta_log"]}
    return begun | {mark for mark in commits if mark.name.endswith(".json")}


class Environment:
    """A server on one data directory and one port, and a pipeline into one lake; each is restarted if it is dead."""

    def __init__(self, folder: Path, lake: Folder, dice: random.Random, masters: Sequence[str]) -> None:
        self.folder, self.lake, self.dice, self.masters = folder, lake, dice, masters
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
        return codeq.Client(self.server.base, token, retry_for=RETRY_S)

    def drive(self) -> Driver:
        """Returns the running driver; starts another if the last is dead."""
        if not self.drivers or not self.drivers[-1].is_alive:
            last = self.drivers[-ENDS_MAX:]
            if len(last) == ENDS_MAX and all(driver.ended_by_itself for driver in last):
                raise AssertionError(f"the driver ends by itself: {(self.folder / 'driver.log').read_text()[-3000:]}")
            master = self.dice.choice(self.masters)
            server = (self.server.base, self.token_file)
            made = Driver(self.folder, lake=str(self.lake), server=server, master=master)
            self.drivers.append(made)
        return self.drivers[-1]

    def wait_for_marks(self, count: int) -> Mark:
        """Waits for so many new marks, and a little longer. Returns the last of them."""
        known = marks_in(self.lake)
        left = count

        def news() -> Mark | None:
            nonlocal known, left
            self.drive()
            new = marks_in(self.lake) - known
            known |= new
            left -= len(new)
            return max(new, key=lambda mark: mark.is_commit) if new and left <= 0 else None

        last = eventually(news, MARK_S_MAX, every_s=0.03 if self.lake.is_local else 0.3)
        assert last is not None
        time.sleep(self.dice.uniform(0, LINGER_S_MAX))
        return last

    def kill(self, kind: Kind) -> str:
        """Kills one, and returns its description."""
        match kind:
            case Kind.SERVER:
                port = self.server.port
                self.server.kill()
                time.sleep(self.dice.choice((0, 0, 1)))  # unavailable for a moment, or longer
                self.server = launch(self.folder, settings=SETTINGS, port=port)
                return "the server"
            case Kind.DRIVER:
                way = self.dice.choice(list(Way))
                self.drive().kill(way)
                return f"the driver, {way}"
            case Kind.EXECUTOR:
                return eventually(lambda: self.drive().kill_executor(self.dice), MARK_S_MAX)


def random_order(kills: int, dice: random.Random) -> list[Kind]:
    """Returns the kinds in random order, a third of each."""
    order = [list(Kind)[number % len(Kind)] for number in range(kills)]
    dice.shuffle(order)
    return order


def run(folder: Path, lake: Folder, *, kills: int, seed: int, masters: Sequence[str]) -> list[str]:
    """Kills that often, and returns what is wrong with the lake afterwards, as sentences."""
    dice = random.Random(seed)
    began_s = time.monotonic()
    done: Counter[str] = Counter()
    with Environment(folder, lake, dice, masters) as system:
        clients = [system.client(tenant) for tenant in TENANTS]
        with Load(clients, dice):
            for number, kind in enumerate(random_order(kills, dice), 1):
                mark = system.wait_for_marks(dice.randint(1, MARKS_MAX))
                master = system.drivers[-1].master
                what = system.kill(kind)
                done[what] += 1
                say(f"{time.monotonic() - began_s:5.0f} s  kill {number} of {kills}: {what}, after {mark} ({master})")
        finish_tasks(clients)
        for driver in system.drivers:
            driver.end()
        verdict = judge(system.lake, url=system.server.base, clients=clients, token_file=system.token_file)
        say(f"{kills} kills in {time.monotonic() - began_s:.0f} s, {len(system.drivers)} drivers: {dict(done)}")
        for line in verdict.lines:
            say(line)
    return verdict.faults


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--master", action="append", help="where Spark runs; may be repeated")
    parser.add_argument("--store", choices=["folder", "s3"], default="folder", help="where the lake is")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves every `with`, so that no process is left running
    say(f"--kills {given.kills} --seed {given.seed} --store {given.store}")
    folder = Path(tempfile.mkdtemp(prefix="codeq-kills-"))
    with ExitStack() as stack:
        if given.store == "s3":
            os.environ.update(stack.enter_context(start_moto(folder)))
        lake = folder_of(f"s3://{BUCKET}/lake" if given.store == "s3" else folder / "lake")
        faults = run(folder, lake, kills=given.kills, seed=given.seed, masters=given.master or [LOCAL, CLUSTER])
    if faults:
        sys.exit("\n".join([*faults, f"the files are in {folder}"]))
    shutil.rmtree(folder)
    say("the lake has exactly the events of the server")


if __name__ == "__main__":
    main()
