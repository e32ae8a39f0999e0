"""`codeq claim`, `result`, `nack`, `abandon`, `heartbeat`: the verbs of a worker, for shell scripts."""

from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import remote
from codeq.cli.output import Output, format_duration, format_time, rfc3339, truncate
from codeq.cli.parameters import duration, json_argument

if TYPE_CHECKING:
    from codeq import Client, Job, ReleaseResult
    from codeq.domain.artifacts import Artifact

RETRY_S = 15.0
"""Longer than elsewhere, because a result that is not stored loses finished work."""

TaskId = Annotated[str, typer.Argument(metavar="ID", help="Task id, printed by `codeq claim`.")]
LeaseToken = Annotated[int, typer.Option("--lease-token", min=1, metavar="N", help="Lease token, printed with it.")]
LEASE_COLUMNS = ("id", ">token", "command", ">attempt", "lease until", "payload")


def add_to(app: typer.Typer) -> None:
    remote(app, "claim", example=_CLAIM, retry_s=RETRY_S)(claim)
    remote(app, "result", example=_RESULT, retry_s=RETRY_S)(result)
    remote(app, "nack", example='codeq nack "$id" --lease-token "$token" --reason "disk full" --delay 5m',
           retry_s=RETRY_S)(nack)  # fmt: skip
    remote(app, "abandon", example='codeq abandon "$id" --lease-token "$token"', retry_s=RETRY_S)(abandon)
    remote(app, "heartbeat", example=_HEARTBEAT, retry_s=RETRY_S)(heartbeat)


def claim(
    client: "Client",
    out: Output,
    commands: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Commands to claim; default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of tasks.")] = 1,
    lease: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Duration of the lease; default: the queue's."),
    ] = None,
    wait: Annotated[float, typer.Option(parser=duration, metavar="DURATION", help="How long to wait for a task.")] = 0,
) -> None:
    """Claim tasks under a lease. Into a pipe: one line per task, with id, token, command and payload between tabs.

    If there is no task, prints nothing and exits with 0.
    """
    jobs = client.claim(*(commands or ()), limit=limit, lease=lease, wait=wait)
    if out.is_json:
        out.document({"tasks": [_fields(job) for job in jobs]})
    elif not jobs:
        out.note("there is no task to claim")
    elif out.is_terminal:
        out.rows(LEASE_COLUMNS, [_row(job) for job in jobs], fold="payload")
        out.note(
            "\nto complete it: codeq result ID --lease-token TOKEN [JSON]; "
            "to retry later: codeq nack ID --lease-token TOKEN"
        )
    else:
        for job in jobs:
            print(job.id, job.holder.token, job.command, _one_line(job), sep="\t")


def result(
    client: "Client",
    out: Output,
    task_id: TaskId,
    lease_token: LeaseToken,
    result: Annotated[str | None, typer.Argument(metavar="JSON", help="Result; - reads standard input.")] = (None),
    error: Annotated[str | None, typer.Option(help="Fail the task with this error, without a retry.")] = None,
    artifact: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="File of the result, uploaded by `codeq artifact put`; repeatable."),
    ] = None,
) -> None:
    """Complete a task with its result, or fail it with --error."""
    job, value = claimed_job(task_id, lease_token), json_argument(result, None, "result")
    job.attached = [_uploaded(name) for name in artifact or ()]
    if error is None:
        client.complete(job, value)
    else:
        client.fail(job, error, value)
    status = "COMPLETED" if error is None else "FAILED"
    out.answer({"taskId": task_id, "status": status}, f"{task_id} is {status}")


def nack(
    client: "Client",
    out: Output,
    task_id: TaskId,
    lease_token: LeaseToken,
    reason: Annotated[str, typer.Option(help="Why it failed; stored with the task.")] = "",
    delay: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Delay before the retry; default: the backoff."),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Move it to the dead-letter queue without a retry.")] = False,
) -> None:
    """Report a failed attempt: the task is retried later, or dead-lettered after its last attempt."""
    _print_release(out, task_id, client.nack(claimed_job(task_id, lease_token), reason, delay=delay, dead=dead))


def abandon(client: "Client", out: Output, task_id: TaskId, lease_token: LeaseToken) -> None:
    """Return a task to its queue at once, without counting a failed attempt."""
    _print_release(out, task_id, client.abandon(claimed_job(task_id, lease_token)))


def heartbeat(
    client: "Client",
    out: Output,
    task_id: TaskId,
    lease_token: LeaseToken,
    extend: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Duration of the new lease; default: the queue's."),
    ] = None,
    progress: Annotated[str | None, typer.Option(metavar="TEXT", help="Progress, shown with the task.")] = None,
) -> None:
    """Extend a lease. Fails if the lease was lost, or the task was cancelled."""
    until = client.heartbeat(claimed_job(task_id, lease_token), extend, progress=progress)
    until_ms = round(until.timestamp() * 1000)
    out.answer(
        {"taskId": task_id, "leaseUntil": rfc3339(until_ms)}, f"{task_id} is leased until {format_time(until_ms)}"
    )


def claimed_job(task_id: str, token: int) -> "Job":
    """The job from what `codeq claim` printed. The bearer token tells the server which worker it is."""
    from codeq.domain.task import Holder
    from codeq.sdk.jobs import Job

    return Job(task_id, "", b"null", Holder("", token))


def _uploaded(name: str) -> "Artifact":
    from codeq.domain.artifacts import Artifact

    return Artifact(name)


def _print_release(out: Output, task_id: str, released: "ReleaseResult") -> None:
    status, text = "dlq", f"{task_id} is in the dead-letter queue (codeq dlq list)"
    if not released.is_dead:
        when = f"in {format_duration(released.delay_seconds)}" if released.delay_seconds else "at once"
        status, text = "requeued", f"{task_id} is back in its queue, for a retry {when}"
    out.answer({"taskId": task_id, "status": status, "delaySeconds": released.delay_seconds}, text)


def _until_ms(job: "Job") -> int:
    from codeq.sdk.durations import unix_ms

    return unix_ms(job.lease_until)


def _fields(job: "Job") -> dict[str, object]:
    return {
        "id": job.id,
        "command": job.command,
        "payload": job.payload,
        "leaseToken": job.holder.token,
        "leaseUntil": rfc3339(_until_ms(job)),
        "workerId": job.holder.worker,
        "priority": job.priority,
        "attempts": job.attempts,
        "maxAttempts": job.max_attempts,
        "deliveries": job.deliveries,
    }


def _row(job: "Job") -> tuple[object, ...]:
    attempt = f"{job.attempt}/{job.max_attempts}"
    return (
        job.id,
        job.holder.token,
        job.command,
        attempt,
        format_time(_until_ms(job)),
        truncate(_one_line(job), 200),
    )


def _one_line(job: "Job") -> str:
    import msgspec

    return msgspec.json.format(job.raw, indent=-1).decode()


_HEARTBEAT = 'codeq heartbeat "$id" --lease-token "$token" --extend 10m --progress "page 3 of 9"'
_CLAIM = """
codeq claim resize --lease 5m --wait 20s
codeq claim resize --limit 10 | while IFS=$'\\t' read -r id token command payload; do ...; done
"""
_RESULT = """
codeq result "$id" --lease-token "$token" '{"width": 640}'
codeq result "$id" --lease-token "$token" --error "no such image"
"""
