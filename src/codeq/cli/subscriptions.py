"""`codeq subscriptions`: lists and deletes the subscriptions of workers to notifications."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.output import Output, truncate

if TYPE_CHECKING:
    from codeq import Client
    from codeq.wire.subscriptions import SubscriptionView

app = typer.Typer(no_args_is_help=True, help="List and delete subscriptions to notifications.")

COLUMNS = ("id", "commands", "mode", "interval", "owner", "expires", "url")


@remote(app, "list", example="codeq subscriptions list")
def list_(
    client: "Client",
    out: Output,
    command: Annotated[str | None, typer.Option(help="Only those that are notified of this command.")] = None,
) -> None:
    """List the subscriptions that have not expired."""
    found = [each for each in client.subscriptions.list() if command is None or {command, "*"} & {*each.event_types}]
    if out.is_json:
        out.document({"subscriptions": [_fields(each) for each in found]})
    elif found:
        out.rows(COLUMNS, [_row(each) for each in found], fold="url")
    else:
        out.say("there are no subscriptions" if command is None else "no subscriptions match")


@remote(app, "delete", example="codeq subscriptions delete 0199a1b2-7c3d-7000-8000-3f2a9c5e1b70")
def delete(
    client: "Client",
    out: Output,
    subscription_id: Annotated[str, typer.Argument(metavar="ID", help="The subscription.")],
) -> None:
    """Delete a subscription. Its worker may subscribe again."""
    client.subscriptions.delete(subscription_id)
    out.answer({"id": subscription_id, "deleted": True}, f"{subscription_id} is deleted")


def _fields(each: "SubscriptionView") -> dict[str, Any]:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(each), type=dict[str, Any])


def _row(each: "SubscriptionView") -> tuple[Any, ...]:
    mode = each.delivery_mode if each.group_id is None else f"{each.delivery_mode} {each.group_id}"
    return (
        each.id,
        truncate(", ".join(each.event_types), 60),
        mode,
        f"{each.min_interval_seconds:g} s",
        truncate(each.owner, 40),
        each.expires_at.replace("T", " "),
        each.callback_url,
    )
