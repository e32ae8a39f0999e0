"""`codeq queue`: shows counts of queues, pauses and resumes them, shows and sets their policies."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import UsageError
from codeq.cli.output import Output, format_duration, table
from codeq.cli.parameters import duration

if TYPE_CHECKING:
    from codeq import Client, QueueInfo, QueuePolicy

app = typer.Typer(no_args_is_help=True, help="Show, pause and resume queues, and set their policies.")

Command = Annotated[str, typer.Argument(metavar="COMMAND", help="Command of the queue.")]
COLUMNS = ("command", ">pending", ">delayed", ">in progress", ">dead", ">oldest", "")


@remote(app, "list", example="codeq queue list")
def list_(client: "Client", out: Output) -> None:
    """List all queues with their exact counts."""
    print_queues(out, client.queues(), if_none="there are no tasks in any queue")


@remote(app, "show", example="codeq queue show resize")
def show(client: "Client", out: Output, command: Command) -> None:
    """Show one queue: its counts and, to an admin, its policy."""
    from codeq.errors import Forbidden
    from codeq.sdk.jobs import QueueInfo

    info = client.queues().get(command, QueueInfo())
    try:
        policy, is_admin = client.policy(command), True
    except Forbidden:
        policy, is_admin = None, False
    if out.is_json:
        out.document({**queue_fields(command, info), "policy": _policy_fields(policy)})
        return
    out.rows(COLUMNS, [_row(command, info)])
    out.say()
    if is_admin:
        _show_policy(out, command, policy)
    else:
        out.say("its policy is visible to admins only")


@remote(app, "pause", example="codeq queue pause resize")
def pause(client: "Client", out: Output, command: Command) -> None:
    """Pause delivery from a queue until it is resumed. New tasks are still accepted."""
    client.pause(command)
    _print_paused(out, command, is_paused=True)


@remote(app, "resume", example="codeq queue resume resize")
def resume(client: "Client", out: Output, command: Command) -> None:
    """Resume delivery from a paused queue."""
    client.resume(command)
    _print_paused(out, command, is_paused=False)


@remote(app, "policy", example="codeq queue policy resize --set max-attempts=3 --set lease=10m --set backoff=fixed")
def policy(
    client: "Client",
    out: Output,
    command: Command,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set one rule; repeatable.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Delete the policy; the server's defaults apply.")] = False,
) -> None:
    """Show or change the policy of a queue.

    Rules: max-attempts, max-deliveries, max-consumers, lease, retention, dead-retention, on-expiry, backoff,
    backoff-base, backoff-max. Times are durations such as 90s, 10m or 7d.
    """
    if reset and set:
        raise UsageError("--reset and --set exclude each other")
    if reset:
        client.set_policy(command, None)
    elif set:
        client.set_policy(command, _with_rules(out, client.policy(command), set))
    found = client.policy(command)
    if out.is_json:
        out.document({"command": command, "policy": _policy_fields(found)})
    else:
        _show_policy(out, command, found)


def print_queues(out: Output, queues: "dict[str, QueueInfo]", *, if_none: str) -> None:
    if out.is_json:
        out.document({"queues": [queue_fields(command, info) for command, info in sorted(queues.items())]})
    elif queues:
        out.rows(COLUMNS, [_row(command, info) for command, info in sorted(queues.items())])
    else:
        out.say(if_none)


def queue_fields(command: str, info: "QueueInfo") -> dict[str, Any]:
    """The fields of `--json`, named as on the wire."""
    return {
        "command": command,
        "ready": info.pending,
        "delayed": info.delayed,
        "inProgress": info.in_progress,
        "dlq": info.dead,
        "oldestAgeSeconds": info.oldest_seconds,
        "paused": info.paused,
    }


def _row(command: str, info: "QueueInfo") -> tuple[Any, ...]:
    oldest = format_duration(info.oldest_seconds) if info.pending else "-"
    paused = "paused" if info.paused else ""
    return (command, info.pending, info.delayed, info.in_progress, info.dead, oldest, paused)


def _policy_fields(policy: "QueuePolicy | None") -> dict[str, Any] | None:
    import msgspec

    from codeq.wire import queues

    return None if policy is None else msgspec.to_builtins(queues.policy_fields(policy))


def _show_policy(out: Output, command: str, policy: "QueuePolicy | None") -> None:
    if policy is None:
        out.say(f"{command} has no policy of its own; the server's defaults apply")
        return
    backoff = policy.backoff
    rows = (
        ("max-attempts", policy.max_attempts),
        ("max-deliveries", policy.max_deliveries),
        ("max-consumers", policy.max_consumers or "no limit"),
        ("lease", format_duration(policy.lease_ms / 1000)),
        ("retention", format_duration(policy.retention_ms / 1000)),
        ("dead-retention", format_duration(policy.dead_retention_ms / 1000)),
        ("on-expiry", policy.on_expiry.value),
        ("backoff", backoff.kind.value),
        ("backoff-base", format_duration(backoff.base_ms / 1000)),
        ("backoff-max", format_duration(backoff.max_ms / 1000)),
        ("paused", "yes" if policy.paused else "no"),
    )
    out.show(table(("rule", "value"), rows))


def _print_paused(out: Output, command: str, *, is_paused: bool) -> None:
    out.answer({"command": command, "paused": is_paused}, f"{command} is {'paused' if is_paused else 'running'}")


def _with_rules(out: Output, policy: "QueuePolicy | None", rules: list[str]) -> "QueuePolicy":
    import msgspec

    from codeq.domain.queue import QueuePolicy

    if policy is None:
        # A stored policy replaces all of the server's defaults, which clients cannot read.
        out.note("the queue had no policy of its own; rules that are not set have codeQ's defaults now")
        policy = QueuePolicy()
    for rule in rules:
        name, _, value = rule.partition("=")
        rule_name = name.strip().lower().removesuffix("-seconds")
        if rule_name not in _RULES or not value:
            raise UsageError(f"a rule is NAME=VALUE, with NAME one of {', '.join(_RULES)}; not {rule!r}")
        field, parse = _RULES[rule_name]
        try:
            if field.startswith("backoff."):
                backoff = msgspec.structs.replace(policy.backoff, **{field.removeprefix("backoff."): parse(value)})
                policy = msgspec.structs.replace(policy, backoff=backoff)
            else:
                policy = msgspec.structs.replace(policy, **{field: parse(value)})
        except ValueError:
            raise UsageError(f"{value!r} is not a valid {rule_name}") from None
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
