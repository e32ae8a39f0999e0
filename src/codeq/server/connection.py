"""One client connection: HTTP/1.1 in and out, with bounds on what a slow, dead or hostile client can hold.

A connection serves one request at a time and sends responses in the order of the requests. What a client pipelines
waits in the socket.

    ┌──────┐ bad HTTP, too slow  ┌──────────┐
    │ OPEN │────────────────────▶│ REFUSING │
    └──────┘                     └──────────┘
       │ a response that closes,       │ everything before the refusal is answered,
       │ shutdown, end of file         │ and the refusal is sent; shutdown, end of file
       ▼                               ▼
    ┌─────────────────────────────────────────┐ all is sent, or time is up  ┌──────┐
    │                 CLOSING                 │────────────────────────────▶│ LOST │
    └─────────────────────────────────────────┘                             └──────┘

A shutdown waits for the response under way, which is then the last.
From every state the transport may be lost. In each, `current` is the request that is being processed, if any.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from codeq.server.request import HttpRequest, HttpResponse
from codeq.server.request_reader import SLICE_BYTES, TOO_MANY_CONNECTIONS, TOO_SLOW, Refusal, RequestReader, Stage
from codeq.server.response_head import ResponseHeads
from codeq.server.settings import HttpSettings
from codeq.server.state import request_id


class State(IntEnum):
    """In the order in which a connection passes through them; it never returns to an earlier one.

    state       parses   begins requests   sends responses
    OPEN        yes      yes               yes
    REFUSING    no       those before      yes, then the refusal, then it closes
    CLOSING     no       no                no; the client has a while to read what was sent
    LOST        no       no                no
    """

    OPEN = 0
    REFUSING = 1
    CLOSING = 2
    LOST = 3


_OPEN, _REFUSING, _CLOSING, _LOST = State
_BETWEEN, _HEAD, _BODY = Stage
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What all connections of a server share."""

    begin: Callable[[HttpRequest], None]
    """Starts to process the request; the response is sent by `Connection.send`, now or later. Must not raise."""
    http: HttpSettings
    heads: ResponseHeads
    connections: set[Any]
    """The open connections."""

    def timeout_s(self, stage: Stage) -> float:
        """Returns the client's time limit: until its next request, for the rest of a head, for the rest of a body."""
        if stage is _BETWEEN:
            return self.http.idle_timeout_seconds
        return self.http.header_timeout_seconds if stage is _HEAD else self.http.body_timeout_seconds


