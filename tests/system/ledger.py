"""What was acknowledged by a child process, and whether a data directory still contains it."""

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.system.audit import ShardKeys, Stored

from codeq.domain.task import Status

LOAD_CHILD: Final = Path(__file__).with_name("load_child.py")
BRIEF: Final = "brief"
"""The one command whose tasks are purged, soon after they end."""

_FINAL = {"complete": Status.COMPLETED, "fail": Status.FAILED, "cancel": Status.CANCELLED}
_MOVES = frozenset({"claim", "complete", "fail", "nack", "abandon", "cancel"})


class Ledger:
    """Every acknowledgement of every child that worked on one directory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.verbs: Counter[str] = Counter()

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        acknowledged = [line for line in lines if "verb" in line]
        self.lines += acknowledged
        self.verbs.update(line["verb"] for line in acknowledged)

    def broken(self, shards: Sequence[ShardKeys]) -> list[str]:
        """Returns the acknowledgements that the directory contradicts, as sentences."""
        ids: dict[str, str] = {}
        found = []
        for line in self.lines:
            found += self._broken(line, shards)
            key = line.get("key")
            if key is not None and ids.setdefault(key, line["task"][0]) != line["task"][0]:
                found.append(f"idempotency key {key} answered {ids[key]} and then {line['task'][0]}")
        return found

    def _broken(self, line: dict[str, Any], shards: Sequence[ShardKeys]) -> list[str]:
        verb = line["verb"]
        task_id, version, move, status, token, attempts, deliveries, command, updated_ms = line["task"]
        shard = shards[int(task_id[-4:], 16)]
        stored = shard.tasks.get(task_id)
        found = []
        # Whatever a verb returned is a move in the log, under the same number: so it counted, and exactly so.
        event = shard.events.get(version)
        if version >= shard.first:
            have = event and (
                event.id, event.move, event.status, event.lease_token, event.attempts, event.deliveries,
                event.updated_ms,
            )  # fmt: skip
            if have != (task_id, move, status, token, attempts, deliveries, updated_ms):
                found.append(f"{verb} of {task_id}: event {version} should be its {move}, but is {have}")
        if verb in _MOVES and move != verb:
            found.append(f"{verb} of {task_id} was answered with {move}")
        if stored is None:
            if command != BRIEF:
                found.append(f"{verb} of {task_id} was acknowledged, and the task is gone")
            return found
        if stored.task.version < version:
            found.append(f"{verb} of {task_id} was acknowledged as {version}, but the task is at {stored.task.version}")
        return found + _ends(line, stored)


def _ends(line: dict[str, Any], stored: Stored) -> list[str]:
    verb, task_id = line["verb"], stored.task.id
    if verb in _FINAL and stored.task.status is not _FINAL[verb]:
        return [f"{verb} of {task_id} was acknowledged, and it is {stored.task.status}"]
    if verb == "complete" and stored.result != line["result"].encode():
        return [f"task {task_id} was completed with {line['result']}, and has {stored.result!r}"]
    if verb == "enqueue" and stored.body.payload != line["payload"].encode():
        return [f"task {task_id} was enqueued with {line['payload']}, and has {stored.body.payload!r}"]
    if verb == "claim" and stored.task.lease_token < line["task"][4]:
        return [f"task {task_id} was leased under token {line['task'][4]}, and is at {stored.task.lease_token}"]
    return []


class Child:
    """A child process that works on a directory. Used with `with`: it is killed at the end."""

    def __init__(
        self, path: Path, *options: str, before: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        command = [*before, sys.executable, str(LOAD_CHILD), str(path), *options]
        self.lines: list[dict[str, Any]] = []
        self._rest = b""
        self._errors = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._stderr, env={**os.environ, **(environment or {})}
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def read_for(self, seconds: float, until: Callable[[dict[str, Any]], bool] = lambda _: False) -> bool:
        """Reads the child's reports for some time, or until such a line. Returns whether it or the end was read."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([self._pipe], [], [], left_s)[0]:
                data = os.read(self._pipe, 1 << 16)
                if not data:
                    return True
                if any(map(until, self._read_lines(data))):
                    return True
        return False

    def _read_lines(self, data: bytes) -> list[dict[str, Any]]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        new = [json.loads(line) for line in whole]
        self.lines += new
        return new

    def wait_until_ready(self, seconds: float = 30) -> None:
        assert self.read_for(seconds, lambda line: "ready" in line), "the child did not open its directory in time"
        assert self._process.poll() is None or self.lines, self.errors()

    def kill(self) -> None:
        """Sends SIGKILL, and reads what it had reported before."""
        if self._process.stdout is None or self._process.stdout.closed:
            return
        self._process.kill()  # harmless once it has ended
        while data := os.read(self._pipe, 1 << 16):
            self._read_lines(data)
        self._process.wait(30)
        self._process.stdout.close()
        self._stderr.seek(0)
        self._errors = self._stderr.read().decode()
        self._stderr.close()

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def errors(self) -> str:
        """Returns its standard error. Kills it."""
        self.kill()
        return self._errors

    def finish(self, seconds: float) -> list[dict[str, Any]]:
        """Returns everything that it reports until it exits, which it must do in time and without an error."""
        assert self.read_for(seconds), f"the child still runs after {seconds} s: {self.lines[-5:]}\n{self.errors()}"
        code = self._process.wait(30)
        assert code == 0, f"the child ended with {code}: {self.errors()}"
        self.kill()
        return self.lines


def live_and_die(path: Path, dice: random.Random, *options: str) -> list[dict[str, Any]]:
    """Lets a child work on the directory and kills it at a random moment, sometimes while it opens the directory."""
    with Child(path, "--seed", str(dice.getrandbits(32)), *options) as child:
        if dice.random() < 0.15:
            child.read_for(dice.uniform(0.1, 0.4))
        else:
            child.wait_until_ready()
            child.read_for(dice.uniform(0.01, 0.45))
        ended = child.returncode
        child.kill()
        assert ended is None, f"the child ended by itself with {ended}: {child.errors()}"
        return child.lines
