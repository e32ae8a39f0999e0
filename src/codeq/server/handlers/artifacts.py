"""Routes for artifacts: upload by the worker that holds the task, list and download by everybody who may see it."""

import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import quote

from codeq.domain.artifacts import Artifact
from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import ARTIFACT_PART_BYTES
from codeq.domain.task import Holder
from codeq.server.handlers.queries import visible_record
from codeq.server.handlers.worker import check_commands
from codeq.server.request import HttpRequest, HttpResponse, whole_number
from codeq.server.state import AppState
from codeq.server.streams import body_pieces
from codeq.usecases import artifacts
from codeq.usecases.artifact_upload import begin_upload, delete_upload, upload_progress
from codeq.wire import artifacts as wire
from codeq.wire.errors import TooSlow
from codeq.wire.system import Problem

LEASE_QUERY = ("leaseToken",)
UPLOAD_HEADERS = ("Upload-Offset", "Upload-Length", "Upload-Complete", "Repr-Digest", "Content-Range")
RANGE_HEADERS = ("Range", "If-Range")
_BYTES_MAX = 1 << 50
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.ASCII)
_SAFE = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"private, no-cache"),
    (b"accept-ranges", b"bytes"),
)
"""A file that a worker wrote must not act in a browser as a page of this server."""


async def upload_artifact(state: AppState, request: HttpRequest) -> HttpResponse:
    try:
        return await _upload(state, request)
    except CodeqError as refusal:
        if not isinstance(refusal, TooSlow):
            await _skip_part(state, request)
        raise


async def _skip_part(state: AppState, request: HttpRequest) -> None:
    """Drops the rest of a refused part. Clients that send parts read the answer after they have sent all of one: if the
    connection was closed before, they would see no reason, and send it again."""
    length = request.headers.get(b"content-length")
    if length is not None and int(length) <= ARTIFACT_PART_BYTES and not request.expects_continue:
        async for _ in body_pieces(request, state.settings.http.body_timeout_seconds):
            pass


async def _upload(state: AppState, request: HttpRequest) -> HttpResponse:
    name, holder = request.params["name"], _holder(request)
    offset, length, is_complete = _announced(request)
    sha256 = wire.sha256_of(_header(request, wire.REPR_DIGEST, ""))
    await check_commands(state, request, [request.params["id"]])
    with state.uploads.held(request.tenant):
        upload = await begin_upload(
            state.core,
            request.tenant,
            request.params["id"],
            holder,
            name=name,
            content_type=_header(request, "content-type", "") or None,
            offset=offset,
            length=length,
        )
        try:
            async for piece in body_pieces(request, state.settings.http.body_timeout_seconds):
                await upload.write(piece)
            if not is_complete:
                return _upload_response(request, 202, wire.UploadView(name=name, offset=upload.offset, complete=False))
            artifact = await upload.finish(length=length, sha256=sha256)
        finally:
            upload.close()
    return _upload_response(request, 201, _complete_view(artifact))


class _Announced(NamedTuple):
    """What the headers say of the body: where it begins, how long the whole file is, and whether it ends the file."""

    offset: int
    length: int | None
    is_complete: bool


def _announced(request: HttpRequest) -> _Announced:
    offset, length = _number(request, wire.UPLOAD_OFFSET), _number(request, wire.UPLOAD_LENGTH)
    complete = _header(request, wire.UPLOAD_COMPLETE, "")
    is_complete = wire.is_complete(complete) if complete else None
    arriving = request.headers.get(b"content-length")
    ranged = _header(request, wire.CONTENT_RANGE, "")
    if ranged:
        start, end, size = wire.upload_range_of(ranged)
        is_last = None if size is None else end == size
        for announced, meant in ((offset, start), (length, size), (is_complete, is_last)):
            if None not in (announced, meant) and announced != meant:
                raise InvalidRequest("content-range and the upload headers contradict each other")
        if arriving is None or int(arriving) != end - start:
            raise InvalidRequest(f"content-range {ranged} needs a body with a content-length of {end - start}")
        offset, length = start, length if size is None else size
        is_complete = is_complete if is_last is None else is_last
    if is_complete is not False and length is None and arriving is not None:
        length = (offset or 0) + int(arriving)
    return _Announced(offset or 0, length, is_complete is not False)


async def list_artifacts(state: AppState, request: HttpRequest) -> HttpResponse:
    record = await visible_record(state, request, 0)
    views = [wire.artifact_view(record.task.id, artifact) for artifact in record.artifacts]
    return request.respond(200, wire.ArtifactViews(artifacts=views))


