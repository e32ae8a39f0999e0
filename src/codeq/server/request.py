"""One HTTP request as the server processes it, its parsed body, and its response."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.principal import Principal
from codeq.wire.errors import WrongMedia

if TYPE_CHECKING:
    from codeq.server.state import AppState

JSON, MSGPACK = "application/json", "application/msgpack"
DEPTH_MAX = 32

Message = TypeVar("Message")
Handler = Callable[["AppState", "HttpRequest"], Awaitable["HttpResponse"]]

_json_encode = msgspec.json.Encoder().encode
_msgpack_encode = msgspec.msgpack.Encoder().encode
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NONE: Mapping[str, str] = {}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class HttpResponse(Struct, gc=False):
    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: list[tuple[bytes, bytes]] = []
    closes: bool = False
    """Whether the connection closes after this response."""


class Parser:
    """Decodes one kind of message from JSON or MessagePack, with decoders built once."""

    def __init__(self, plain: Any, packed: Any = None) -> None:
        self.message = plain
        self._json = msgspec.json.Decoder(plain).decode
        self._msgpack = msgspec.msgpack.Decoder(packed or plain).decode

    def parse(self, body: bytes | msgspec.Raw, *, packed: bool) -> Any:
        try:
            return self._msgpack(body) if packed else self._json(body)
        except msgspec.ValidationError as fault:
            raise InvalidRequest(str(fault)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as fault:
            raise InvalidRequest(f"the body cannot be read: {fault}") from None


class BatchParser:
    """Decodes a batch in one pass. Where that fails, item by item, so that the bad ones are known."""

    def __init__(self, items: Parser, item: Parser, whole: Parser, nested: Callable[[Any], bytes]) -> None:
        self._items = items
        self._item = item
        self._whole = whole
        self._nested = nested

    def parse(self, request: "HttpRequest") -> list[Any]:
        """Returns per item the message, or the refusal."""
        packed = request.is_packed
        body = request.body or (b"\x80" if packed else b"{}")
        try:
            [messages] = msgspec.structs.astuple(self._whole.parse(body, packed=packed))
        except InvalidRequest:
            [items] = msgspec.structs.astuple(self._items.parse(body, packed=packed))
            return [self._parse_item(item, packed=packed) for item in items]
        return messages if packed else [self._checked(message) for message in messages]

    def _parse_item(self, item: msgspec.Raw, *, packed: bool) -> Any:
        try:
            if not packed:
                check_depth(bytes(item))
            return self._item.parse(item, packed=packed)
        except InvalidRequest as refusal:
            return refusal

    def _checked(self, message: Any) -> Any:
        try:
            check_depth(self._nested(message), DEPTH_MAX - 1)
        except InvalidRequest as refusal:
            return refusal
        return message


class HttpRequest:
    """What a handler needs of a request. One is made per request, so it stays small."""

    __slots__ = (
        "body", "connection", "expects_continue", "headers", "id", "is_complete", "keeps_alive", "method", "params",
        "path", "principal", "query_string", "repeated", "route", "started_s",
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
    def authorization(self) -> str:
        """Returns the header as it was sent; only for a request that has been authenticated."""
        return self.headers[b"authorization"].decode("latin-1")

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
        if not packed:
            check_depth(self.body)
        return parser.parse(self.body or (b"\x80" if packed else b"{}"), packed=packed)

    def respond(self, status: int, message: Any) -> HttpResponse:
        if self.wants_packed:
            return HttpResponse(status, _msgpack_encode(message), MSGPACK)
        return HttpResponse(status, _json_encode(message))

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

    async def unless_disconnected(self, waiting: Awaitable[Message]) -> Message:
        """Awaits it, and cancels it when the client disconnects."""
        self.connection.waiting = asyncio.current_task()
        try:
            return await waiting
        finally:
            self.connection.waiting = None


NOBODY = Principal()


def check_depth(body: bytes, most: int = DEPTH_MAX) -> None:
    """Refuses JSON nested deeper than `most`. Few brackets mean little depth, so most bodies are only counted."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    depth = 0
    for bracket in _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
            raise InvalidRequest(f"the body is nested deeper than {DEPTH_MAX} levels")


def json_value(raw: bytes, what: str) -> bytes:
    """Returns the bytes of JSON that all parsers read alike: valid text, numbers in range, no half surrogates."""
    try:
        value = msgspec.json.decode(raw)
        if b"\\u" in raw and _SURROGATE.search(raw):
            msgspec.json.encode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as fault:
        raise InvalidRequest(f"the {what} is not JSON that can be kept: {fault}") from None
    return bytes(raw)


def whole_number(value: str, what: str, least: int, most: int) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 19 or not least <= int(value) <= most:
        raise InvalidRequest(f"{what} must be a whole number from {least} to {most}, not {value[:40]!r}")
    return int(value)
