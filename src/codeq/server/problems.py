"""Responses for requests that were refused or failed: status, `Problem` body and headers, decided in one place."""

import logging

import msgspec

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.server.logs import log
from codeq.server.request import HttpRequest, HttpResponse
from codeq.wire.errors import RateLimited, WrongMethod, status_of
from codeq.wire.system import Problem

_PUBLIC = {
    "busy": "the store is busy; try again in a moment",
    "full": "the store is full; new tasks are refused until space is freed",
}


def refusal(request: HttpRequest, fault: CodeqError) -> HttpResponse:
    status = status_of(fault)
    problem = Problem(error=str(fault), code=fault.code)
    if isinstance(fault, RateLimited):
        problem = msgspec.structs.replace(
            problem, scope=fault.scope, operation=fault.operation, retry_after_seconds=fault.retry_after_s
        )
    elif isinstance(fault, InvalidRequest) and " - at `$" in str(fault):
        problem = msgspec.structs.replace(problem, field=str(fault).rpartition(" - at `$")[2].strip("`."))
    elif status >= 500:
        problem = msgspec.structs.replace(problem, error=_public(fault), request_id=request.id)
        log(logging.ERROR, str(fault), request_id=request.id, code=fault.code)
    response = request.respond(status, problem)
    if isinstance(fault, RateLimited):
        response.headers = [(b"retry-after", str(fault.retry_after_s).encode())]
    elif status == 503:
        response.headers = [(b"retry-after", b"1")]
    elif status == 401:
        response.headers = [(b"www-authenticate", b"Bearer")]
    elif status in (408, 413):
        response.closes = True  # the rest of the body will not be read
    elif isinstance(fault, WrongMethod):
        response.headers = [(b"allow", str(fault).rpartition(": ")[2].encode())]
    return response


def internal_error(request: HttpRequest) -> HttpResponse:
    """Call it in an `except` block: the exception is logged, and the client gets only its request id."""
    log(logging.ERROR, "internal error", exc_info=True, request_id=request.id, path=request.path)
    return request.respond(500, Problem(error="internal error", code="internal", request_id=request.id))


def _public(fault: CodeqError) -> str:
    """What an outsider may know of a fault inside: no paths, no library's words."""
    return str(fault) if fault.code == "unavailable" else _PUBLIC.get(fault.code, "the store is not available")
