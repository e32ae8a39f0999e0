"""`codeq worker run`: runs a worker that a Python module defines."""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import RETRY_S, ServerFlags, with_server_flags
from codeq.cli.errors import UsageError
from codeq.cli.parameters import duration
from codeq.domain.errors import CodeqError

if TYPE_CHECKING:
    from codeq import Worker
    from codeq.sdk.worker.worker import Source

app = typer.Typer(no_args_is_help=True, help="Run workers.")

_LINE = "%(asctime)s %(levelname)s%(codeq_place)s: %(message)s"


def run(
    flags: ServerFlags,
    worker: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="Module and variable of the Worker, as app:worker.")
    ],
    commands: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these of the Worker's commands, comma separated.")
    ] = None,
    instances: Annotated[
        int, typer.Option("-n", "--instances", min=1, max=256, help="Worker processes; those that die are restarted.")
    ] = 1,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Handlers that run at once; default: the Worker's.")
    ] = None,
    processes: Annotated[
        bool | None, typer.Option("--processes/--threads", help="Where plain functions run; default: the Worker's.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Time for handlers to finish at a stop."),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for health probes and metrics; with -n, the first of N ports."),
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when no task is ready.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Development: start again when a .py file of this directory changes.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")] = "info",
) -> None:
    """Run a worker until SIGTERM or Ctrl-C: running handlers finish, other tasks are returned to their queue.

    Works on the queue that the program gave its Worker, unless --url or --profile names another server; a Worker
    without a queue uses CODEQ_URL, or the server on this machine. A second signal stops it at once.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise UsageError(f"--log-level is debug, info, warning or error, not {log_level!r}")
    if instances > 1 or reload:
        arguments = _arguments(worker, commands=commands, concurrency=concurrency, processes=processes, grace=grace,
                               until_idle=until_idle, log_level=log_level)  # fmt: skip
        raise typer.Exit(_supervise(flags, arguments, instances=instances, health=health, reload=reload, level=level))
    from codeq.cli.supervisor import end_with_supervisor

    is_one_of_many = end_with_supervisor() > 1
    found = load(worker)
    found.configure(concurrency=concurrency, processes=processes, grace=grace, health=health)
    if commands is not None:
        _keep(found, [command.strip() for command in commands.split(",")])
    queue, where = _queue(flags, found)
    if is_one_of_many and not isinstance(queue, str) and getattr(queue, "url", None) is None:
        raise UsageError("only one process can have the program's queue open: -n needs a server, or --processes")
    _log_to_stderr(level)
    settings = (worker, ", ".join(found.commands), where, found.concurrency)
    logging.getLogger("codeq.worker").info("%s: %s from %s, %d at once; Ctrl-C stops it", *settings)
    found.run(queue, until_idle=until_idle)


def load(where: str) -> "Worker":
    """The worker at `module:name`, imported from the working directory."""
    from codeq.sdk.worker import Worker

    module, _, name = where.partition(":")
    if not module or not name:
        raise UsageError(f"a worker is named MODULE:NAME, as in app:worker, not {where!r}")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as fault:  # noqa: BLE001 - whatever the program raises
        # If another module is missing, this one exists, and imports it.
        if isinstance(fault, ModuleNotFoundError) and f"{module}.".startswith(f"{fault.name}."):
            hint = f"; write {module[:-3]}:{name}" if module.endswith(".py") else ""
            raise UsageError(f"there is no module {module!r} here ({os.getcwd()}){hint}") from None
        print(_traceback(fault), file=sys.stderr, end="")
        raise ImportFailed(f"the module {module!r} cannot be imported, as above") from None
    there = [each for each, value in vars(found).items() if isinstance(value, Worker)]
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        known = f"it has {', '.join(f'{module}:{each}' for each in there)}" if there else "it has none"
        raise UsageError(f"{where} is not a codeq.Worker of the module {module!r}: {known}")
    return found


class ImportFailed(CodeqError):
    """The program of the worker has an error, which is printed before."""

    code = "import-failed"


def _traceback(fault: Exception) -> str:
    """As Python prints it, without the steps of the import itself."""
    step = fault.__traceback__
    while step is not None and (step.tb_frame.f_code.co_filename == __file__ or _is_import(step.tb_frame)):
        step = step.tb_next
    return "".join(traceback.format_exception(type(fault), fault, step))


def _is_import(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "importlib"


def _keep(worker: "Worker", wanted: Sequence[str]) -> None:
    """Leaves the worker the functions of these commands only."""
    unknown = [command for command in wanted if command not in worker.handlers]
    if unknown:
        known = ", ".join(worker.commands)
        raise UsageError(f"the worker has no function for {', '.join(map(repr, unknown))}; it has: {known}")
    for command in set(worker.handlers) - set(wanted):
        del worker.handlers[command]


def _queue(flags: ServerFlags, worker: "Worker") -> "tuple[Source, str]":
    """The queue to work on, and what to say of it: the program's, unless an option names a server."""
    own = worker.queue
    own_url = own if isinstance(own, str) else getattr(own, "url", None)
    if own is not None and not flags.names_server:
        if own_url is None:
            if flags.names_token:
                raise UsageError("the program's queue is in its own process and takes no token; name a server: --url")
            return own, "the queue that the program has opened"
        if not flags.names_token:
            return own, f"{own_url}, as the program says"
        return flags.endpoint(own_url).client(retry_s=RETRY_S), f"{own_url}, as the program says"
    endpoint = flags.endpoint()
    instead = f" instead of the program's {own_url or 'own queue'}" if own is not None else ""
    return endpoint.client(retry_s=RETRY_S), f"{endpoint.url}{instead}"


