"""`codeq queue`: how the queues stand, and the rules they follow."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import Misuse
from codeq.cli.output import Output, span, table
from codeq.cli.parameters import duration

if TYPE_CHECKING:
    from codeq import Client, QueueInfo, QueuePolicy

app = typer.Typer(no_args_is_help=True, help="How the queues stand; pause and resume them, set their rules.")

Command = Annotated[str, typer.Argument(metavar="COMMAND", help="The queue's command.")]
COLUMNS = ("command", ">pending", ">delayed", ">in progress", ">dead", ">oldest", "")


@remote(app, "list", example="codeq queue list")
def list_(client: "Client", out: Output) -> None:
    """List all queues with their exact counts."""
    found = client.queues()
    if out.is_json:
        out.document({"queues": [fields(command, info) for command, info in sorted(found.items())]})
    elif found:
        out.rows(COLUMNS, [row(command, info) for command, info in sorted(found.items())])
    else:
        out.say("there are no tasks in any queue")


@remote(app, "show", example="codeq queue show resize")
def show(client: "Client", out: Output, command: Command) -> None:
    """Show one queue: its counts, and its rules if it has its own (which only an admin may see)."""
    from codeq.errors import Forbidden
    from codeq.sdk.jobs import QueueInfo

    info = client.queues().get(command, QueueInfo())
    try:
        policy, may_see = client.policy(command), True
    except Forbidden:
        policy, may_see = None, False
    if out.is_json:
        out.document({**fields(command, info), "policy": policy_fields(policy)})
        return
    out.rows(COLUMNS, [row(command, info)])
    out.say()
    if may_see:
        _show_policy(out, command, policy)
    else:
        out.say("its rules are for admins to see")


@remote(app, "pause", example="codeq queue pause resize")
def pause(client: "Client", out: Output, command: Command) -> None:
    """Hand out no tasks of this queue until it is resumed. New ones are still taken in."""
    client.pause(command)
    _say_paused(out, command, is_paused=True)


@remote(app, "resume", example="codeq queue resume resize")
def resume(client: "Client", out: Output, command: Command) -> None:
    """Hand out tasks of this queue again."""
    client.resume(command)
    _say_paused(out, command, is_paused=False)


@remote(app, "policy", example="codeq queue policy resize --set max-attempts=3 --set lease=10m --set backoff=fixed")
def policy(
    client: "Client",
    out: Output,
    command: Command,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change one rule; may be given often.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget the queue's own rules; the server's hold.")] = False,
) -> None:
    """Show the rules of one queue, or change them.

    Rules: max-attempts, max-deliveries, max-consumers, lease, retention, dead-retention, on-expiry, backoff,
    backoff-base, backoff-max. Those of time take durations such as 90s, 10m or 7d.
    """
    if reset and set:
        raise Misuse("--reset and --set say two different things; give one of them")
    if reset:
        client.set_policy(command, None)
    elif set:
        client.set_policy(command, _changed(out, client.policy(command), set))
    found = client.policy(command)
    if out.is_json:
        out.document({"command": command, "policy": policy_fields(found)})
    else:
        _show_policy(out, command, found)


def fields(command: str, info: "QueueInfo") -> dict[str, Any]:
    """The names are those of the wire."""
    return {
        "command": command,
        "ready": info.pending,
        "delayed": info.delayed,
        "inProgress": info.in_progress,
        "dlq": info.dead,
        "oldestAgeSeconds": info.oldest_seconds,
        "paused": info.paused,
    }


def row(command: str, info: "QueueInfo") -> tuple[Any, ...]:
    oldest = span(info.oldest_seconds) if info.pending else "-"
    paused = "paused" if info.paused else ""
    return (command, info.pending, info.delayed, info.in_progress, info.dead, oldest, paused)


def policy_fields(policy: "QueuePolicy | None") -> dict[str, Any] | None:
    import msgspec

    from codeq.wire import queues

    return None if policy is None else msgspec.to_builtins(queues.policy_fields(policy))


def _show_policy(out: Output, command: str, policy: "QueuePolicy | None") -> None:
    if policy is None:
        out.say(f"{command} has no rules of its own; those of the server hold")
        return
    backoff = policy.backoff
    rows = (
        ("max-attempts", policy.max_attempts),
        ("max-deliveries", policy.max_deliveries),
        ("max-consumers", policy.max_consumers or "no limit"),
        ("lease", span(policy.lease_ms / 1000)),
        ("retention", span(policy.retention_ms / 1000)),
        ("dead-retention", span(policy.dead_retention_ms / 1000)),
        ("on-expiry", policy.on_expiry.value),
        ("backoff", backoff.kind.value),
        ("backoff-base", span(backoff.base_ms / 1000)),
        ("backoff-max", span(backoff.max_ms / 1000)),
        ("paused", "yes" if policy.paused else "no"),
    )
    out.show(table(("rule", "value"), rows))


def _say_paused(out: Output, command: str, *, is_paused: bool) -> None:
    if out.is_json:
        out.document({"command": command, "paused": is_paused})
    else:
        out.say(f"{command} is {'paused' if is_paused else 'running'}")


def _changed(out: Output, policy: "QueuePolicy | None", rules: list[str]) -> "QueuePolicy":
    import msgspec

    from codeq.domain.queue import QueuePolicy

    if policy is None:
        # A stored policy holds as a whole, and the server's own defaults are not told to clients.
        out.note("the queue had no rules of its own; those that are not set are codeQ's defaults now")
        policy = QueuePolicy()
    for rule in rules:
        name, _, value = rule.partition("=")
        known = name.strip().lower().removesuffix("-seconds")
        if known not in _RULES or not value:
            raise Misuse(f"a rule is NAME=VALUE, with NAME one of {', '.join(_RULES)}; not {rule!r}")
        field, read = _RULES[known]
        try:
            if field.startswith("backoff."):
                backoff = msgspec.structs.replace(policy.backoff, **{field.removeprefix("backoff."): read(value)})
                policy = msgspec.structs.replace(policy, backoff=backoff)
            else:
                policy = msgspec.structs.replace(policy, **{field: read(value)})
        except ValueError:
            raise Misuse(f"{value!r} is no {known}") from None
    return policy


def _ms(text: str) -> int:
    return round(duration(text) * 1000)


def _backoff_kind(text: str) -> Any:
    from codeq.domain.backoff import BackoffKind

    return BackoffKind(text)


def _on_expiry(text: str) -> Any:
    from codeq.domain.queue import OnExpiry

    return OnExpiry(text)


_RULES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max-attempts": ("max_attempts", int),
    "max-deliveries": ("max_deliveries", int),
    "max-consumers": ("max_consumers", int),
    "lease": ("lease_ms", _ms),
    "retention": ("retention_ms", _ms),
    "dead-retention": ("dead_retention_ms", _ms),
    "on-expiry": ("on_expiry", _on_expiry),
    "backoff": ("backoff.kind", _backoff_kind),
    "backoff-base": ("backoff.base_ms", _ms),
    "backoff-max": ("backoff.max_ms", _ms),
}
