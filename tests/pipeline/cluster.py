"""Starts a standalone Spark cluster from the Python package, and a driver in a process of its own.

The process of the tests has a Java with a local session already, so it cannot drive a second one.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyspark
from tests.server.server_process import environment, eventually

from codeq.pipeline import java

BIN = Path(pyspark.__file__).parent / "bin"
DRIVER = Path(__file__).with_name("cluster_driver.py")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WORKERS = ("one", "two")
UP_S_MAX, ANSWER_S_MAX = 180.0, 300.0
DEFAULTS = {
    # Each program gets a core of either worker, so that two can run side by side.
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    # For a few rows, compiling a query takes longer than running it.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    "spark.locality.wait": "0s",
    "spark.log.level": "ERROR",
}
"""The settings that an operator would write into `spark-defaults.conf`."""


class Cluster:
    """`url` is the address of the master; `env` is the environment of the cluster and of programs that use it."""

    def __init__(self, url: str, env: Mapping[str, str], folder: Path) -> None:
        self.url = url
        self.env = env
        self._folder = folder

    @property
    def programs(self) -> set[str]:
        """The programs that have had executors on both workers."""
        one, two = ({path.name for path in (self._folder / name).iterdir()} for name in WORKERS)
        return one & two


@contextmanager
def start_cluster(folder: Path) -> Iterator[Cluster]:
    """Starts a master and two workers on free ports of loopback."""
    env = environment_in(folder)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, kind: str, *arguments: str) -> Path:
        command = [
            str(BIN / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
        ]
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            started.append(subprocess.Popen([*command, *arguments], env=env, stdout=out, stderr=out))
        return log

    try:
        master = start("master", "master.Master", "--port", "0")
        url = _said(r"spark://127\.0\.0\.1:\d+", master)
        size = ("--cores", "2", "--memory", "2g")
        logs = [start(name, "worker.Worker", *size, "--work-dir", str(folder / name), url) for name in WORKERS]
        for log in logs:
            _said("Successfully registered with master", log)
        yield Cluster(url, env, folder)
    finally:
        for process in reversed(started):  # workers first: they end their executors
            process.terminate()
        for process in started:
            process.wait(UP_S_MAX)


def environment_in(folder: Path) -> dict[str, str]:
    """Returns the environment of a machine with Spark and codeQ installed, and with settings in the folder."""
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in DEFAULTS.items()))
    return environment(
        {
            "JAVA_HOME": str(java.find_java().home),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(folder),
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
    )


class Driver:
    """A process that runs jobs of `cluster_driver.py` on request."""

    def __init__(self, link: "Connection[Any, Any]", log: Path) -> None:
        self._link = link
        self._log = log

    def ask(self, job: str, **arguments: Any) -> Any:
        """Runs the job, and returns its result."""
        self._link.send((job, arguments))
        assert self._link.poll(ANSWER_S_MAX), f"no answer: {self._log.read_text()[-4000:]}"
        try:
            fault, answer = self._link.recv()
        except EOFError:
            fault = f"the driver is gone: {self._log.read_text()[-4000:]}"
        assert fault is None, fault
        return answer


@contextmanager
def start_driver(folder: Path, *command: str | Path, env: Mapping[str, str]) -> Iterator[Driver]:
    """`command` starts Python, or spark-submit."""
    log = folder / "driver.log"
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("wb") as out:
        listener.settimeout(UP_S_MAX)
        port = str(listener.getsockname()[1])
        process = subprocess.Popen([*command, DRIVER, port], env=env, stdout=out, stderr=out)
        try:
            called, _ = listener.accept()
            with Connection(called.detach()) as link:
                yield Driver(link, log)
        finally:
            try:
                process.wait(UP_S_MAX)  # it ends when the connection is closed
            finally:
                process.kill()
                process.wait()


def _said(pattern: str, log: Path) -> str:
    """Waits for the first match in a log."""
    return eventually(lambda: re.search(pattern, log.read_text()), UP_S_MAX)[0]  # type: ignore[index]
