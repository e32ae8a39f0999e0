"""Builds the head of a response: status line and headers, most of which stay the same for a second."""

from collections.abc import Callable, Sequence
from http import HTTPStatus

from codeq.server.request import HttpResponse

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class ResponseHeads:
    def __init__(self, default_headers: Callable[[], Sequence[tuple[bytes, bytes]]]) -> None:
        """`default_headers` returns the same list until the date in it changes."""
        self._default_headers = default_headers
        self._defaults: Sequence[tuple[bytes, bytes]] = ()
        self._beginnings: dict[tuple[int, str], bytes] = {}

    def head(self, response: HttpResponse, request_id: str, *, closes: bool) -> bytes:
        defaults = self._default_headers()
        if defaults is not self._defaults:
            self._defaults = defaults
            self._beginnings.clear()
        beginning = self._beginnings.get((response.status, response.content_type))
        if beginning is None:
            beginning = self._begin(response)
        rest = b"connection: close\r\n" if closes else b""
        for pair in response.headers:
            rest += b"%b: %b\r\n" % pair
        if response.status == 204:
            return b"%bx-request-id: %b\r\n%b\r\n" % (beginning, request_id.encode(), rest)
        return b"%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n" % (
            beginning, response.length or len(response.body), request_id.encode(), rest,
        )  # fmt: skip

    def _begin(self, response: HttpResponse) -> bytes:
        pairs = [*self._defaults, (b"x-content-type-options", b"nosniff")]
        if response.status != 204:
            pairs.append((b"content-type", response.content_type.encode()))
        beginning = _STATUS_LINES[response.status] + b"".join([b"%b: %b\r\n" % pair for pair in pairs])
        self._beginnings[response.status, response.content_type] = beginning
        return beginning
