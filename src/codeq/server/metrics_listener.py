"""Serves /metrics on an address of its own, so that scrapes and callers can be let in by different rules."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from codeq.server.app import App
from codeq.server.connection import Connection
from codeq.server.connection_limit import ConnectionLimit
from codeq.server.response_head import ResponseHeads
from codeq.server.routes import ROUTES, Route
from codeq.server.server_context import ServerContext
from codeq.server.state import AppState
from codeq.wire import paths

SCRAPERS_MAX = 64
"""Connections of scrapers at once. They have a limit of their own, so that callers cannot shut them out."""


def public_routes(metrics_host: str) -> Sequence[Route]:
    """Returns the routes of the main listener: without /metrics, if that has an address of its own."""
    return [route for route in ROUTES if not metrics_host or route.path != paths.METRICS]


@asynccontextmanager
async def serving_metrics(
    state: AppState, listener: socket.socket | None, heads: ResponseHeads, on_failure: Callable[[], None]
) -> AsyncIterator[None]:
    """Serves scrapes inside the block; does nothing without a listener."""
    if listener is None:
        yield
        return
    routes = [route for route in ROUTES if route.path == paths.METRICS]
    app = App(state, routes, tasks=set(), on_failure=on_failure)
    connections: set[Any] = set()
    limit = ConnectionLimit(SCRAPERS_MAX, SCRAPERS_MAX)
    context = ServerContext(app.begin, state.settings.http, heads, connections, limit)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(context), sock=listener)
    try:
        yield
    finally:
        server.close()
        for connection in list(connections):
            connection.shutdown()
