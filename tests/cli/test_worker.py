"""`codeq worker run`: from a file with functions to tasks that are done."""

import os
import signal
from pathlib import Path

import pytest
from tests.cli.shell import Cli
from tests.server.server_process import eventually

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
    (tmp_path / "no_python.py").write_text("worker = (")
    (tmp_path / "app.py").write_text("import a")
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
        ("program.py:worker", "write program:worker"),
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


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        ("broken", ["broken.py", "No module named 'a_library_that_is_not_there'"]),
        ("app", ["app.py", "No module named 'a'"]),
        ("no_python", ["no_python.py", "SyntaxError"]),
    ],
)
def test_a_program_that_cannot_be_loaded_shows_where_it_broke(
    cli: Cli, program: Path, module: str, lines: list[str]
) -> None:
    """And not what codeQ and Python did to load it."""
    with cli.start("worker", "run", f"{module}:worker", cwd=program) as running:
        _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert err.endswith(f"codeq: the module '{module}' cannot be imported, as above\n")
    for line in lines:
        assert line in err
    assert len(err.splitlines()) < 10, err
    assert "importlib" not in err


def ended(cli: Cli, program: Path, *arguments: str) -> tuple[int, str]:
    with cli.start("worker", "run", *arguments, cwd=program) as running:
        try:
            _, err = running.communicate(timeout=30)
        finally:
            running.kill()
    return running.returncode, err


@pytest.fixture
def own_queue(cli: Cli, program: Path) -> Path:
    """A program whose worker has a queue of its own, and an environment that names another server."""
    client = f"codeq.Client({cli.env['CODEQ_URL']!r}, {cli.env['CODEQ_TOKEN']!r})"
    (program / "own.py").write_text(PROGRAM.replace("codeq.Worker(lease=5)", f"codeq.Worker({client}, lease=5)"))
    (program / "embedded.py").write_text(PROGRAM.replace("codeq.Worker(lease=5)", "codeq.Worker(codeq.open('./own'))"))
    return program


def test_the_queue_of_the_program_wins_over_variables(cli: Cli, own_queue: Path) -> None:
    task_id, url = cli.enqueued("double", '{"n": 21}'), cli.env["CODEQ_URL"]
    cli.env |= {"CODEQ_URL": "http://127.0.0.1:1", "CODEQ_TOKEN": "wrong"}
    code, err = ended(cli, own_queue, "own:worker", "--until-idle")
    assert code == 0, err
    assert f"own:worker: double, greet from {url}, as the program says, 16 at once" in err
    cli.env["CODEQ_URL"] = url
    done = cli.ok("task", "wait", task_id, "--json", "--token", cli.server.token(cli.tenant, "producer"))
    assert done.json["result"]["twice"] == 42


def test_an_option_wins_over_the_queue_of_the_program_and_that_is_said(cli: Cli, own_queue: Path) -> None:
    task_id, url = cli.enqueued("double", '{"n": 1}'), cli.env["CODEQ_URL"]
    code, err = ended(cli, own_queue, "embedded:worker", "--until-idle", "--url", url)
    assert code == 0, err
    assert f"from {url} instead of the program's own queue" in err
    assert cli.ok("task", "wait", task_id, "--json").json["result"]["twice"] == 2


def test_a_queue_inside_the_process_is_worked_on(cli: Cli, own_queue: Path) -> None:
    code, err = ended(cli, own_queue, "embedded:worker", "--until-idle")
    assert (code, "from the queue that the program has opened" in err) == (0, True)
    code, err = ended(cli, own_queue, "embedded:worker", "--until-idle", "--token", "x")
    assert code == 2
    code, err = ended(cli, own_queue, "embedded:worker", "-n", "2", "--log-level", "error")
    assert code == 2
    assert "-n needs a server" in err


def test_only_some_of_the_commands_are_worked_on(cli: Cli, program: Path) -> None:
    doubled, greeted = cli.enqueued("double", '{"n": 1}'), cli.enqueued("greet", '"ada"')
    code, err = ended(cli, program, "program:worker", "--until-idle", "--commands", "greet")
    assert (code, "program:worker: greet from" in err) == (0, True)
    assert cli.ok("task", "wait", greeted, "--json").json["result"] == "hello ada"
    assert cli.ok("task", "show", doubled, "--json").json["status"] == "PENDING"
    code, err = ended(cli, program, "program:worker", "--commands", "greet,shout")
    assert (code, "no function for 'shout'; it has: double, greet" in err) == (2, True)


def test_several_processes_work_and_one_that_dies_is_replaced(cli: Cli, program: Path) -> None:
    def pids() -> list[int]:
        return sorted(each["pid"] for each in cli.ok("workers", "--json").json["workers"])

    with cli.start("worker", "run", "program:worker", "-n", "2", cwd=program) as running:
        before = eventually(lambda: pids() if len(pids()) == 2 else None, 30)
        assert before is not None
        assert running.pid not in before
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: len(set(pids()) - set(before)) == 1, 30)
        task_id = cli.enqueued("double", '{"n": 4}')
        assert cli.ok("task", "wait", task_id, "--timeout", "30s", "--json").json["result"]["twice"] == 8
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "a worker process ended with -9" in err
    assert set(pids()) == {before[0]}, "the killed one is listed for a while, those that were stopped are not"


def test_processes_end_with_the_supervisor_that_is_killed(cli: Cli, program: Path) -> None:
    with cli.start("worker", "run", "program:worker", "-n", "2", cwd=program) as running:
        found = eventually(lambda: cli.ok("workers", "--json").json["workers"], 30)
        running.kill()
        running.wait(30)
        stat = Path(f"/proc/{found[0]['pid']}/stat")
        eventually(lambda: not stat.exists() or ") Z " in stat.read_text(), 30)
        running.communicate(timeout=30)


def test_a_process_that_cannot_work_ends_them_all(cli: Cli, program: Path) -> None:
    code, err = ended(cli, program, "program:nothing", "-n", "3", "--log-level", "error")
    assert code == 2
    assert "is not a codeq.Worker" in err
    assert ended(cli, program, "program:worker", "-n", "2", "--until-idle")[0] == 0
    assert ended(cli, program, "program:worker", "-n", "2", "--health", "nowhere")[0] == 2
    assert ended(cli, program, "program:worker", "-n", "2", "--token", "secret")[0] == 2


def test_a_changed_file_starts_the_worker_again(cli: Cli, program: Path) -> None:
    def answer() -> str:
        task_id = cli.enqueued("greet", '"ada"')
        return str(cli.ok("task", "wait", task_id, "--timeout", "30s", "--json").json["result"])

    with cli.start("worker", "run", "program:worker", "--reload", cwd=program) as running:
        assert answer() == "hello ada"
        (program / "program.py").write_text(PROGRAM.replace("hello", "good morning"))
        eventually(lambda: answer() == "good morning ada", 30)  # until it is stopped, the old one answers
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "files have changed" in err
    assert cli.ok("workers", "--json").json["workers"] == []
