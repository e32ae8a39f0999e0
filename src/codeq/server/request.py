"""One HTTP request as the server processes it, its parsed body, and its response."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import PAYLOAD_BYTES_MAX
from codeq.server.auth.principal import Principal
from codeq.server.json_content import PIECEWISE_BYTES, Content
from codeq.server.json_items import split_items
from codeq.usecases.budget import LoopBudget
from codeq.wire.errors import WrongMedia

if TYPE_CHECKING:
    from codeq.server.state import AppState

JSON, MSGPACK = "application/json", "application/msgpack"
LARGE_BYTES = 256 * 1024
"""Longer requests and responses are processed in pieces; a shorter one takes a millisecond or two."""
WHOLE_BYTES = 1 << 20
"""A longer batch is not decoded in one call: the decoder reads a megabyte in up to four milliseconds."""
SHORT_BYTES = 16 * 1024
"""A longer batch waits for its turn before it is decoded: even this much takes a few milliseconds at worst."""
ITEM_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
"""As for the body of one task: escapes may double a payload's length."""

Message = TypeVar("Message")
Refused = TypeVar("Refused")
Done = TypeVar("Done")
Handler = Callable[["AppState", "HttpRequest"], Awaitable["HttpResponse"]]
InstantHandler = Callable[["AppState", "HttpRequest"], "HttpResponse"]
"""A handler that never waits."""

_json_encode = msgspec.json.Encoder().encode
_msgpack_encode = msgspec.msgpack.Encoder().encode
_NONE: Mapping[str, str] = {}


class HttpResponse(Struct, gc=False):
    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: list[tuple[bytes, bytes]] = []
    closes: bool = False
    """Whether the connection closes after this response."""
    pieces: AsyncGenerator[bytes, None] | None = None
    """The body instead, of `length` bytes, where it is too long for memory."""
    length: int = 0


