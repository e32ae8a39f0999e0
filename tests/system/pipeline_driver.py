"""Runs the pipeline in a process of its own, and kills it or its executors with -9."""

import random
import subprocess
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pyspark
from tests.server.server_process import command_line, environment, eventually

LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"
"""Executors as threads of the driver, and executors as processes of their own; both have Python processes."""

_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "pyspark.worker"


class Way(StrEnum):
    """Which processes of a driver are killed. The others must end by themselves."""

    WHOLE = "everything of it"
    PYTHON = "its Python alone"
    JAVA = "its Java alone"


class Driver:
    """Runs `codeq pipeline run` repeatedly without a pause."""

    def __init__(self, folder: Path, *, lake: str, server: tuple[str, Path], master: str) -> None:
        """`server` is its URL, and the file with a token."""
        self.master = master
        self._seen: dict[int, psutil.Process] = {}
        self._was_killed = False
        url, token_file = server
        asked = ["--lake", lake, "--url", url, "--token-file", str(token_file), "--master", master]
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
                eventually(lambda: not self.is_alive, 60)  # its Python process ends when the connection to Java breaks
            case _:
                self.end()
        self._process.wait(60)

    def kill_executor(self, dice: random.Random) -> str:
        """Kills an executor, or a Python process of one. Returns which; an empty text if there is none yet."""
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
        """Kills all its processes, and those that outlived their parents."""
        for process in self._processes():
            _kill(process)
        self._process.kill()
        self._process.wait(60)

    def _processes(self) -> list[psutil.Process]:
        """Returns all living descendants, also those whose parent was killed."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._process.pid).children(recursive=True)
            self._seen |= {process.pid: process for process in found}
        return [process for process in self._seen.values() if process.is_running()]


def _inside(folder: Path) -> dict[str, str]:
    """Returns environment variables that keep all files of Spark inside the folder, however it dies.

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
        process.kill()  # psutil checks that the process id was not reused


def _words(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""
