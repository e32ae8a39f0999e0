"""`codeq webhooks`: lists, inspects, replays and tests deliveries of result callbacks."""

import secrets as random_bytes
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import local, remote
from codeq.cli.dlq import confirm
from codeq.cli.errors import ExitCode, UsageError, print_error
from codeq.cli.output import Output, count, truncate

if TYPE_CHECKING:
    from codeq import Client
    from codeq.domain.requests import BulkResult
    from codeq.wire.deliveries import DeliveryView

app = typer.Typer(no_args_is_help=True, help="List, replay and test deliveries of result callbacks.")

PAGE = 500
POLL_S = 0.2
CALL_DELIVERIES, REPLAYED_MAX = 10_000, 100_000
"""What one call replays, which takes a second or two, and what `--all` does: as much as a server tells of at once."""
STATES = ("pending", "delayed", "in_progress", "dead", "delivered")
COLUMNS = ("id", "state", ">attempts", "command", "updated", "url", "error")

State = Annotated[str | None, typer.Option(help=f"Only those in this state: {', '.join(STATES)}.")]
Error = Annotated[str | None, typer.Option(help="Only those with this text in their last error.")]
DeliveryId = Annotated[str, typer.Argument(metavar="ID", help="The delivery; receivers see it as webhook-id.")]


@remote(app, "list", example="codeq webhooks list --state dead")
def list_(
    client: "Client",
    out: Output,
    state: State = None,
    error: Error = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of deliveries.")] = 100,
) -> None:
    """List deliveries, newest first; dead ones oldest first."""
    if state is not None and state not in STATES:
        raise UsageError(f"--state is one of {', '.join(STATES)}")
    deliveries = _all(client, state, error, page=min(limit + 1, PAGE))
    found = list(islice(deliveries, limit))
    has_more = len(found) == limit and next(deliveries, None) is not None
    if out.is_json:
        out.document({"deliveries": [_fields(delivery) for delivery in found], "more": has_more})
    elif found:
        out.rows(COLUMNS, [_row(delivery) for delivery in found], fold=("url", "error"))
        if has_more:
            out.say(f"there are more than these {len(found)}; use --limit")
    else:
        out.say("there are no deliveries" if state is error is None else "no deliveries match")


@remote(app, "show", example="codeq webhooks show 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70")
def show(client: "Client", out: Output, delivery_id: DeliveryId) -> None:
    """Show one delivery, with what is sent and what was answered."""
    import msgspec

    fields = _fields(client.webhooks.get(delivery_id))
    if out.is_json:
        out.document(fields)
        return
    shown = {**fields, "response": _response(fields)}
    rows = [(name, value) for name, value in shown.items() if name != "body" and value is not None]
    out.rows(("field", "value"), rows, fold="value")
    out.say(msgspec.json.format(msgspec.json.encode(fields["body"]), indent=2).decode())


@remote(app, "replay", example="codeq webhooks replay --error 'HTTP 503' --dry-run")
def replay(
    client: "Client",
    out: Output,
    id: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This delivery; repeatable.")] = None,
    error: Error = None,
    all: Annotated[bool, typer.Option("--all", help="All dead deliveries.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print how many match, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Send dead deliveries again, with their attempts reset."""
    if sum((bool(id), error is not None, all)) != 1:
        raise UsageError("choose dead deliveries by --id, by --error, or by --all; exactly one of these")
    preview = client.webhooks.replay(id, error=error, limit=REPLAYED_MAX, dry_run=True)
    more = "; there may be more" if preview.matched >= REPLAYED_MAX else ""
    dead = count(preview.matched, "dead delivery", "dead deliveries")
    if preview.matched and not dry_run and not yes:
        confirm(f"send {dead} again?")
    results = [preview] if dry_run else list(_replayed(client, id, error, expected=preview.matched))
    matched, changed = sum(each.matched for each in results), sum(each.changed for each in results)
    refused = {name: code for each in results for name, code in each.refused.items()}
    ids = [name for each in results for name in each.ids]
    text = f"would replay {dead}" if dry_run else f"replayed {count(changed, 'dead delivery', 'dead deliveries')}"
    out.answer({"matched": matched, "changed": changed, "dryRun": dry_run, "ids": ids, "refused": refused}, text + more)
    for delivery_id, code in refused.items():
        print_error(
            f"{delivery_id} was not replayed: {code}", code=code, exit_code=ExitCode.REFUSED, as_json=out.is_json
        )
    if refused:
        raise typer.Exit(ExitCode.REFUSED)


@remote(app, "test", example="codeq webhooks test https://example.com/hook")
def send_test(
    client: "Client",
    out: Output,
    target: Annotated[str, typer.Argument(metavar="URL", help="Where to send it.")],
    wait: Annotated[float, typer.Option(min=0, max=300, help="Seconds to wait for the first attempt.")] = 20.0,
) -> None:
    """Send a made-up result to a URL, and report how the first attempt went."""
    delivery = client.webhooks.test(target)
    until_s = time.monotonic() + wait
    while delivery.state in ("pending", "in_progress") and time.monotonic() < until_s:
        time.sleep(POLL_S)
        delivery = client.webhooks.get(delivery.id)
    fields = _fields(delivery)
    texts = {"delivered": f"delivered, {_response(fields)}", "pending": "not sent yet"}
    text = texts.get(delivery.state, delivery.last_error or delivery.state)
    out.answer(fields, f"{delivery.id}: {text}")
    if delivery.state != "delivered":
        raise typer.Exit(ExitCode.REFUSED)


@remote(app, "secret", example="codeq webhooks secret")
def secret(client: "Client", out: Output) -> None:
    """Print the secrets that sign the tenant's webhooks, the current one first."""
    found = list(client.webhooks.secrets())
    out.answer({"secrets": found}, "\n".join(found) or "webhooks are not signed")


@local(app, "new-secret", example="codeq webhooks new-secret")
def new_secret(out: Output) -> None:
    """Print a new random secret for webhooks.secret or webhooks.master_secret. Nothing is stored."""
    from codeq.wire.webhooks import secret_of

    made = secret_of(random_bytes.token_bytes(32))
    out.answer({"secret": made}, made)


def _replayed(client: "Client", ids: list[str] | None, error: str | None, *, expected: int) -> "Iterator[BulkResult]":
    """Stops after as many as were expected: one that is dead again at once must not be matched for ever."""
    if ids:
        yield client.webhooks.replay(ids)
        return
    left = expected
    while left > 0:
        result = client.webhooks.replay(error=error, limit=min(left, CALL_DELIVERIES))
        yield result
        if not result.matched:
            return
        left -= result.matched


def _all(client: "Client", state: str | None, error: str | None, *, page: int) -> "Iterator[DeliveryView]":
    cursor: str | None = None
    while True:
        found = client.webhooks.list(state=state, error=error, cursor=cursor, limit=page)
        yield from found.deliveries
        cursor = found.cursor
        if cursor is None:
            return


def _fields(delivery: "DeliveryView") -> dict[str, Any]:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(delivery), type=dict[str, Any])


def _response(fields: dict[str, Any]) -> str | None:
    found = fields["response"]
    return f"HTTP {found['status']} in {found['milliseconds']} ms" if found else None


def _row(delivery: "DeliveryView") -> tuple[Any, ...]:
    return (
        delivery.id,
        delivery.state,
        f"{delivery.attempts}/{delivery.max_attempts}",
        delivery.command,
        delivery.updated_at.replace("T", " "),
        truncate(delivery.url, 60),
        truncate(delivery.last_error or "", 300),
    )
