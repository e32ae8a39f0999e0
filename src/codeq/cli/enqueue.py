"""`codeq enqueue`: enqueues one task, or one per line of a file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import ExitCode, UsageError
from codeq.cli.jsonl_import import JsonlImport, RefusedLine
from codeq.cli.output import Output, count
from codeq.cli.parameters import duration, json_argument, timestamp
from codeq.cli.task_view import task_fields
from codeq.domain.errors import CodeqError, InvalidRequest

if TYPE_CHECKING:
    from codeq import Client, Task

RETRY_S = 30.0
"""Long enough for an import to continue after a restart of the server."""
INTERRUPTED_WAIT_S = 1.0
"""For answers to what was sent before an interrupt; a second interrupt ends the wait."""
REFUSED_SHOWN_MAX = 20


def add_to(app: typer.Typer) -> None:
    remote(app, "enqueue", example=_EXAMPLES, retry_s=RETRY_S)(enqueue)


def enqueue(
    client: "Client",
    out: Output,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="Command of the task; workers claim by it.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="JSON", help="Payload; - reads standard input; default: {}.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with the payload; - reads standard input.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Enqueue one task per line; each line is JSON.")] = False,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --lines: field of the payload to use as idempotency key."),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, metavar="0..9", help="Priority; 9 first.")] = 0,
    delay: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Delay before the task is ready.")
    ] = None,
    run_at: Annotated[
        Any, typer.Option(parser=timestamp, metavar="TIME", help="Time when it is ready, as 2026-01-31T12:00:00Z.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=100, metavar="1..100", help="Attempts before the dead-letter queue.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key; a second task with it is not created.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="URL that is called when the task has ended.")
    ] = None,
) -> None:
    """Enqueue a task and print its id; with --lines, one task per line of a file or of standard input.

    The task is on disk when the command ends. Repeating an import with the same --key-field creates no task twice.
    """
    _check_name(command)
    options: dict[str, Any] = {"priority": priority, "max_attempts": max_attempts, "webhook": webhook}
    if delay is not None and run_at is not None:
        raise UsageError("--delay and --run-at exclude each other")
    if lines:
        if idempotency_key is not None:
            raise UsageError("--idempotency-key is for one task; with --lines use --key-field")
        options["delay_ms"] = round((delay or 0) * 1000)
        if run_at is not None:
            options["run_at_ms"] = round(run_at.timestamp() * 1000)
        with _source(payload, file) as source:
            _import(client, out, source, JsonlImport(command, options, key_field))
        return
    if key_field is not None:
        raise UsageError("--key-field is for --lines; for one task use --idempotency-key")
    value = json_argument(payload, file, "payload")
    options |= {"delay": delay or 0, "run_at": run_at, "idempotency_key": idempotency_key}
    task = client.enqueue(command, {} if value is None else value, **options)
    _show(out, task)


def _show(out: Output, task: "Task") -> None:
    from codeq.sdk.tasks import ReplayedTask

    replay = task if isinstance(task, ReplayedTask) else None
    if out.is_json:
        flags = {} if replay is None else {"replayed": True, "mismatched": replay.is_mismatch}
        out.document({**task_fields(task), **flags})
        return
    out.say(task.id)
    if replay is not None and replay.is_mismatch:
        print("codeq: nothing was enqueued: this task has the key, with another command or payload", file=sys.stderr)
    out.note(f"to see its state: codeq task show {task.id}")


def _check_name(command: str) -> None:
    """Checked before the call, because every line of an import would be refused for the same reason."""
    from codeq.domain import validation

    try:
        validation.name(command, "command")
    except InvalidRequest as fault:
        raise UsageError(str(fault)) from None


@contextmanager
def _source(payload: str | None, file: Path | None) -> Iterator[BinaryIO]:
    if payload is not None and payload != "-":
        raise UsageError("--lines reads a --file, or standard input for -; not the command line")
    if payload is not None and file is not None:
        raise UsageError("the lines are given twice: as - and as --file")
    if file is None or str(file) == "-":
        if file is None and payload is None and sys.stdin.isatty():
            raise UsageError("--lines needs --file FILE, or - for standard input")
        yield sys.stdin.buffer
        return
    with file.open("rb") as opened:
        yield opened


def _import(client: "Client", out: Output, source: BinaryIO, work: JsonlImport) -> None:
    reporter = _ImportReporter(out, work)
    try:
        work.run(client, source, on_refused=reporter.refused)
    except KeyboardInterrupt:
        with suppress(CodeqError):
            work.collect_answered(reporter.refused, within_s=INTERRUPTED_WAIT_S)
        reporter.stopped()
        raise
    except CodeqError:
        reporter.stopped()
        raise
    reporter.finished()
    if work.refused:
        raise typer.Exit(ExitCode.REFUSED)


class _ImportReporter:
    """Prints refused lines and the totals of an import."""

    def __init__(self, out: Output, work: JsonlImport) -> None:
        self._out = out
        self._work = work
        self._refused = 0

    def refused(self, line: RefusedLine) -> None:
        self._refused += 1
        if self._out.is_json:
            print(line.as_json(), file=sys.stderr)
        elif self._refused <= REFUSED_SHOWN_MAX:
            print(f"codeq: line {line.line}: {line.error}", file=sys.stderr)
        elif self._refused == REFUSED_SHOWN_MAX + 1:
            print("codeq: ... and more; --json shows all", file=sys.stderr)

    def finished(self) -> None:
        enqueued, refused = self._work.enqueued, self._work.refused
        self._out.answer(
            {"enqueued": enqueued, "refused": refused},
            f"enqueued {count(enqueued, 'task')}, refused {count(refused, 'line')}",
        )

    def stopped(self) -> None:
        self.finished()
        if self._work.key_field is None and not self._out.is_json:
            print("codeq: some of the other lines may be enqueued too; with --key-field the import can be repeated",
                  file=sys.stderr)  # fmt: skip


_EXAMPLES = """
codeq enqueue resize '{"image": "cat.png"}' --priority 5 --delay 10m
codeq enqueue resize --file images.jsonl --lines --key-field image
generate | codeq enqueue resize - --lines
"""
