"""`codeq artifact`: lists, downloads and uploads the files of results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codeq.cli.connect import remote
from codeq.cli.leases import RETRY_S, LeaseToken, TaskId, claimed_job
from codeq.cli.output import Output, format_bytes

if TYPE_CHECKING:
    from codeq import Client
    from codeq.domain.artifacts import Artifact

app = typer.Typer(no_args_is_help=True, help="List, download and upload the files of results.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the artifact.")]
COLUMNS = ("name", ">size", "content type", "sha256 or url")
_ID = "0199a1b2-7c3d-7000-8000-3f2a9c5e1b70"


@remote(app, "list", example=f"codeq artifact list {_ID}")
def list_(client: "Client", out: Output, task_id: TaskId) -> None:
    """List the files of a task's result."""
    found = client.artifacts(task_id)
    if out.is_json:
        out.document({"artifacts": [_fields(artifact) for artifact in found]})
    elif not found:
        out.say("the task has no artifacts; those that are uploaded appear with its result")
    else:
        rows = [
            (each.name, "-" if each.url else format_bytes(each.size), each.content_type, each.url or each.sha256)
            for each in found
        ]
        out.rows(COLUMNS, rows, fold="sha256 or url")


@remote(app, "get", example=f"codeq artifact get {_ID} report.pdf --output /tmp", retry_s=RETRY_S)
def get(
    client: "Client",
    out: Output,
    task_id: TaskId,
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File or directory to write; default: the name, here.")
    ] = None,
) -> None:
    """Download a file of a task's result. It appears once it is complete and its SHA-256 is right."""
    place = client.download_artifact(task_id, name, output if output is not None else Path())
    out.answer({"taskId": task_id, "name": name, "path": str(place)}, f"{place} has {name}")


@remote(app, "put", example='codeq artifact put "$id" report.pdf --lease-token "$token"', retry_s=RETRY_S)
def put(
    client: "Client",
    out: Output,
    task_id: TaskId,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to upload.", exists=True, dir_okay=False)],
    lease_token: LeaseToken,
    name: Annotated[str | None, typer.Option("--name", help="Name of the artifact; default: that of the file.")] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", help="Content type; default: guessed from the name.")
    ] = None,
) -> None:
    """Upload a file for the result of a claimed task; `codeq result --artifact NAME` makes it visible.

    If an upload breaks off, the same command continues it.
    """
    job = claimed_job(task_id, lease_token)
    artifact = client.attach(job, name or file.name, file, content_type=content_type, resume=True)
    text = f"{artifact.name} is uploaded ({format_bytes(artifact.size)}); codeq result --artifact names it"
    out.answer({"taskId": task_id, **_fields(artifact)}, text)


def _fields(artifact: "Artifact") -> dict[str, object]:
    known = {"size": artifact.size, "sha256": artifact.sha256} if artifact.url is None else {"url": artifact.url}
    return {"name": artifact.name, "contentType": artifact.content_type, **known}
