"""`codeq worker run`: from a file with functions to tasks that are done."""

import signal
from pathlib import Path

import pytest
from tests.cli.shell import Cli

PROGRAM = """
import os
import codeq

worker = codeq.Worker(lease=5)
nothing = "not a worker"


@worker.task("double")
def double(payload):
    return {"twice": 2 * payload["n"], "pid": os.getpid()}


@worker.task("greet")
async def greet(payload):
    return f"hello {payload}"
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import a_library_that_is_not_there")
    return tmp_path


def test_a_worker_works_until_nothing_is_left(cli: Cli, program: Path) -> None:
    doubled, greeted = cli.enqueued("double", '{"n": 21}'), cli.enqueued("greet", '"ada"')
    with cli.start("worker", "run", "program:worker", "--until-idle", cwd=program) as running:
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "program:worker: double, greet from http://127.0.0.1" in err
    assert cli.ok("task", "wait", doubled, "--json").json["result"]["twice"] == 42
    assert cli.ok("task", "wait", greeted, "--json").json["result"] == "hello ada"


def test_a_worker_goes_on_until_it_is_told_to_stop(cli: Cli, program: Path) -> None:
    with cli.start("worker", "run", "program:worker", "--concurrency", "3", cwd=program) as running:
        task_id = cli.enqueued("double", '{"n": 1}')
        assert cli.ok("task", "wait", task_id, "--timeout", "30s", "--json").json["result"]["twice"] == 2
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "3 at once" in err
    assert "stopping" in err


def test_functions_run_in_processes_if_the_command_line_says_so(cli: Cli, program: Path) -> None:
    task_id = cli.enqueued("double", '{"n": 1}')
    with cli.start("worker", "run", "program:worker", "--processes", "--until-idle", cwd=program) as running:
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert cli.ok("task", "wait", task_id, "--json").json["result"]["pid"] != running.pid


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("program", "MODULE:NAME"),
        (":worker", "MODULE:NAME"),
        ("nowhere:worker", "there is no module 'nowhere'"),
        ("program:nothing", "is not a codeq.Worker"),
        ("program:missing", "is not a codeq.Worker"),
    ],
)
def test_a_worker_that_is_not_there_is_said_to_be_missing(cli: Cli, program: Path, where: str, said: str) -> None:
    with cli.start("worker", "run", where, cwd=program) as running:
        _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert said in err
    assert "Traceback" not in err


def test_a_program_that_cannot_be_loaded_shows_where_it_broke(cli: Cli, program: Path) -> None:
    with cli.start("worker", "run", "broken:worker", cwd=program) as running:
        _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "broken.py" in err
    assert "a_library_that_is_not_there" in err
