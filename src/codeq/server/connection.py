"""One client connection: HTTP/1.1 in and out, with bounds on what a slow, dead or hostile client can hold.

A connection serves one request at a time and sends responses in the order of the requests. What a client pipelines
waits here, up to `bounds.AHEAD_BYTES_MAX`, then in the socket.

    ┌──────┐ bad HTTP, too slow  ┌──────────┐
    │ OPEN │────────────────────▶│ REFUSING │
    └──────┘                     └──────────┘
       │ a response that closes,       │ everything before the refusal is answered,
       │ shutdown, half-closed and     │ and the refusal is sent; shutdown
       │ everything is answered        │
       ▼                               ▼
    ┌─────────────────────────────────────────┐ all is sent, or time is up  ┌──────┐
    │                 CLOSING                 │────────────────────────────▶│ LOST │
    └─────────────────────────────────────────┘                             └──────┘

A shutdown waits for the response under way, which is then the last.
From every state the transport may be lost. In each, `current` is the request that is being processed, if any.

A client that closes its half of the connection (an end of file in OPEN or REFUSING) may still read, or may be gone:
TCP does not tell before something is sent. RFC 9112, section 9.6, lets a client half-close, so every complete request
gets its response, long polls without waiting, and then the connection closes. Go does the same; nginx gives such a
client up. If the client resets the connection instead of acknowledging the response to a claim, the tasks return to
their queue. A reset cancels long polls and claims at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from codeq.server import connection_bounds as bounds
from codeq.server.admission import CROWD
from codeq.server.connection_bounds import State
from codeq.server.delivery import confirm
from codeq.server.request import LARGE_BYTES, HttpRequest, HttpResponse
from codeq.server.request_reader import (
    INCOMPLETE,
    TOO_MANY_CONNECTIONS,
    TOO_SLOW,
    Refusal,
    RequestReader,
    Stage,
)
from codeq.server.server_context import ServerContext
from codeq.server.state import request_id

_OPEN, _REFUSING, _CLOSING, _LOST = State
_BETWEEN, _HEAD, _BODY, _READING = Stage
_NEVER = float("inf")
_STEPS, _FEW_STEPS = range(bounds.STEPS_MAX), range(bounds.FEW_STEPS_MAX)


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_confirming", "_context", "_deadline_s", "_dropped_bytes", "_is_advancing", "_is_read_paused", "_is_stopping",
        "_loop", "_sent_s", "_state", "_timed", "_timer", "_unread_bytes", "authorization", "current", "is_half_closed",
        "is_long_poll", "is_write_paused", "on_undelivered", "peer", "reader", "received_bytes", "resumed", "tenant",
        "token", "transport", "waiting", "waits_for_turn",
    )  # fmt: skip

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.reader = RequestReader(self)
        self._state = _OPEN
        self.current: HttpRequest | None = None  # the request that is being processed
        self.waiting: asyncio.Task[Any] | None = None  # of a long poll or a claim; cancelled when the client leaves
        self.is_long_poll = False  # whether `waiting` is also cancelled when the client closes its half
        self.is_half_closed = False  # the client sends nothing more
        self.on_undelivered: Sequence[Callable[[], Awaitable[None]]] = ()
        """What to call if the last responses turn out not to reach the client."""
        self._sent_s = 0.0
        self._confirming: asyncio.Task[None] | None = None
        self.peer = ""  # the address of the client, without its port
        self.tenant = ""
        """The tenant of the last authenticated request; it is counted as this tenant's connection."""
        self.authorization, self.token = b"", ""
        """The last valid header, and the token in it."""
        self._is_advancing = False
        """Guards against recursion: a response that is sent at once would advance the connection again."""
        self._is_stopping = False  # the server shuts down: the response under way is the last
        self._is_read_paused = self.is_write_paused = False
        self.received_bytes, self.waits_for_turn = 0, False  # of the present piece; to go on
        self.resumed: asyncio.Future[None] | None = None
        """Done when the client has read what was written, or has left."""
        self._deadline_s = _NEVER
        self._timed: Stage | None = _HEAD  # what the deadline is for
        self._unread_bytes = 0  # what the client had not taken of the responses when the deadline was set
        self._dropped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        return self._state is _LOST

    # -- from the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._context.connections.add(self)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else ""
        if not self._context.limit.add(self.peer):
            self._refuse(TOO_MANY_CONNECTIONS)
            self._advance(_STEPS)
        else:
            self._set_deadline(self._context.timeout_s(_HEAD))

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _LOST
        self._end_pause()
        if exc is not None and self._loop.time() - self._sent_s < bounds.RESET_S_MAX:
            self._return_undelivered()
        self._context.connections.discard(self)
        self._context.limit.remove(self.peer)
        self._context.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        self.reader.close()
        if self.waiting is not None:
            self._context.pacer.run(self._end_wait)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._context.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._context.read_buffer[:nbytes])
        reader = self.reader
        if nbytes == bounds.RECEIVE_BYTES:  # else the socket is empty
            self._context.inflow.count(self, nbytes)
        if self._state is _OPEN and nbytes <= reader.slice_bytes and not reader.unparsed and not reader.complete:
            reader.feed(data)
            if reader.refusal is not None:
                self._refuse(reader.refusal)
        elif self._state < _CLOSING:
            reader.unparsed += data
        else:
            self._dropped_bytes += nbytes
            if self._dropped_bytes > bounds.LINGER_BYTES_MAX:
                self.abort()
            return
        self.advance()

    def take_turn(self) -> None:
        """Does the next steps, or receives the next piece: it is this connection's turn."""
        self.waits_for_turn = False
        if self._is_advancing:
            self._advance(_STEPS)
        elif self._state < _CLOSING:
            self._set_bounds()
        if self._state >= _CLOSING:
            self.pause_reading(False)

    def eof_received(self) -> bool:
        """Keeps the transport open, to send what is due."""
        self.is_half_closed = True
        if self._state >= _CLOSING:
            self.transport.close()
            return True
        self._refuse_incomplete()
        if self.waiting is not None and self.is_long_poll:
            self._context.pacer.run(self._end_wait)
        self.advance()
        return True

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._end_pause()
        self.advance()

    # -- from the server and the app -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Closes as soon as the current request, if any, has its response."""
        self._is_stopping = True
        if self._state is _CLOSING and self._confirming is None:
            self.transport.close()
        elif self.current is None:
            self._close()

    def abort(self) -> None:
        self._state = max(self._state, _CLOSING)
        self.transport.abort()

    def send(self, request: HttpRequest, response: HttpResponse) -> bool | None:
        """Sends the response to the current request in one write, and continues with the next request; of a response
        in pieces, only the head. Returns whether it is the last of the connection; None if it could not be sent."""
        if self._state >= _CLOSING or request is not self.current:
            self._return_undelivered()
            return None
        is_unread = self.reader.arriving is request
        is_last = (
            response.closes
            or self._is_stopping
            or not request.keeps_alive
            or (is_unread and (request.expects_continue or not self.reader.can_skip))
        )
        head = self._context.heads.head(response, request.id, closes=is_last)
        if len(response.body) > LARGE_BYTES and request.method != "HEAD":
            self.transport.write(head)
            self.transport.write(memoryview(response.body))  # apart and as a view: joining and slicing would copy it
        else:
            self.transport.write(head if request.method == "HEAD" else head + response.body)
        if response.pieces is None or request.method == "HEAD":
            self.finish(request, is_last=is_last)
        return is_last

    def finish(self, request: HttpRequest, *, is_last: bool) -> None:
        """Continues with the next request after all of a response was written, or closes."""
        is_unread = self.reader.arriving is request
        self.current = None
        if self.on_undelivered:
            self._sent_s = self._loop.time()
            if self.transport.is_closing():  # the client had reset the connection
                self._return_undelivered()
        if is_unread:
            self.reader.drop_body()
        if is_last:
            self._close()
        elif not self._is_advancing:
            reader = self.reader
            if reader.unparsed or reader.complete or reader.arriving or self._state or self.is_half_closed:
                self.advance()
            else:  # most clients wait for a response before they send the next request
                self._set_bounds()

    # -- private -------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Parses while no request waits, begins what may begin, and reads as long as memory stays bounded."""
        if self._is_advancing:
            return
        context = self._context
        if self.current is None and len(context.connections) > CROWD and not context.admission.admits(self):
            self._is_advancing = True  # nothing continues before its turn
        else:
            self._advance(_FEW_STEPS if context.inflow.is_busy else _STEPS)

    def _advance(self, steps: range) -> None:
        self._is_advancing = True
        reader = self.reader
        for _ in steps:
            is_busy = self.current is not None and not reader.unparsed
            if is_busy or self._state >= _CLOSING or not self._step():
                break
        else:
            self._context.inflow.wait(self)
            return  # still advancing: nothing else continues before
        self._is_advancing = False
        if self._state < _CLOSING:
            self._set_bounds()

    def _step(self) -> bool:
        """Parses a piece, begins one request or ends the connection. Returns False if there is nothing to do now."""
        reader = self.reader
        if reader.unparsed and self._state is _OPEN and not reader.complete and not reader.is_ahead:
            self._parse(reader.next_slice())
        elif self.current is not None or self.is_write_paused:
            return False
        elif reader.complete:
            self._begin(reader.complete.popleft())
        elif self._state is _REFUSING:
            self._send_refusal()
        elif reader.arriving is not None:
            self._begin(reader.arriving)
        elif self.is_half_closed:
            self._close()
        else:
            return False
        return True

    def _parse(self, data: bytes) -> None:
        self.reader.feed(data)
        if self.reader.refusal is not None:
            self._refuse(self.reader.refusal)
        elif self.is_half_closed:
            self._refuse_incomplete()

    def _begin(self, request: HttpRequest) -> None:
        self.current = request
        if self.on_undelivered and not self.is_half_closed:
            self.on_undelivered = ()
        self._deadline_s, self._timed = _NEVER, None
        self._context.begin(request)

    def _refuse(self, refusal: Refusal) -> None:
        """Sends the refusal and closes, once every request before it has its response."""
        if self._state >= _REFUSING:
            return
        self._state = _REFUSING
        reader = self.reader
        reader.refuse(refusal)
        if reader.arriving is self.current:
            self.current = None  # its body will never be complete, so this is its response
        else:
            reader.drop_body()

    def _refuse_incomplete(self) -> None:
        """Refuses a request of a half-closed client whose end will not arrive."""
        if not self.reader.unparsed and self.reader.is_cut_off:
            self._refuse(INCOMPLETE)

    def _send_refusal(self) -> None:
        response = (self.reader.refusal or TOO_SLOW).response
        self.transport.write(self._context.heads.head(response, request_id(), closes=True) + response.body)
        self._close()

    def _close(self) -> None:
        """Sends what is left, and closes. If more may arrive, it is read and dropped for a while."""
        if self._state >= _CLOSING:
            return
        self._state = _CLOSING
        reader = self.reader
        lingers = (
            not self.is_half_closed
            and reader.refusal is not TOO_MANY_CONNECTIONS
            and bool(reader.stage is not _BETWEEN or reader.refusal or reader.unparsed or self._is_read_paused)
        )
        reader.complete.clear()
        reader.unparsed.clear()
        self._timed, self._unread_bytes = _READING, self.transport.get_write_buffer_size()
        idle_s = self._context.http.idle_timeout_seconds
        self._set_deadline(min(bounds.LINGER_S_MAX, idle_s) if lingers and not self._unread_bytes else idle_s)
        if lingers:
            self.transport.write_eof()
            self.pause_reading(self.waits_for_turn)
        elif self.on_undelivered:
            self._return_undelivered()
        else:
            self.transport.close()

    def _return_undelivered(self) -> None:
        if self.on_undelivered and self._confirming is None:
            self._confirming = self._loop.create_task(confirm(self))

    def _end_pause(self) -> None:
        if self.resumed is not None and not self.resumed.done():
            self.resumed.set_result(None)

    def _end_wait(self) -> None:
        """Cancels the call of a client that has left, or the wait of one that may have."""
        if self.waiting is not None and (self.is_lost or self.is_long_poll):
            self.waiting.cancel()

    def pause_reading(self, pause: bool) -> None:
        if pause != self._is_read_paused:
            self._is_read_paused = pause
            (self.transport.pause_reading if pause else self.transport.resume_reading)()

    def _set_bounds(self) -> None:
        """Pauses reading while enough has arrived, and sets the deadline for what the client must send or read next."""
        reader = self.reader
        if not self.is_half_closed:
            is_ahead = reader.body_bytes > reader.body_max or len(reader.unparsed) > bounds.AHEAD_BYTES_MAX
            if (is_ahead or self.is_write_paused or self.waits_for_turn) is not self._is_read_paused:
                self.pause_reading(not self._is_read_paused)
        if self.current is not None:
            return
        stage = _READING if self.is_write_paused else reader.stage
        if stage is not self._timed:  # else it runs already, and a few bytes do not prolong it
            self._timed = stage
            self._unread_bytes = self.transport.get_write_buffer_size() if stage is _READING else 0
            self._set_deadline(self._context.timeout_s(stage))

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
            self.advance()
        elif self._timed is _READING and self._has_read():
            self._set_deadline(self._context.timeout_s(_READING))
        else:
            # Not closed gracefully: a client that does not read would keep the connection open with its unread data.
            self.abort()

    def _has_read(self) -> bool:
        """Returns whether the client has read enough of its responses since this was last asked."""
        before, self._unread_bytes = self._unread_bytes, self.transport.get_write_buffer_size()
        return before - self._unread_bytes >= bounds.READ_BYTES_MIN
