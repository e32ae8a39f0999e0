"""The pipeline as people leave it running, in a process of its own, and ways to kill it or its executors with -9."""

import random
import subprocess
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pyspark
from tests.server.server_process import command_line, environment, eventually

LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"
"""Executors as threads of the driver, with Python processes beside it; and as processes of their own, with theirs."""

_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "pyspark.worker"


class Way(StrEnum):
    """What of a driver is killed. What is left of it has to go by itself."""

    WHOLE = "everything of it"
    PYTHON = "its Python alone"
    JAVA = "its Java alone"


class Driver:
    """`codeq pipeline run`, again and again without a pause."""

    def __init__(self, folder: Path, *, url: str, token_file: Path, master: str) -> None:
        self.master = master
        self._seen: dict[int, psutil.Process] = {}
        self._was_killed = False
        asked = ["--lake", str(folder / "lake"), "--url", url, "--token-file", str(token_file), "--master", master]
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                command_line("pipeline", "run", "--every", "0", *asked),
                stdout=log, stderr=log, start_new_session=True, env=environment(_inside(folder)),
            )  # fmt: skip

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        return not self.is_alive and not self._was_killed

    def kill(self, way: Way) -> None:
        self._was_killed = True
        java = [process for process in self._processes() if "SparkSubmit" in _words(process)]
        match way:
            case Way.PYTHON:
                self._process.kill()
            case Way.JAVA if java:
                _kill(java[0])
                eventually(lambda: not self.is_alive, 60)  # its Python ends, because it has nobody to talk to
            case _:
                self.end()
        self._process.wait(60)

    def kill_executor(self, dice: random.Random) -> str:
        """Kill one, or a Python process that works for one. Answers which; nothing if there is none yet."""
        found = self._processes()
        executors = [process for process in found if _EXECUTOR in _words(process)]
        workers = [process for process in found if _WORKER in _words(process)]
        kinds = [kind for kind in (executors, workers) if kind]
        if not kinds:
            return ""
        chosen = dice.choice(kinds)
        _kill(dice.choice(chosen))
        return "an executor" if chosen is executors else "a Python worker"

    def end(self) -> None:
        """Kill all of it, and what its death left behind."""
        for process in self._processes():
            _kill(process)
        self._process.kill()
        self._process.wait(60)

    def _processes(self) -> list[psutil.Process]:
        """All that descend from it and live. Some may be nobody's children by now: those of a process that was killed
        go on working."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._process.pid).children(recursive=True)
            self._seen |= {process.pid: process for process in found}
        return [process for process in self._seen.values() if process.is_running()]


def _inside(folder: Path) -> dict[str, str]:
    """Variables by which Spark leaves nothing outside the folder, however it dies.

    An executor of a local cluster works in a folder below SPARK_HOME, so that is one of our own, with links.
    """
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__path__[0]).iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
    files = folder / "scratch"
    files.mkdir(exist_ok=True)
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(files),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={files} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "TMPDIR": str(files),
    }


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()  # psutil sees to it that the number is still this process's


def _words(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""
