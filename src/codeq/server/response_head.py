"""Builds the head of a response: status line and headers, most of which stay the same for a second."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from codeq.server.request import HttpResponse

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class HasDefaultHeaders(Protocol):
    default_headers: list[tuple[bytes, bytes]]
    """The same list until the date in it changes."""


class ResponseHeads:
    """Heads are built as text, which Python joins and encodes in half the time of formatting bytes."""

    def __init__(self, server: HasDefaultHeaders) -> None:
        self._server = server
        self._defaults: Sequence[tuple[bytes, bytes]] = ()
        self._beginnings: dict[tuple[int, str], str] = {}

    def head(self, response: HttpResponse, request_id: str, *, closes: bool) -> bytes:
        defaults = self._server.default_headers
        if defaults is not self._defaults:
            self._defaults = defaults
            self._beginnings.clear()
        beginning = self._beginnings.get((response.status, response.content_type))
        if beginning is None:
            beginning = self._begin(response)
        rest = "connection: close\r\n" if closes else ""
        if response.headers:
            rest += _lines(response.headers)
        if response.status == 204:
            return f"{beginning}x-request-id: {request_id}\r\n{rest}\r\n".encode("latin-1")
        length = response.length or len(response.body)
        return f"{beginning}content-length: {length}\r\nx-request-id: {request_id}\r\n{rest}\r\n".encode("latin-1")

    def _begin(self, response: HttpResponse) -> str:
        pairs = [*self._defaults, (b"x-content-type-options", b"nosniff")]
        if response.status != 204:
            pairs.append((b"content-type", response.content_type.encode()))
        beginning = _STATUS_LINES[response.status] + _lines(pairs)
        self._beginnings[response.status, response.content_type] = beginning
        return beginning


def _lines(pairs: Sequence[tuple[bytes, bytes]]) -> str:
    return b"".join([b"%b: %b\r\n" % pair for pair in pairs]).decode("latin-1")
