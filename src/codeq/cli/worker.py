"""`codeq worker run`: runs a worker that a Python module defines."""

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import UsageError
from codeq.cli.output import Output
from codeq.cli.parameters import duration

if TYPE_CHECKING:
    from codeq import Client, Worker

app = typer.Typer(no_args_is_help=True, help="Run workers.")

_LINE = "%(asctime)s %(levelname)-7s %(codeq_command)s %(codeq_task_id)s %(message)s"


def run(
    client: "Client",
    out: Output,  # noqa: ARG001 - prints a log only
    worker: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="Module and variable of the Worker, as app:worker.")
    ],
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
        str | None, typer.Option(metavar="HOST:PORT", help="Address for health probes and metrics.")
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when no task is ready.")] = False,
    log_level: Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")] = "info",
) -> None:
    """Run a worker until SIGTERM or Ctrl-C: running handlers finish, other tasks are returned to their queue.

    A second signal stops it at once.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise UsageError(f"--log-level is debug, info, warning or error, not {log_level!r}")
    found = load(worker)
    found.configure(concurrency=concurrency, processes=processes, grace=grace, health=health)
    from codeq.sdk.worker.running_job import name_tasks_in_logs

    name_tasks_in_logs()
    logging.basicConfig(level=level, format=_LINE, stream=sys.stderr)
    settings = (worker, ", ".join(found.commands), client.url, found.concurrency)
    logging.getLogger("codeq.worker").info("%s: %s from %s, %d at once; Ctrl-C stops it", *settings)
    found.run(client, until_idle=until_idle)


def load(where: str) -> "Worker":
    """The worker at `module:name`, imported from the working directory."""
    from codeq.sdk.worker import Worker

    module, _, name = where.partition(":")
    if not module or not name:
        raise UsageError(f"a worker is named MODULE:NAME, as in app:worker, not {where!r}")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as fault:
        if fault.name is None or not module.startswith(fault.name):
            raise  # the module exists, and one that it imports does not
        raise UsageError(f"there is no module {module!r} here ({os.getcwd()})") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise UsageError(f"{where} is not a codeq.Worker")
    return found


remote(app, "run", example="codeq worker run app:worker --concurrency 32 --health 127.0.0.1:9100")(run)
