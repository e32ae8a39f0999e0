"""`codeq worker run`: work on the tasks that a program's functions are for."""

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import Misuse
from codeq.cli.output import Output
from codeq.cli.parameters import duration

if TYPE_CHECKING:
    from codeq import Client, Worker

app = typer.Typer(no_args_is_help=True, help="Work on tasks.")

_LINE = "%(asctime)s %(levelname)-7s %(codeq_command)s %(codeq_task_id)s %(message)s"


def run(
    client: "Client",
    out: Output,  # noqa: ARG001 - all that it says is a log
    worker: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the Worker is, as in app:worker.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many handlers run at once; else as the program says.")
    ] = None,
    processes: Annotated[
        bool | None, typer.Option("--processes/--threads", help="Where plain functions run; else as the program says.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long handlers may finish on a stop.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to answer probes and serve metrics.")
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when nothing is ready any more.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Work until told to stop (SIGTERM, Ctrl-C): running handlers finish, the rest is handed back. Again: at once."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise Misuse(f"--log-level is debug, info, warning or error, not {log_level!r}")
    found = load(worker)
    found.configure(concurrency=concurrency, processes=processes, grace=grace, health=health)
    from codeq.sdk.worker.running_job import name_tasks_in_logs

    name_tasks_in_logs()
    logging.basicConfig(level=level, format=_LINE, stream=sys.stderr)
    told = (worker, ", ".join(found.commands), client.url, found.concurrency)
    logging.getLogger("codeq.worker").info("%s: %s from %s, %d at once; Ctrl-C stops it", *told)
    found.run(client, until_idle=until_idle)


def load(where: str) -> "Worker":
    """The worker at `module:name`, looked for from the folder in which the command was started."""
    from codeq.sdk.worker import Worker

    module, _, name = where.partition(":")
    if not module or not name:
        raise Misuse(f"a worker is named MODULE:NAME, as in app:worker, not {where!r}")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as fault:
        if fault.name is None or not module.startswith(fault.name):
            raise  # the module is there, and something that it needs is not
        raise Misuse(f"there is no module {module!r} here ({os.getcwd()})") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise Misuse(f"{where} is not a codeq.Worker")
    return found


remote(app, "run", example="codeq worker run app:worker --concurrency 32 --health 127.0.0.1:9100")(run)
