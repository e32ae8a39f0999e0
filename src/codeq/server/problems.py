"""Responses for requests that were refused or failed: status, `Problem` body and headers, decided in one place."""

import logging

from codeq.domain.errors import CodeqError, InvalidRequest, QuotaExceeded, UploadOffset
from codeq.server.logs import log
from codeq.server.request import HttpRequest, HttpResponse
from codeq.wire.errors import RateLimited, WrongMethod, status_of
from codeq.wire.system import Problem

_PUBLIC = {
    "busy": "the store is busy; try again in a moment",
    "full": "the store is full; new tasks and files of results are refused until space is freed",
    "store-unavailable": "the store does not answer, so whether the call took effect is unknown; repeat it",
}


def refusal(request: HttpRequest, fault: CodeqError) -> HttpResponse:
    status, text = status_of(fault), str(fault)
    response = request.respond(status, _problem(request, fault, status))
    if isinstance(fault, RateLimited | QuotaExceeded):
        if fault.retry_after_s:
            response.headers = [(b"retry-after", str(fault.retry_after_s).encode())]
        response.closes = isinstance(fault, QuotaExceeded) and fault.limit == "connections"
    elif isinstance(fault, UploadOffset):
        response.headers = [(b"upload-offset", str(fault.offset).encode())]
    elif status == 503:
        response.headers = [(b"retry-after", b"1")]
    elif status == 401:
        response.headers = [(b"www-authenticate", b"Bearer")]
    elif status in (408, 413):
        response.closes = True  # the rest of the body will not be read
    elif isinstance(fault, WrongMethod):
        response.headers = [(b"allow", text.rpartition(": ")[2].encode())]
    return response


def _problem(request: HttpRequest, fault: CodeqError, status: int) -> Problem:
    text = str(fault)
    if isinstance(fault, RateLimited):
        retry_s = fault.retry_after_s
        return Problem(
            error=text, code=fault.code, scope=fault.scope, operation=fault.operation, retry_after_seconds=retry_s
        )
    if isinstance(fault, QuotaExceeded):
        return Problem(
            error=text, code=fault.code, limit=fault.limit or None, retry_after_seconds=fault.retry_after_s or None
        )
    if isinstance(fault, UploadOffset):
        return Problem(error=text, code=fault.code, offset=fault.offset)
    if status >= 500:
        log(logging.ERROR, text, request_id=request.id, code=fault.code)
        return Problem(error=_public(fault), code=fault.code, request_id=request.id)
    is_field = isinstance(fault, InvalidRequest) and " - at `$" in text
    return Problem(error=text, code=fault.code, field=text.rpartition(" - at `$")[2].strip("`.") if is_field else None)


def internal_error(request: HttpRequest) -> HttpResponse:
    """Logs the exception of the enclosing `except` block; the response has only the request id."""
    log(logging.ERROR, "internal error", exc_info=True, request_id=request.id, path=request.path)
    return request.respond(500, Problem(error="internal error", code="internal", request_id=request.id))


def _public(fault: CodeqError) -> str:
    """Returns the text of an internal fault for outsiders: no paths, no library's message."""
    return str(fault) if fault.code == "unavailable" else _PUBLIC.get(fault.code, "the store is not available")
