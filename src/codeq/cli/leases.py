"""`codeq claim`, `result`, `nack`, `abandon`, `heartbeat`: what a shell script needs to work on tasks."""

from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import remote
from codeq.cli.output import Output, cut, span, stamp, when
from codeq.cli.parameters import duration, json_argument

if TYPE_CHECKING:
    from codeq import Client, Job, ReleaseResult

RETRY_S = 15.0
"""A result is worth some patience: the work behind it has been done."""

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id, as printed by `codeq claim`.")]
LeaseToken = Annotated[int, typer.Option("--token", min=1, metavar="N", help="The lease's token, printed with it.")]
LEASE_COLUMNS = ("id", ">token", "command", ">try", "lease until", "payload")


def add_to(app: typer.Typer) -> None:
    remote(app, "claim", example=_CLAIM, retry_s=RETRY_S)(claim)
    remote(app, "result", example=_RESULT, retry_s=RETRY_S, has_lease=True)(result)
    remote(app, "nack", example='codeq nack "$id" --token "$token" --reason "disk full" --delay 5m',
           retry_s=RETRY_S, has_lease=True)(nack)  # fmt: skip
    remote(app, "abandon", example='codeq abandon "$id" --token "$token"', retry_s=RETRY_S, has_lease=True)(abandon)
    remote(app, "heartbeat", example='codeq heartbeat "$id" --token "$token" --extend 10m --progress "page 3 of 9"',
           retry_s=RETRY_S, has_lease=True)(heartbeat)  # fmt: skip


def claim(
    client: "Client",
    out: Output,
    commands: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Which commands; all of them if not said.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many tasks at most.")] = 1,
    lease: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long to hold them; else the queue's.")
    ] = None,
    wait: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="How long to wait for the first.")
    ] = 0,
) -> None:
    """Lease tasks to work on. Into a pipe: one line per task, with id, token, command and payload between tabs.

    Prints nothing, and is no failure, when there is no task.
    """
    jobs = client.claim(*(commands or ()), limit=limit, lease=lease, wait=wait)
    if out.is_json:
        out.document({"tasks": [_fields(job) for job in jobs]})
    elif not jobs:
        out.note("there is nothing to claim")
    elif out.is_terminal:
        out.rows(LEASE_COLUMNS, [_row(job) for job in jobs], fold="payload")
        out.note("\nwhen it is done: codeq result ID --token TOKEN [JSON]; when it failed: codeq nack ID --token TOKEN")
    else:
        for job in jobs:
            print(job.id, job.holder.token, job.command, _one_line(job), sep="\t")


def result(
    client: "Client",
    out: Output,
    task_id: TaskId,
    token: LeaseToken,
    result: Annotated[str | None, typer.Argument(metavar="JSON", help="What came of it; - for standard input.")] = (
        None
    ),
    error: Annotated[str | None, typer.Option(help="It failed for good: no retry, this is why.")] = None,
) -> None:
    """End a task: with success, or for good with --error."""
    job, value = _held(task_id, token), json_argument(result, None, "result")
    if error is None:
        client.complete(job, value)
    else:
        client.fail(job, error, value)
    status = "COMPLETED" if error is None else "FAILED"
    if out.is_json:
        out.document({"taskId": task_id, "status": status})
    else:
        out.say(f"{task_id} is {status}")


def nack(
    client: "Client",
    out: Output,
    task_id: TaskId,
    token: LeaseToken,
    reason: Annotated[str, typer.Option(help="What went wrong.")] = "",
    delay: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="When to try again; else by the queue's backoff."),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Do not try again: it is beyond hope.")] = False,
) -> None:
    """Report a failed try: the task is tried again later, or is dead if this was its last try."""
    _say_back(out, task_id, client.nack(_held(task_id, token), reason, delay=delay, dead=dead))


def abandon(client: "Client", out: Output, task_id: TaskId, token: LeaseToken) -> None:
    """Hand a task back unharmed, for another worker to take at once."""
    _say_back(out, task_id, client.abandon(_held(task_id, token)))


def heartbeat(
    client: "Client",
    out: Output,
    task_id: TaskId,
    token: LeaseToken,
    extend: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="From now; else the queue's lease.")
    ] = None,
    progress: Annotated[str | None, typer.Option(metavar="TEXT", help="How far it is, shown with the task.")] = None,
) -> None:
    """Keep a task a while longer. Fails when it is no longer yours, or was cancelled."""
    until = client.heartbeat(_held(task_id, token), extend, progress=progress)
    until_ms = round(until.timestamp() * 1000)
    if out.is_json:
        out.document({"taskId": task_id, "leaseUntil": stamp(until_ms)})
    else:
        out.say(f"{task_id} is held until {when(until_ms)}")


def _held(task_id: str, token: int) -> "Job":
    """The job that was claimed, made again from what `codeq claim` printed. Who holds it is said by our token."""
    from codeq.domain.task import Holder
    from codeq.sdk.jobs import Job

    return Job(task_id, "", b"null", Holder("", token))


def _say_back(out: Output, task_id: str, back: "ReleaseResult") -> None:
    if out.is_json:
        status = "dlq" if back.is_dead else "requeued"
        out.document({"taskId": task_id, "status": status, "delaySeconds": back.delay_seconds})
    elif back.is_dead:
        out.say(f"{task_id} is dead: it is not tried again (codeq dlq list)")
    else:
        wait = f"in {span(back.delay_seconds)}" if back.delay_seconds else "at once"
        out.say(f"{task_id} is back in its queue, to be tried again {wait}")


def _fields(job: "Job") -> dict[str, object]:
    return {
        "id": job.id,
        "command": job.command,
        "payload": job.payload,
        "leaseToken": job.holder.token,
        "leaseUntil": stamp(job.lease_until_ms),
        "workerId": job.holder.worker,
        "priority": job.priority,
        "attempts": job.attempts,
        "maxAttempts": job.max_attempts,
        "deliveries": job.deliveries,
    }


def _row(job: "Job") -> tuple[object, ...]:
    tries = f"{job.attempt}/{job.max_attempts}"
    return (job.id, job.holder.token, job.command, tries, when(job.lease_until_ms), cut(_one_line(job), 200))


def _one_line(job: "Job") -> str:
    import msgspec

    return msgspec.json.format(job.raw, indent=-1).decode()


_CLAIM = """
codeq claim resize --lease 5m --wait 20s
codeq claim resize --limit 10 | while IFS=$'\\t' read -r id token command payload; do ...; done
"""
_RESULT = """
codeq result "$id" --token "$token" '{"width": 640}'
codeq result "$id" --token "$token" --error "no such image"
"""
