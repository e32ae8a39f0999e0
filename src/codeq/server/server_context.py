"""What all connections of a server share: who processes their requests, their settings, and how many there are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from codeq.server.admission import Admission
from codeq.server.connection_bounds import RECEIVE_BYTES
from codeq.server.connection_limit import ConnectionLimit
from codeq.server.inflow import Inflow
from codeq.server.request import HttpRequest
from codeq.server.request_reader import Stage
from codeq.server.response_head import ResponseHeads
from codeq.server.settings import HttpSettings
from codeq.usecases.pacer import Pacer

_HEAD, _BODY = Stage.HEAD, Stage.BODY


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What all connections of a server share."""

    begin: Callable[[HttpRequest], None]
    """Starts to process the request; the response is sent by `Connection.send`, now or later. Must not raise."""
    http: HttpSettings
    heads: ResponseHeads
    connections: set[Any]
    """The open connections."""
    limit: ConnectionLimit
    pacer: Pacer = field(default_factory=Pacer)
    """Ends the long polls of clients that leave: thousands may leave at once."""
    inflow: Inflow = field(default_factory=Inflow)
    """Which of them receives next, of those that send much."""
    admission: Admission = field(default_factory=Admission)
    """Which of them begins a request now, if they are many."""
    lost: Callable[[Any], None] = lambda _: None
    """Called when a connection is lost, with the connection."""
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(RECEIVE_BYTES)))
    """What any of them receives into. It is copied before the next one receives."""

    def timeout_s(self, stage: Stage) -> float:
        """Returns the client's time limit for what it has to do next."""
        if stage is _HEAD:
            return self.http.header_timeout_seconds
        return self.http.body_timeout_seconds if stage is _BODY else self.http.idle_timeout_seconds
