"""The HTTP service: it accepts webhooks and shows reviews. Plain ASGI, served by uvicorn.

POST /hooks/github|gitlab|gitea   202 a new review, 200 a known one or nothing to review,
                                  401 wrong signature, 404, 408, 413, 415, 422, 503 not recorded: send it again
GET  /                            all reviews
GET  /reviews/<id>                one review
GET  /healthz                     200
"""

import asyncio
import logging
import re
import socket
import sqlite3
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn

from . import page
from .database import Database
from .providers import Ignored, Malformed, read_request
from .queues import open_queue
from .relay import Relay
from .reviews import now_ms
from .settings import Settings
from .signatures import Headers, is_genuine

BODY_BYTES_MAX = 5_000_000
"""Five times the largest push that providers list commit by commit; bounds what a stranger makes us hold."""
BODY_S_MAX = 10.0
CONNECTIONS_MAX = 200
log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = "application/json"


class Refused(Exception):
    """The request is answered with this status and this reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class App:
    """The ASGI application."""

    def __init__(self, settings: Settings, database: Database, relay: Relay) -> None:
        self._settings = settings
        self._database = database
        self._relay = relay

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        try:
            answer = await self._answer(scope, receive)
        except Refused as refusal:
            answer = _json(refusal.status, {"error": str(refusal)})
        except sqlite3.OperationalError as fault:
            log.warning("the database does not answer: %s", fault)
            answer = _json(503, {"error": "not recorded, send it again"})
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            (b"content-security-policy", page.CONTENT_SECURITY_POLICY.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        if hook := re.fullmatch(r"/hooks/([a-z]{1,20})", path):
            if method != "POST":
                raise Refused(405, "webhooks are sent with POST")
            return await self._hook(hook[1], dict(scope["headers"]), receive)
        if method not in ("GET", "HEAD"):
            raise Refused(405, "pages are read with GET")
        if path == "/":
            return await asyncio.to_thread(self._list)
        if review := re.fullmatch(r"/reviews/([0-9]{1,15})", path):
            return await asyncio.to_thread(self._review, int(review[1]))
        if path == "/healthz":
            return _json(200, {"status": "ok"})
        return _html(404, page.message_page("There is no such page"))

    async def _hook(self, provider: str, headers: Headers, receive: Receive) -> Answer:
        """Accepts a webhook: signature, content, transaction. The queue is not part of it, and may be down."""
        secret = self._settings.secrets.get(provider)
        if secret is None:
            raise Refused(404, "no webhooks are accepted here")
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise Refused(415, "set the content type of the webhook to application/json")
        body = await _read_body(headers, receive)
        if not is_genuine(provider, secret, headers, body):
            raise Refused(401, "the signature is missing or wrong")
        try:
            request = read_request(provider, headers, body)
        except Ignored as reason:
            return _json(200, {"ignored": str(reason)})
        except Malformed as fault:
            raise Refused(422, str(fault)) from fault
        review_id, is_new = await asyncio.to_thread(self._database.record, request, now_ms())
        if is_new:
            self._relay.wake()
        return _json(202 if is_new else 200, {"review": review_id, "isNew": is_new})

    def _list(self) -> Answer:
        reviews, counts = self._database.reviews(), self._database.counts()
        return _html(200, page.list_page(reviews, counts, trouble=self._relay.trouble, now_ms=now_ms()))

    def _review(self, review_id: int) -> Answer:
        found = self._database.review(review_id)
        if found is None:
            return _html(404, page.message_page("There is no such review"))
        review, findings = found
        return _html(200, page.review_page(review, findings, now_ms()))


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    """Returns the body. Refuses one that is too long before it is read where the length was sent, else on the way."""
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) > BODY_BYTES_MAX:
        raise Refused(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the sender left")
                body += message.get("body", b"")
                if len(body) > BODY_BYTES_MAX:
                    raise Refused(413, f"a body has at most {BODY_BYTES_MAX} bytes")
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None


def _json(status: int, content: Any) -> Answer:
    return Answer(status, msgspec.json.encode(content))


def _html(status: int, content: str) -> Answer:
    return Answer(status, content.encode("utf-8", "backslashreplace"), "text/html; charset=utf-8")


async def run_web(settings: Settings) -> None:
    """Serves until SIGTERM or Ctrl-C, with the relay beside it. Port 0 takes a free one."""
    database = Database(settings.database)
    queue = open_queue(settings.queue, lock_s=settings.lock_s)
    relay = Relay(database, queue, offer_again_s=settings.offer_again_s)
    with socket.create_server((settings.host, settings.port)) as listener:
        print(f"reviews at http://{settings.host}:{listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(
            App(settings, database, relay),
            lifespan="off",
            ws="none",
            log_level="warning",
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        relaying = asyncio.create_task(relay.run())
        # A service that records and never offers would look healthy, so it ends with its relay.
        relaying.add_done_callback(lambda _: setattr(server, "should_exit", True))
        try:
            await server.serve([listener])
        finally:
            relaying.cancel()
            await queue.close()
    if not relaying.cancelled() and (fault := relaying.exception()):
        raise fault