class Connection(asyncio.Protocol):
    __slots__ = (
        "_context", "_deadline_s", "_is_advancing", "_is_read_paused", "_is_stopping", "_is_write_paused", "_loop",
        "_reader", "_state",
        "_timed", "_timer", "_transport", "current", "waiting",
    )  # fmt: skip

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader = RequestReader(self)
        self._state = _OPEN
        self.current: HttpRequest | None = None
        """The request that is being processed."""
        self.waiting: asyncio.Task[Any] | None = None
        """The task of a long poll; cancelled when the client disconnects."""
        self._is_advancing = False
        """Guards against recursion: a response that is sent at once would advance the connection again."""
        self._is_stopping = False
        """The server shuts down: the response under way is the last."""
        self._is_read_paused = False
        self._is_write_paused = False
        self._deadline_s = _NEVER
        self._timed: Stage = _HEAD
        """What the deadline is for."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        return self._state is _LOST

    # -- from the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._context.connections.add(self)
        if len(self._context.connections) > self._context.http.connections_max:
            self._refuse(TOO_MANY_CONNECTIONS)
            self._advance()
        else:
            self._set_deadline(self._context.timeout_s(_HEAD))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._state = _LOST
        self._context.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._reader.close()
        if self.waiting is not None:
            self.waiting.cancel()

    def data_received(self, data: bytes) -> None:
        if self._state >= _REFUSING:
            return
        reader = self._reader
        if len(data) <= SLICE_BYTES and not reader.unparsed:
            self._parse(data)
        else:
            reader.unparsed = memoryview(bytes(reader.unparsed) + data)
        self._advance()

    def eof_received(self) -> None:
        self._state = max(self._state, _CLOSING)  # the transport closes now

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._advance()

    # -- from the server and the app -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Closes as soon as the current request, if there is one, has its response."""
        self._is_stopping = True
        if self.current is None:
            self._close()

    def abort(self) -> None:
        self._state = max(self._state, _CLOSING)
        self._transport.abort()

    def send(self, request: HttpRequest, response: HttpResponse) -> None:
        """Sends the response to the current request in one write, and continues with the next request."""
        if self._state >= _CLOSING:
            return
        is_unread = self._reader.arriving is request
        is_last = (
            response.closes or self._is_stopping or not request.keeps_alive or (is_unread and request.expects_continue)
        )
        head = self._context.heads.head(response, request.id, closes=is_last)
        self._transport.write(head if request.method == "HEAD" else head + response.body)
        self.current = None
        if is_unread:
            self._reader.drop_body()
        if is_last:
            self._close()
        else:
            self._advance()

    async def body(self, request: HttpRequest, most: int) -> bytes | None:
        """Returns the body of the current request, as soon as it is complete; None if it is longer than `most`."""
        if self._state is _LOST:
            raise asyncio.CancelledError
        reader = self._reader
        if reader.arriving is request:
            if request.expects_continue:
                request.expects_continue = False
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            reader.body_max = most
            ready = reader.body_ready = self._loop.create_future()
            self._advance()
            await ready
            if reader.arriving is request:
                return None
        return request.body if len(request.body) <= most else None

    # -- private -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Parses while no request waits, begins what may begin, and reads as long as memory stays bounded."""
        if self._is_advancing:
            return
        self._is_advancing = True
        reader = self._reader
        while self._state < _CLOSING:
            if reader.unparsed and not reader.complete and not reader.is_ahead:
                data, reader.unparsed = reader.unparsed[:SLICE_BYTES], reader.unparsed[SLICE_BYTES:]
                self._parse(data)
            elif self.current is not None or self._is_write_paused:
                break
            elif reader.complete:
                self._begin(reader.complete.popleft())
            elif self._state is _REFUSING:
                self._send_refusal()
            elif reader.arriving is not None:
                self._begin(reader.arriving)
            else:
                break
        self._is_advancing = False
        if self._state < _CLOSING:
            self._set_bounds()

    def _parse(self, data: bytes | memoryview) -> None:
        self._reader.feed(data)
        if self._reader.refusal is not None:
            self._refuse(self._reader.refusal)

    def _begin(self, request: HttpRequest) -> None:
        self.current = request
        self._deadline_s, self._timed = _NEVER, _BETWEEN
        self._context.begin(request)

    def _refuse(self, refusal: Refusal) -> None:
        """Sends the refusal and closes, once every request before it has its response."""
        if self._state >= _REFUSING:
            return
        self._state = _REFUSING
        reader = self._reader
        reader.refuse(refusal)
        if reader.arriving is self.current:
            self.current = None  # its body will never be complete, so this is its response
        else:
            reader.drop_body()

    def _send_refusal(self) -> None:
        refusal = self._reader.refusal or TOO_SLOW
        response = HttpResponse(refusal.status, refusal.body)
        self._transport.write(self._context.heads.head(response, request_id(), closes=True) + refusal.body)
        self._close()

    def _close(self) -> None:
        self._state = max(self._state, _CLOSING)
        self._reader.complete.clear()
        self._set_deadline(self._context.http.idle_timeout_seconds)
        self._transport.close()

    def _set_bounds(self) -> None:
        """Pauses reading while enough has arrived, and sets the deadline for what the client must send or read next."""
        reader = self._reader
        is_ahead = (
            bool(reader.unparsed or reader.complete)
            or self._state is _REFUSING
            or self._is_write_paused
            or reader.is_ahead
        )
        if is_ahead != self._is_read_paused:
            self._is_read_paused = is_ahead
            if is_ahead:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if self.current is not None:
            return
        stage = _BETWEEN if self._is_write_paused else reader.stage
        if stage is _BETWEEN or stage is not self._timed:  # else it runs already, and a few bytes do not prolong it
            self._set_deadline(self._context.timeout_s(stage))
        self._timed = stage

    def _set_deadline(self, seconds: float) -> None:
        """Moves the deadline and leaves the timer running: it checks again when it fires, so that requests in quick
        succession need no timer each."""
        self._deadline_s = deadline_s = self._loop.time() + seconds
        timer = self._timer
        if timer is None:
            self._timer = self._loop.call_at(deadline_s, self._check_deadline)
        elif timer.when() > deadline_s:
            timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._state is _LOST or self._deadline_s == _NEVER:
            return
        if self._deadline_s > self._loop.time() + 0.001:
            self._timer = self._loop.call_at(self._deadline_s, self._check_deadline)
        elif self._timed is _HEAD and self._state < _CLOSING:
            self._refuse(TOO_SLOW)
            self._advance()
        else:
            # Not closed gracefully: a client that does not read would keep the connection open with its unread data.
            self.abort()