def _log_to_stderr(level: int) -> None:
    from codeq.sdk.worker.running_job import name_tasks_in_logs
    from codeq.sdk.worker.task_logs import PlaceFormatter

    name_tasks_in_logs()
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(PlaceFormatter(_LINE))
    logging.basicConfig(level=level, handlers=[to_stderr])


def _supervise(
    flags: ServerFlags, arguments: Sequence[str], *, instances: int, health: str | None, reload: bool, level: int
) -> int:
    from codeq.cli.supervisor import Supervisor, python_command

    if flags.token is not None:
        raise UsageError(
            "with -n and --reload the token is given as --token-file or CODEQ_TOKEN, which others cannot see"
        )
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    named = [("--url", flags.url), ("--token-file", flags.token_file), ("--profile", flags.profile)]
    server = [text for option, value in named if value is not None for text in (option, str(value))]
    lines = [
        [*python_command(), "worker", "run", *arguments, *server, *_health_of(health, number)]
        for number in range(instances)
    ]
    log = logging.getLogger("codeq.worker")
    log.info("%s: %d worker processes; Ctrl-C stops them", arguments[0], instances)
    return Supervisor(lines, os.environ, reload=Path.cwd() if reload else None).run()


def _arguments(
    worker: str,
    *,
    commands: str | None,
    concurrency: int | None,
    processes: bool | None,
    grace: float | None,
    until_idle: bool,
    log_level: str,
) -> list[str]:
    """The command line of one of several processes."""
    arguments = [worker, "--log-level", log_level]
    for option, value in (("--commands", commands), ("--concurrency", concurrency), ("--grace", grace)):
        if value is not None:
            arguments += [option, str(value)]
    if processes is not None:
        arguments.append("--processes" if processes else "--threads")
    return [*arguments, "--until-idle"] if until_idle else arguments


def _health_of(health: str | None, number: int) -> list[str]:
    if health is None:
        return []
    host, _, port = health.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--health is HOST:PORT, as 127.0.0.1:9100, not {health!r}")
    return ["--health", f"{host}:{int(port) + number if int(port) else 0}"]


_RUN = """
codeq worker run app:worker --concurrency 32 --health 127.0.0.1:9100
codeq worker run app:worker -n 4 --commands resize,crop
codeq worker run app:worker --reload
"""
with_server_flags(app, "run", example=_RUN)(run)
