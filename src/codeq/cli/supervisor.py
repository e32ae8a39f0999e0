"""Runs worker processes: starts several, restarts those that die, and all of them when files change."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

from codeq.cli.errors import ExitCode

log = logging.getLogger("codeq.worker")

PARENT = "CODEQ_WORKER_PARENT"
"""The variable that tells a worker process who started it, and how many there are."""
LOOK_S = 0.2
FILES_S = 0.5
"""How often files are compared."""
FILES_MAX = 20_000
"""More files than a program has: another folder was meant."""
STARTED_S = 10.0
"""A process that lives longer has started well: the next pause is short again."""
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
HOPELESS = {ExitCode.USAGE, ExitCode.NOT_FOUND, ExitCode.NOT_ALLOWED}
"""With these a process ends because of how it was started; another one would too."""
_NOT_SOURCES = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


class _Slot:
    """One of the processes, over all its restarts."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = self.next_s = 0.0
        self.pause_s = PAUSE_S
        self.has_ended = False


class Supervisor:
    """Runs a process for each command until a signal, until all have ended well, or until one cannot work at all."""

    def __init__(self, commands: Sequence[Sequence[str]], env: Mapping[str, str], *, reload: Path | None) -> None:
        self._slots = [_Slot(command) for command in commands]
        self._env = {**env, PARENT: f"{os.getpid()}/{len(commands)}"}
        self._folder = reload
        self._is_stopping = False

    def run(self) -> int:
        """Returns the exit code of the command."""
        files = _FileWatch(self._folder) if self._folder is not None else None
        hopeless = 0
        try:
            with _signals(self._signalled):
                while not all(slot.has_ended for slot in self._slots):
                    hopeless = self._look() or hopeless
                    if files is not None and not self._is_stopping and files.has_changed():
                        log.info("files have changed: the worker is started again")
                        self._restart()
                    sleep(LOOK_S)
        finally:
            for slot in self._slots:
                if slot.process is not None and slot.process.poll() is None:
                    slot.process.kill()
        return hopeless

    def _look(self) -> int:
        """Starts what should run, and notices what has ended. Returns the exit code of a process without hope."""
        hopeless = 0
        for slot in self._slots:
            if slot.has_ended:
                continue
            if slot.process is None:
                self._start(slot)
            elif (code := slot.process.poll()) is not None:
                slot.process = None
                hopeless = hopeless or self._ended(slot, code)
        if hopeless:
            self._stop(signal.SIGTERM)
        return hopeless

    def _start(self, slot: _Slot) -> None:
        if self._is_stopping:
            slot.has_ended = True
        elif monotonic() >= slot.next_s:
            slot.started_s = monotonic()
            # A session of its own: Ctrl-C reaches this process alone, which passes it on, once.
            slot.process = subprocess.Popen(slot.command, env=self._env, start_new_session=True)  # noqa: S603 - our own
            if self._is_stopping:  # signalled while it was being started, so the signal did not reach it
                slot.process.terminate()

    def _ended(self, slot: _Slot, code: int) -> int:
        if code == 0 or self._is_stopping:
            slot.has_ended = True
        elif code in HOPELESS and self._folder is None:
            slot.has_ended = True
            return code
        else:
            slot.pause_s = PAUSE_S if monotonic() - slot.started_s > STARTED_S else min(slot.pause_s * 2, PAUSE_S_MAX)
            slot.next_s = monotonic() + slot.pause_s
            log.error("a worker process ended with %d; another one is started in %.1f s", code, slot.pause_s)
        return 0

    def _restart(self) -> None:
        """Ends each process as a signal does, and starts it anew when it has finished what it runs."""
        running = [slot for slot in self._slots if slot.process is not None]
        for slot in running:
            if slot.process is not None:
                slot.process.terminate()
        for slot in running:
            while slot.process is not None and slot.process.poll() is None and not self._is_stopping:
                sleep(LOOK_S)
            if not self._is_stopping:
                slot.process = None
        for slot in self._slots:
            slot.next_s, slot.pause_s, slot.has_ended = 0.0, PAUSE_S, slot.has_ended and self._is_stopping

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._stop(number)

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is None:
                slot.process.send_signal(number)


class _FileWatch:
    """Which Python files of a folder were changed, added or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._times()
        self._looked_s = monotonic()

    def has_changed(self) -> bool:
        if monotonic() - self._looked_s < FILES_S:
            return False
        self._looked_s = monotonic()
        before, self._seen = self._seen, self._times()
        return before != self._seen

    def _times(self) -> dict[str, int]:
        times: dict[str, int] = {}
        for folder, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if not _is_left_out(Path(folder, name))]
            for name in names:
                if name.endswith(".py") and len(times) < FILES_MAX:
                    path = os.path.join(folder, name)
                    try:
                        times[path] = os.stat(path).st_mtime_ns
                    except OSError:
                        continue  # it was removed meanwhile
        return times


def _is_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _NOT_SOURCES or (folder / "pyvenv.cfg").exists()


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def end_with_supervisor() -> int:
    """Ends this process together with the supervisor that started it, even if that is killed. Returns how many
    processes there are."""
    from codeq.sdk.worker.parent_death import die_with_parent

    parent, _, instances = os.environ.pop(PARENT, "").partition("/")
    if parent != str(os.getppid()):
        return 1
    die_with_parent(int(parent))
    return int(instances)


def python_command() -> list[str]:
    """The beginning of a command line that runs `codeq` as this process does."""
    return [sys.executable, "-P", "-m", "codeq"]
