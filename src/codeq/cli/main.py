"""The `codeq` command: registers the commands of all files, in panels of the help page."""

from typing import Annotated

import typer

from codeq.cli import (
    artifacts,
    bench,
    data_dir,
    demo,
    dlq,
    doctor,
    enqueue,
    events,
    leases,
    pipeline,
    profiles,
    queues,
    reference,
    serve,
    subscriptions,
    tasks,
    top,
    webhooks,
    worker,
    workers,
)
from codeq.cli.errors import EXIT_CODES, RootGroup

app = typer.Typer(
    cls=RootGroup,
    no_args_is_help=True,
    help="codeQ, a durable task queue.",
    epilog="Exit codes: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
)

enqueue.add_to(app)
leases.add_to(app)
app.add_typer(tasks.app, name="task")
app.add_typer(artifacts.app, name="artifact")
app.add_typer(queues.app, name="queue")
app.add_typer(dlq.app, name="dlq")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(events.app, name="events")
top.add_to(app)
app.add_typer(profiles.app, name="profile")
serve.add_to(app)
data_dir.add_to(app)
doctor.add_to(app)
bench.add_to(app)
demo.add_to(app)
app.add_typer(worker.app, name="worker")
workers.add_to(app)
app.add_typer(pipeline.app, name="pipeline")
reference.add_to(app)

_PANELS = {
    "Tasks": ("enqueue", "claim", "result", "nack", "abandon", "heartbeat", "task", "artifact", "worker"),
    "Queues": ("queue", "workers", "dlq", "webhooks", "subscriptions", "events", "top"),
    "Servers": ("serve", "token", "config", "stats", "backup", "restore"),
    "Data": ("pipeline",),
    "This machine": ("profile", "doctor", "bench", "demo"),
}
for _panel, _names in _PANELS.items():
    for _command in app.registered_commands:
        if _command.name in _names:
            _command.rich_help_panel = _panel
    for _group in app.registered_groups:
        if _group.name in _names:
            _group.rich_help_panel = _panel


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    # `codeq --version` alone is answered by RootGroup; this is for `--version` with other arguments.
    if version:
        import codeq

        print(f"codeq {codeq.__version__}")
        raise typer.Exit
