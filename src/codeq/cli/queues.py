"""`codeq queue`: shows counts of queues, pauses and resumes them, shows and sets their policies."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeq.cli.connect import remote
from codeq.cli.errors import LocalNotFound, UsageError
from codeq.cli.output import Output, format_duration
from codeq.cli.policy_rules import policy_fields, show_policy, with_rules

if TYPE_CHECKING:
    from codeq import Client, EffectivePolicy, QueueInfo, QueuePolicy

app = typer.Typer(no_args_is_help=True, help="Show, pause and resume queues, and set their policies.")

Command = Annotated[str, typer.Argument(metavar="COMMAND", help="Command of the queue.")]
COLUMNS = ("command", ">pending", ">delayed", ">in progress", ">dead", ">oldest", ">workers", "")


@remote(app, "list", example="codeq queue list")
def list_(client: "Client", out: Output) -> None:
    """List all queues with their exact counts."""
    print_queues(out, client.queues(), if_none="there are no tasks in any queue")


@remote(app, "show", example="codeq queue show resize")
def show(client: "Client", out: Output, command: Command) -> None:
    """Show one queue: its counts and, to an admin, its policy."""
    from codeq.errors import Forbidden

    queues = client.queues()
    try:
        rules = (client.policy(command), client.effective_policy(command))
    except Forbidden:
        rules = None
    info = queues.get(command) or _empty_queue(client, command, list(queues), rules)
    if out.is_json:
        out.document({**queue_fields(command, info), **(policy_fields(*rules) if rules else {"policy": None})})
        return
    out.rows(COLUMNS, [queue_row(command, info)])
    out.say()
    if rules:
        show_policy(out, command, *rules)
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
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Let one rule follow the server's setting again; repeatable."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Delete the policy; the server's settings apply.")] = False,
    if_version: Annotated[
        int | None,
        typer.Option("--if-version", metavar="N", min=0, help="Change nothing unless the policy has this version."),
    ] = None,
) -> None:
    """Show or change the policy of a queue. Rules that are not set follow the server's settings.

    Rules: max-attempts, max-deliveries, max-consumers, lease, retention, dead-retention, on-expiry, backoff,
    backoff-base, backoff-max, paused. Times are durations such as 90s, 10m or 7d.
    """
    from codeq import QueuePolicy

    if reset and (set or unset):
        raise UsageError("--reset excludes --set and --unset")
    if reset:
        client.set_policy(command, None, if_match=if_version)
    elif set or unset:
        before = client.policy(command) or QueuePolicy()
        changed = with_rules(before, set or [], unset or [])
        if changed != before:  # otherwise --unset would store a policy without rules
            # What somebody else has changed since it was read is not overwritten: the call is refused.
            is_read = if_version in (None, before.version)
            client.set_policy(command, changed, if_match=before.etag if is_read else if_version)
    found, effective = client.policy(command), client.effective_policy(command)
    if out.is_json:
        out.document({"command": command, **policy_fields(found, effective)})
    else:
        show_policy(out, command, found, effective)


def _empty_queue(
    client: "Client", command: str, others: list[str], rules: "tuple[QueuePolicy | None, EffectivePolicy] | None"
) -> "QueueInfo":
    """The queue of a command without tasks, if it has a policy or workers; else the name is most likely a mistake."""
    from codeq.sdk.jobs import QueueInfo

    workers = 0 if rules is None else sum(worker.works_on(command) for worker in client.workers())
    if workers or (rules is not None and rules[0] is not None):
        return QueueInfo(workers=workers, paused=rules is not None and rules[1].paused)
    near = get_close_matches(command, others, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    policies = "" if rules is None else ", no policy and no worker"
    raise LocalNotFound(f"there is no queue {command!r}: no task{policies}{hint}")


def print_queues(out: Output, queues: "dict[str, QueueInfo]", *, if_none: str) -> None:
    if out.is_json:
        out.document({"queues": [queue_fields(command, info) for command, info in sorted(queues.items())]})
    elif queues:
        out.rows(COLUMNS, [queue_row(command, info) for command, info in sorted(queues.items())])
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
        "workers": info.workers,
    }


def queue_row(command: str, info: "QueueInfo") -> tuple[Any, ...]:
    oldest = format_duration(info.oldest_seconds) if info.pending else "-"
    workers = "-" if info.workers is None else info.workers
    return (command, info.pending, info.delayed, info.in_progress, info.dead, oldest, workers, queue_note(info))


def queue_note(info: "QueueInfo") -> str:
    """What an operator should know of the queue, in few words."""
    if info.paused:
        return "paused"
    return "nobody works on it" if info.workers == 0 and info.pending else ""


def _print_paused(out: Output, command: str, *, is_paused: bool) -> None:
    out.answer({"command": command, "paused": is_paused}, f"{command} is {'paused' if is_paused else 'running'}")