class Parser:
    """Decodes one kind of message from JSON or MessagePack, and checks the JSON that is its content."""

    def __init__(self, plain: Any, packed: Any = None, *, content: Content | None = None) -> None:
        self.message = plain
        self.content = content
        self._json = msgspec.json.Decoder(plain).decode
        self._msgpack = msgspec.msgpack.Decoder(packed or plain).decode

    def parse(self, body: bytes | msgspec.Raw, *, packed: bool) -> Any:
        message = self.decode(body, packed=packed)
        if self.content is not None:
            self.content.check(message)
        return message

    async def parse_in_pieces(self, body: bytes, budget: LoopBudget, *, packed: bool) -> Any:
        """As `parse`, and other calls run in between."""
        await budget.yield_if_spent()
        message = self.decode(body, packed=packed)
        if self.content is not None:
            await self.content.check_in_pieces(message, budget)
        return message

    def decode(self, body: bytes | msgspec.Raw, *, packed: bool) -> Any:
        try:
            return self._msgpack(body) if packed else self._json(body)
        except msgspec.ValidationError as fault:
            raise InvalidRequest(str(fault)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as fault:
            raise InvalidRequest(f"the body cannot be read: {fault}") from None


class BatchParser:
    """Decodes a batch in one pass. Where that fails, item by item, so that the bad ones are known.

    A large batch in JSON is split first: decoding all of it at once would hold the event loop.
    """

    def __init__(self, items: Parser, item: Parser, whole: Parser) -> None:
        self._items = items
        self._item = item
        self._whole = whole
        assert item.content is not None  # noqa: S101 - the items of every batch have content
        self._content = item.content

    async def parse(self, request: "HttpRequest", budget: LoopBudget) -> list[Any]:
        """Returns per item the message, or the refusal."""
        packed = request.is_packed
        body = request.body or (b"\x80" if packed else b"{}")
        if len(body) > SHORT_BYTES:
            await budget.yield_if_spent()
        if len(body) > WHOLE_BYTES and not packed:
            return await self._parse_split(body, budget)
        try:
            [messages] = msgspec.structs.astuple(self._whole.decode(body, packed=packed))
        except InvalidRequest:
            if len(body) > WHOLE_BYTES:
                raise
            [items] = msgspec.structs.astuple(self._items.decode(body, packed=packed))
            return [await self._parse_item(item, budget, packed=packed) for item in items]
        return await self._checked(messages, budget)

    async def _parse_split(self, body: bytes, budget: LoopBudget) -> list[Any]:
        [field] = self._items.message.__struct_fields__
        messages: list[Any] = []
        for item in split_items(body, field):
            if item is not None:
                messages.append(await self._parse_item(item, budget, packed=False))
            await budget.yield_if_spent()
        if not messages:
            raise InvalidRequest("a batch has at least one item")
        return messages

    async def _parse_item(self, item: msgspec.Raw | memoryview, budget: LoopBudget, *, packed: bool) -> Any:
        view = memoryview(item)
        if len(view) > ITEM_BYTES_MAX:
            return InvalidRequest(f"one item of a batch has at most {ITEM_BYTES_MAX} bytes, not {len(view)}")
        try:
            return await self._item.parse_in_pieces(bytes(view), budget, packed=packed)
        except InvalidRequest as refusal:
            return refusal

    async def _checked(self, messages: list[Any], budget: LoopBudget) -> list[Any]:
        """Replaces the messages whose content is not acceptable by the refusal."""
        content_of, check_small = self._content.of, self._content.check_small
        checked_bytes = 0
        for place, message in enumerate(messages):
            content = content_of(message)
            if not content:
                continue
            raw = bytes(content)
            checked_bytes += len(raw)
            if checked_bytes > PIECEWISE_BYTES:
                checked_bytes = len(raw)
                await budget.yield_if_spent()
            try:
                if check_small(raw):
                    for _ in self._content.check_large(raw):
                        await budget.yield_if_spent()
            except InvalidRequest as refusal:
                messages[place] = refusal
        return messages


def in_places(refused: Sequence[Refused | None], done: Sequence[Done]) -> Sequence[Refused | Done]:
    """Returns the answers to all items of a batch: the refusals, and in the other places what was done, in order."""
    if not any(refused):
        return done
    left = iter(done)
    return [refusal or next(left) for refusal in refused]


ENCODED_AT_ONCE, ENCODED_BYTES = 16, 64 << 10
"""Items of a long answer that are encoded by one call, while they are small."""


class HttpRequest:
    """What a handler needs of a request. One is made per request, so it stays small."""

    __slots__ = (
        "body", "connection", "expects_continue", "headers", "id", "is_complete", "keeps_alive", "method", "params",
        "path", "principal", "query_string", "repeated", "reserved_bytes", "returns_tasks", "route", "started_s",
    )  # fmt: skip

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], query_string: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.query_string = query_string
        self.params: Mapping[str, str] = _NONE
        self.repeated: Sequence[bytes] = ()
        """Names of headers that were sent more than once; `headers` has the last of each."""
        self.body = b""
        self.is_complete = False
        """Whether all of the body has arrived."""
        self.reserved_bytes = 0
        """What the body takes of the budget for bodies."""
        self.returns_tasks: Callable[[], Awaitable[None]] | None = None
        """What to call if the answer to a claim cannot be sent."""
        self.keeps_alive = True
        self.expects_continue = False
        self.id = ""
        self.started_s = 0.0
        self.connection: Any = None
        self.route: Any = None
        self.principal: Principal = NOBODY

    @property
    def tenant(self) -> str:
        return self.principal.tenant

    @property
    def is_packed(self) -> bool:
        """Whether the body is MessagePack."""
        kind = self.headers.get(b"content-type")
        if kind is None or kind.startswith((b"application/json", b"text/", b"application/x-www-form-urlencoded")):
            return False  # curl -d sends the media type of a form, with a body in JSON
        if kind.startswith((b"application/msgpack", b"application/x-msgpack", b"application/vnd.msgpack")):
            return True
        raise WrongMedia(f"send {JSON} or {MSGPACK}")

    @property
    def wants_packed(self) -> bool:
        accept = self.headers.get(b"accept")
        return accept is not None and b"msgpack" in accept

    def parse(self, parser: Parser) -> Any:
        packed = self.is_packed
        return parser.parse(self.body or (b"\x80" if packed else b"{}"), packed=packed)

    async def parse_in_turn(self, parser: Parser, budget: LoopBudget) -> Any:
        """As `parse`. A long body waits for its turn: many may arrive in the same iteration of the event loop."""
        if len(self.body) > SHORT_BYTES:
            await budget.yield_if_spent()
        return self.parse(parser)

    async def parse_in_pieces(self, parser: Parser, budget: LoopBudget) -> Any:
        """As `parse`, and other calls run in between."""
        packed = self.is_packed
        return await parser.parse_in_pieces(self.body or (b"\x80" if packed else b"{}"), budget, packed=packed)

    @property
    def encoder(self) -> Callable[[Any], bytes]:
        return _msgpack_encode if self.wants_packed else _json_encode

    def respond(self, status: int, message: Any) -> HttpResponse:
        if self.wants_packed:
            return HttpResponse(status, _msgpack_encode(message), MSGPACK)
        return HttpResponse(status, _json_encode(message))

    async def respond_in_pieces(
        self,
        status: int,
        items: Iterable[Any],
        whole: Callable[[list[Any]], Any],
        budget: LoopBudget,
        *,
        is_piece: bool = False,
    ) -> HttpResponse:
        """Responds with `whole` of the items, a few of them encoded at once, and other calls run in between. If they
        `fit_into_piece`, all are encoded at once, when other calls have run."""
        await budget.yield_if_spent()
        if is_piece:
            return self.respond(status, whole(list(items)))
        encoded: list[bytes] = []
        left = iter(items)
        if self.wants_packed:  # the parts of a list cannot be joined
            for item in left:
                encoded.append(self.encoder(item))
                if budget.is_spent:
                    await budget.yield_if_spent()
            return self.respond_encoded(status, encoded, whole)
        at_once = 1
        while group := list(islice(left, at_once)):
            encoded.append(_json_encode(group)[1:-1])
            at_once = min(2 * at_once, ENCODED_AT_ONCE) if len(encoded[-1]) < ENCODED_BYTES else 1
            if budget.is_spent:
                await budget.yield_if_spent()
        return self.respond_encoded(status, encoded, whole)

    def respond_encoded(self, status: int, items: Sequence[bytes], whole: Callable[[list[Any]], Any]) -> HttpResponse:
        """Responds with `whole` of items that are encoded already; the list of them is its first list."""
        if self.wants_packed:
            return self.respond(status, whole([msgspec.Raw(item) for item in items]))
        before, _, after = _json_encode(whole([])).partition(b"[]")
        parts = [part for item in items for part in (b",", item)]
        return HttpResponse(status, b"".join([before, b"[", *parts[1:], b"]", after]))  # one copy of a long answer

    def query(self, allowed: tuple[str, ...], *, repeated: tuple[str, ...] = ()) -> dict[str, str]:
        """Returns the query parameters. An unknown or repeated one is refused; those of `repeated` may be repeated, and
        are joined by commas."""
        if not self.query_string:
            return {}
        try:
            pairs = parse_qsl(
                self.query_string.decode("ascii"), keep_blank_values=True, max_num_fields=32, errors="strict"
            )
        except ValueError as fault:
            raise InvalidRequest(f"the query cannot be read: {fault}") from None
        found: dict[str, str] = {}
        for name, value in pairs:
            if name in repeated and name in found:
                found[name] += f",{value}"
                continue
            if name not in allowed or name in found:
                raise InvalidRequest(
                    f"query parameter {name[:40]!r} is unknown or given twice; known: {', '.join(allowed)}"
                )
            found[name] = value
        return found

    async def unless_disconnected(self, call: Callable[[int], Awaitable[Message]], wait_ms: int) -> Message:
        """Awaits the call, and cancels it when the client disconnects. When the client closes its half of the
        connection, the wait ends: the call is repeated without one."""
        connection, task = self.connection, asyncio.current_task()
        connection.waiting = task
        try:
            if wait_ms and not connection.is_half_closed:
                connection.is_long_poll = True
                try:
                    return await call(wait_ms)
                except asyncio.CancelledError:
                    if task is None or connection.is_lost or not connection.is_half_closed:
                        raise
                    task.uncancel()
                finally:
                    connection.is_long_poll = False
            return await call(0)
        finally:
            connection.waiting = None


NOBODY = Principal()


def whole_number(value: str, what: str, least: int, most: int) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 19 or not least <= int(value) <= most:
        raise InvalidRequest(f"{what} must be a whole number from {least} to {most}, not {value[:40]!r}")
    return int(value)
