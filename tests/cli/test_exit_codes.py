"""How commands end: exit codes, error messages without stack traces, and a quick `--version`."""

import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import typer
from tests.cli.shell import Cli
from tests.server.server_process import command_line, environment, run_codeq
from typer.testing import CliRunner

import codeq
from codeq.cli.errors import EXIT_CODES, ExitCode, exit_code_of
from codeq.cli.main import app
from codeq.wire.errors import STATUS


def test_a_server_that_is_not_there_is_unreachable_and_said_how_to_start(cli: Cli) -> None:
    gone = {"CODEQ_URL": "http://127.0.0.1:1"}
    done = cli("queue", "list", env=gone)
    assert done.code == 4
    assert done.err.startswith("codeq: cannot reach 127.0.0.1:1")
    assert "codeq serve --dev" in done.err
    told = run_codeq("queue", "list", "--json", env=gone)
    assert (told.returncode, told.stdout) == (4, "")
    error = msgspec.json.decode(told.stderr)
    assert (set(error), error["exitCode"]) == ({"error", "code", "exitCode"}, 4)


def test_a_command_whose_outputs_are_closed_does_its_work(cli: Cli) -> None:
    """As under a scheduler that closes them, or after `>&- 2>&-`."""
    for command, code in (("queue list", 0), ("--version", 0), ("task show nothing", 3)):
        line = shlex.join([*command_line(*command.split())])
        done = subprocess.run(
            ["sh", "-c", f"{line} >&-"], env=environment(cli.env), stderr=subprocess.PIPE, check=False
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False)
        assert (
            subprocess.run(["sh", "-c", f"{line} >&- 2>&-"], env=environment(cli.env), check=False).returncode == code
        )


def test_a_run_of_the_pipeline_is_once_or_every_so_often(cli: Cli) -> None:
    done = cli("pipeline", "run", "--once", "--every", "1m", "--endpoint", "http://127.0.0.1:1")
    assert done.code == ExitCode.USAGE
    assert "--once or --every" in done.err


def test_a_refused_token_is_not_allowed(cli: Cli) -> None:
    done = cli("queue", "list", "--token", "wrong", "--json")
    assert (done.code, done.error["code"]) == (5, "unauthenticated")
    assert cli("queue", "list", "--url", "http://192.0.2.1", env={"CODEQ_TOKEN": ""}).code == 5


def test_what_typer_cannot_read_is_json_too_where_json_was_asked_for(cli: Cli) -> None:
    for arguments in (
        ("task", "show"),
        ("task", "shw"),
        ("nothing",),
        ("queue", "list", "--wrong"),
        ("claim", "--limit", "0"),
    ):
        done = cli(*arguments, "--json")
        assert (done.code, done.error["code"], done.error["exitCode"], done.out) == (2, "usage", 2, "")
        assert cli(*arguments).code == 2


def test_an_address_that_is_none_is_a_mistake_of_the_user(cli: Cli) -> None:
    assert cli("queue", "list", "--url", "localhost:8080").code == 2


def test_every_refusal_of_a_server_has_an_exit_code_by_its_status() -> None:
    for kind, status in STATUS.items():
        expected = {401: 5, 404: 3, 408: 6}.get(status, 1)
        if kind.code in ("forbidden", "unavailable"):
            expected = {"forbidden": 5, "unavailable": 4}[kind.code]
        assert exit_code_of(kind("x")) == expected, kind


def test_every_exit_code_has_its_meaning_in_the_help(cli: Cli) -> None:
    assert list(EXIT_CODES) == list(ExitCode)
    text = " ".join(cli.ok("--help").out.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{int(code)} {meaning}" in text


def test_the_version_needs_nothing_heavy() -> None:
    program = (
        "import sys; from codeq.cli.main import app\n"
        "try: app(['--version'])\n"
        "except SystemExit as end: print(end.code)\n"
        "heavy = {'rocksdict', 'asyncio', 'pydantic', 'rich.console', 'uvicorn', 'httptools', 'opentelemetry', 'jwt'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment())
    assert run.stdout.splitlines() == [f"codeq {codeq.__version__}", "0", "[]"]


def test_a_client_loads_no_engine() -> None:
    program = (
        "import sys, codeq; codeq.Client; codeq.errors; print('rocksdict' in sys.modules, hasattr(codeq, 'nothing'))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment())
    assert run.stdout == "False False\n"


def test_everything_that_codeq_promises_to_have_is_there() -> None:
    assert all(getattr(codeq, name) is not None for name in codeq.__all__)
    assert set(codeq.__all__) <= set(dir(codeq))


def test_without_arguments_it_shows_what_there_is() -> None:
    run = run_codeq()
    assert run.returncode in (0, 2)
    assert "enqueue" in run.stdout + run.stderr


def test_a_file_in_the_way_is_no_stack_trace(cli: Cli, tmp_path: Path) -> None:
    done = cli("enqueue", "work", "--file", str(tmp_path))
    assert (done.code, "Is a directory" in done.err) == (1, True)


def test_a_full_disk_under_the_output_is_told() -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            command_line("reference", "cli"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )  # fmt: skip
    assert run.returncode != 0
    assert "Traceback" not in run.stderr


def test_the_shell_can_complete_commands() -> None:
    env = {"_CODEQ_COMPLETE": "complete_bash", "COMP_WORDS": "codeq ta", "COMP_CWORD": "1"}
    program = "from codeq.cli.main import app; app(prog_name='codeq')"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(env), check=False
    )
    assert run.stdout.split() == ["task"]


def test_a_new_group_of_commands_needs_one_line() -> None:
    group = typer.Typer()

    @group.command("run")
    def run(what: str) -> None:
        raise codeq.errors.NotFound(f"there is no {what}")

    group.command("other")(lambda: None)
    before = list(app.registered_groups)
    app.add_typer(group, name="worker")
    try:
        done = CliRunner().invoke(app, ["worker", "run", "module:worker"])
    finally:
        app.registered_groups[:] = before
    assert (done.exit_code, done.stderr) == (3, "codeq: there is no module:worker\n")
