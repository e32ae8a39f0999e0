"""A system's clock that is set, by an hour and in either direction, stops nothing and expires nothing (13.4)."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_process import Server, answered, at, eventually, launch

from codeq.wire import paths, times

HOUR_S = 3600


class SteppedServer:
    """A server whose system's clock the test sets. `dev-token` is used throughout: it has no times to check."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        self._step = folder / "step"
        self._env = {"LD_PRELOAD": str(library), "STEP_FILE": str(self._step)}
        self.set_clock(0)

    def set_clock(self, step_s: int) -> None:
        part = self._folder / "step.part"
        part.write_text(str(step_s))
        os.replace(part, self._step)  # the server reads it at any moment

    def start(self) -> Server:
        return launch(self._folder, env=self._env, settings={"leases": {"grace_seconds": 2.0}})


@pytest.fixture
def stepped(tmp_path: Path, clock_library: Path) -> SteppedServer:
    return SteppedServer(tmp_path, clock_library)


def post(server: Server, path: str, body: Any, status: int = 200) -> Any:
    return answered(server.request("POST", path, body), status)


def counts(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = answered(server.request("GET", at(paths.ADMIN_QUEUE, "work")), 200)
    return found


def create(server: Server, **fields: Any) -> Any:
    return post(server, paths.TASKS, {"command": "work", "payload": 1, **fields}, 202)


def until_counted(server: Server, name: str, number: int) -> None:
    """Counted, not claimed: a claim would promote and expire tasks itself."""
    eventually(lambda: counts(server)[name] == number, 20)


def off_by_s(server: Server) -> float:
    """Returns how far the server's time is ahead of this process's."""
    return times.parse(create(server, command="clock")["createdAt"]) / 1000 - time.time()


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_delays_and_leases_go_on_when_the_clock_is_set(stepped: SteppedServer, step_s: int) -> None:
    with stepped.start() as server:
        create(server)
        held = post(server, paths.CLAIM, {"commands": ["work"], "leaseSeconds": 300})
        create(server, delaySeconds=2)
        create(server, delaySeconds=300)
        assert (counts(server)["delayed"], counts(server)["inProgress"]) == (2, 1)
        stepped.set_clock(step_s)
        until_counted(server, "ready", 1)
        short = post(server, paths.CLAIM, {"commands": ["work"], "leaseSeconds": 1})
        assert short["id"] != held["id"]
        until_counted(server, "inProgress", 1)  # the short lease has ended, and with it a sweep over all leases
        assert (counts(server)["ready"], counts(server)["delayed"]) == (0, 2)
        post(server, at(paths.RESULT, held["id"]), {"status": "COMPLETED", "result": 1})
        assert abs(off_by_s(server)) < 60


@pytest.mark.parametrize(("step_s", "expected_s"), [(-HOUR_S, 0), (HOUR_S, HOUR_S)])
def test_time_never_runs_backwards_over_a_restart(stepped: SteppedServer, step_s: int, expected_s: int) -> None:
    with stepped.start() as server:
        create(server)
        held = post(server, paths.CLAIM, {"commands": ["work"], "leaseSeconds": 300})
        create(server, delaySeconds=3)
        server.kill()
    stepped.set_clock(step_s)
    with stepped.start() as again:
        assert abs(off_by_s(again) - expected_s) < 60
        until_counted(again, "ready", 1)
        post(again, at(paths.RESULT, held["id"]), {"status": "COMPLETED", "result": 1})