async def download_artifact(state: AppState, request: HttpRequest) -> HttpResponse:
    if request.query(LEASE_QUERY):
        return await _upload_state(state, request)
    record = await visible_record(state, request, 0)
    artifact = artifacts.find(record, request.params["name"])
    content = await artifacts.parts_of(state.core, record.task, artifact)
    wanted = _range(request, artifact)
    headers = [*_SAFE, *_headers_of(artifact)]
    if wanted is None:
        refused = request.respond(416, Problem(error=f"the artifact has {artifact.size} bytes", code="invalid"))
        refused.headers = [(b"content-range", b"bytes */%d" % artifact.size)]
        return refused
    start, end, status = wanted
    if status == 206:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, artifact.size)))
    response = HttpResponse(status, b"", artifact.content_type, headers, length=end - start)
    if request.method != "HEAD" and end > start:
        response.pieces = await _begun(state, request.tenant, content.read(start, end))
    return response


async def delete_artifact(state: AppState, request: HttpRequest) -> HttpResponse:
    holder = _holder(request)
    await check_commands(state, request, [request.params["id"]])
    await delete_upload(state.core, request.tenant, request.params["id"], holder, name=request.params["name"])
    return HttpResponse(204)


async def _upload_state(state: AppState, request: HttpRequest) -> HttpResponse:
    """Answers the worker that uploads how far it is, so that it can continue there."""
    name, task_id = request.params["name"], request.params["id"]
    await visible_record(state, request, 0)
    progress = await upload_progress(state.core, request.tenant, task_id, _holder(request), name=name)
    if progress.complete is not None:
        return _upload_response(request, 200, _complete_view(progress.complete))
    return _upload_response(request, 200, wire.UploadView(name=name, offset=progress.offset, complete=False))


def _complete_view(artifact: Artifact) -> wire.UploadView:
    return wire.UploadView(
        name=artifact.name,
        offset=artifact.size,
        complete=True,
        content_type=artifact.content_type,
        sha256=artifact.sha256,
    )


def _upload_response(request: HttpRequest, status: int, view: wire.UploadView) -> HttpResponse:
    response = request.respond(status, view)
    response.headers = [
        (b"upload-offset", str(view.offset).encode()),
        (b"upload-complete", b"?1" if view.complete else b"?0"),
    ]
    return response


async def _begun(state: AppState, tenant: str, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Reads the first piece, so that a failure still has a status of its own, and counts the download until its end."""
    with ExitStack() as stack:
        stack.enter_context(state.downloads.held(tenant))
        first = await anext(pieces)
        held = stack.pop_all()
    return _continued(first, pieces, held)


async def _continued(first: bytes, pieces: AsyncGenerator[bytes, None], held: ExitStack) -> AsyncGenerator[bytes, None]:
    with held:
        try:
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()


def _headers_of(artifact: Artifact) -> list[tuple[bytes, bytes]]:
    plain = re.sub(r"[^ !#-\[\]-~]", "_", artifact.name)
    named = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(artifact.name, safe='')}"
    return [
        (b"content-disposition", named.encode()),
        (b"etag", b'"%b"' % artifact.sha256.encode()),
        (b"repr-digest", wire.digest_header(artifact.sha256).encode()),
    ]


def _range(request: HttpRequest, artifact: Artifact) -> tuple[int, int, int] | None:
    """Returns first byte, end and status of what is asked for; None if there is no such range.

    As RFC 9110 allows, what is not one range of bytes is ignored, and so is one whose `If-Range` names something else.
    As it demands, ranges are for GET alone.
    """
    size, text = artifact.size, _header(request, "range", "") if request.method == "GET" else ""
    match = _RANGE.fullmatch(text)
    condition = _header(request, "if-range", f'"{artifact.sha256}"')
    if match is None or condition != f'"{artifact.sha256}"' or b"range" in request.repeated:
        return 0, size, 200
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return 0, size, 200
    return (start, end, 206) if start < end else None


def _holder(request: HttpRequest) -> Holder:
    token = request.query(LEASE_QUERY).get("leaseToken")
    number = None if token is None else whole_number(token, "leaseToken", 1, (1 << 63) - 1)
    return Holder(request.principal.subject, number)


def _number(request: HttpRequest, name: str) -> int | None:
    text = _header(request, name, "")
    return whole_number(text, name, 0, _BYTES_MAX) if text else None


def _header(request: HttpRequest, name: str, absent: str) -> str:
    key = name.encode()
    if key in request.repeated and name not in ("range", "if-range"):
        raise InvalidRequest(f"{name} is given twice")
    return request.headers.get(key, absent.encode()).decode("latin-1").strip()
