"""`codeq enqueue`: one task from the command line, or as many as a file has lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import Code, Misuse
from codeq.cli.jsonl_import import Import, Refusal
from codeq.cli.output import Output, count
from codeq.cli.parameters import duration, json_argument, moment
from codeq.cli.task_view import fields
from codeq.domain.errors import CodeqError, InvalidRequest

if TYPE_CHECKING:
    from codeq import Client

RETRY_S = 30.0
"""An import outlives a restart of the server."""
SHOWN_MAX = 20
"""How many refused lines a person is told of; `--json` has them all."""


def add_to(app: typer.Typer) -> None:
    remote(app, "enqueue", example=_EXAMPLES, retry_s=RETRY_S)(enqueue)


def enqueue(
    client: "Client",
    out: Output,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="What is to be done; workers claim by it.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The payload; - for standard input; {} if not said.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file with the payload; - as above.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="One task per line, each of them JSON.")] = False,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --lines: the field of the payload that is the idempotency key."),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, metavar="0..9", help="9 goes first.")] = 0,
    delay: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Not before this has passed.")
    ] = None,
    run_at: Annotated[
        Any, typer.Option(parser=moment, metavar="TIME", help="Not before then, such as 2026-01-31T12:00:00Z.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=100, metavar="1..100", help="Tries before it is dead.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Of orders with the same key, one is taken.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Called when the task has ended.")] = None,
) -> None:
    """Put a task into its queue and print its id; with --lines, a task per line of a file or of standard input.

    It is on disk when this ends. An import that is repeated with the same --key-field enqueues nothing twice.
    """
    _check_name(command)
    options: dict[str, Any] = {"priority": priority, "max_attempts": max_attempts, "webhook": webhook}
    if delay is not None and run_at is not None:
        raise Misuse("--delay and --run-at say two different things; give one of them")
    if lines:
        if idempotency_key is not None:
            raise Misuse("--idempotency-key is for one task; with --lines use --key-field")
        orders = {**options, "delay_ms": round((delay or 0) * 1000)}
        if run_at is not None:
            orders["run_at_ms"] = round(run_at.timestamp() * 1000)
        with _source(payload, file) as source:
            _import(client, out, source, Import(command, orders, key_field))
        return
    if key_field is not None:
        raise Misuse("--key-field is for --lines; for one task use --idempotency-key")
    value = json_argument(payload, file, "payload")
    options |= {"delay": delay or 0, "run_at": run_at, "idempotency_key": idempotency_key}
    task = client.enqueue(command, {} if value is None else value, **options)
    if out.is_json:
        out.document(fields(task))
    else:
        out.say(task.id)
        out.note(f"what becomes of it: codeq task show {task.id}")


def _check_name(command: str) -> None:
    """Here already, or every line of an import would be refused for it."""
    from codeq.domain import validation

    try:
        validation.name(command, "command")
    except InvalidRequest as fault:
        raise Misuse(str(fault)) from None


@contextmanager
def _source(payload: str | None, file: Path | None) -> Iterator[BinaryIO]:
    if payload is not None and payload != "-":
        raise Misuse("--lines reads a --file, or standard input for -; not the command line")
    if payload is not None and file is not None:
        raise Misuse("the lines are given twice: as - and as --file")
    if file is None or str(file) == "-":
        if file is None and payload is None and sys.stdin.isatty():
            raise Misuse("--lines needs --file FILE, or - for standard input")
        yield sys.stdin.buffer
        return
    with file.open("rb") as opened:
        yield opened


def _import(client: "Client", out: Output, source: BinaryIO, work: Import) -> None:
    told = _Told(out, work)
    try:
        work.run(client, source, on_refusal=told.refused)
    except KeyboardInterrupt:
        work.flush(told.refused)
        told.stopped()
        raise
    except CodeqError:
        told.stopped()
        raise
    told.ended()
    if work.refused:
        raise typer.Exit(Code.REFUSED)


class _Told:
    """What the user hears of an import."""

    def __init__(self, out: Output, work: Import) -> None:
        self._out = out
        self._work = work
        self._shown = 0

    def refused(self, refusal: Refusal) -> None:
        self._shown += 1
        if self._out.is_json:
            print(refusal.as_json(), file=sys.stderr)
        elif self._shown <= SHOWN_MAX:
            print(f"codeq: line {refusal.line}: {refusal.error}", file=sys.stderr)
        elif self._shown == SHOWN_MAX + 1:
            print("codeq: ... and more; --json shows all", file=sys.stderr)

    def ended(self) -> None:
        enqueued, refused = self._work.enqueued, self._work.refused
        if self._out.is_json:
            self._out.document({"enqueued": enqueued, "refused": refused})
        else:
            self._out.say(f"enqueued {count(enqueued, 'task')}, refused {count(refused, 'line')}")

    def stopped(self) -> None:
        self.ended()
        if self._work.key_field is None and not self._out.is_json:
            print("codeq: of the rest, some may be enqueued; with --key-field it could be repeated", file=sys.stderr)


_EXAMPLES = """
codeq enqueue resize '{"image": "cat.png"}' --priority 5 --delay 10m
codeq enqueue resize --file images.jsonl --lines --key-field image
generate | codeq enqueue resize - --lines
"""
