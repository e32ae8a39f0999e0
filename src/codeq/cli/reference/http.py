"""The page of the HTTP API, made of the table of routes and the messages themselves."""

import enum
import re
from typing import Any

import msgspec
from msgspec import inspect

from codeq.cli.pages.sentences import field_notes, paragraphs, table
from codeq.server.auth.principal import Kind
from codeq.server.openapi import QUERY
from codeq.server.routes import ROUTES, Route
from codeq.wire import message, system, tasks
from codeq.wire.errors import STATUS

INTRODUCTION = """# The HTTP API

JSON in and out, names in camelCase. Send `Authorization: Bearer TOKEN`. A server has the same as data at
`/openapi.json`, and for people at `/docs`. Routes that take or give tasks also speak MessagePack
(`application/msgpack`), where a payload or a result is a byte string that holds JSON. This page is made by
`codeq reference http`.

Who may call: [what tokens need](../guides/server.md#who-may-call). Everything is inside the tenant of the token.

A refusal is `{{"error": "<text>", "code": "<code>"}}` with one of these statuses; [errors](errors.md) has what to do.
Any route that needs a token may answer 400, 401, 403, 413, 415, 429 and 503, and 408 where it takes a body. What a
route answers besides stands with it. A field that is not known is refused with 400. A *name* has 1 to 64 letters,
digits, `_`, `.` or `-`.

{codes}

## Routes

{overview}
"""

_WHO = {
    Kind.NONE: "everyone",
    Kind.PRODUCER: "producer",
    Kind.WORKER: "worker",
    Kind.ANY: "producer or worker",
    Kind.ADMIN: "admin",
}
_ITEMS: dict[Any, Any] = {tasks.CreateTasks: tasks.CreateTask, tasks.SubmitBatch: tasks.SubmitOf}
"""Messages whose items are read one by one, so that a bad one does not spoil the batch."""


def page() -> str:
    messages: dict[str, Any] = {}
    for route in ROUTES:
        for kind in (route.takes, _ITEMS.get(route.takes), *[given for _, given in route.gives]):
            _gather(kind, messages)
    _gather(system.Problem, messages)
    shown_above = {route.takes for route in ROUTES} - set(_ITEMS.values())
    rows = [(r.method, f"[`{r.path}`](#{_anchor(r)})", _WHO[r.kind], r.summary) for r in ROUTES]
    parts = [INTRODUCTION.format(codes=_codes(), overview=table("method", "path", "who", "what", rows=rows))]
    parts += [_section(route) for route in ROUTES]
    parts += ["## Messages\n"]
    parts += [_message(name, kind) for name, kind in sorted(messages.items()) if kind not in shown_above]
    return "\n".join(parts)


def _codes() -> str:
    by_status: dict[int, list[str]] = {}
    for kind, status in STATUS.items():
        if kind.code not in by_status.setdefault(status, []):
            by_status[status].append(kind.code)
    rows = [(str(status), ", ".join(f"`{code}`" for code in found)) for status, found in sorted(by_status.items())]
    return table("status", "codes", rows=rows)


def _anchor(route: Route) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", f"{route.method} {route.path}".lower()).replace(" ", "-")


def _section(route: Route) -> str:
    needs = [f"For: {_WHO[route.kind]}."]
    if route.scope:
        needs.append(f"Scope: `{route.scope}`.")
    if route.takes is not None:
        needs.append(f"Body: at most {_size(route.body_max)}.")
    told = f"Answers {' or '.join(_answer(status, kind) for status, kind in route.gives)}."
    if route.refuses:
        told += f" Refuses with {', '.join(map(str, route.refuses))} besides."
    parts = [f"### {route.method} {route.path}\n", f"{route.summary}. {' '.join(needs)}\n"]
    if route.query:
        asked = [(f"`{name}`", _of_schema(QUERY.get(name, {"type": "string"}))) for name in route.query]
        parts.append(table("query", "type", rows=asked) + "\n")
    if route.takes is not None:
        parts.append(_fields(route.takes))
    return "\n".join([*parts, told + "\n"])


def _answer(status: int, kind: Any) -> str:
    if status == 204:
        return "204 without a body"
    if kind is None:
        return str(status)
    return f"{status} with {_link(kind) if _is_struct(kind) else 'a map of text to whole number'}"


def _size(bytes_: int) -> str:
    return f"{bytes_ // (1 << 20)} MB" if bytes_ >= 1 << 20 else f"{bytes_ // 1024} KB"


def _of_schema(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    said = {"date-time": "RFC 3339 time"}.get(schema.get("format", ""), schema["type"])
    if "minimum" in schema:
        said += (
            f", {schema['minimum']} to {schema['maximum']}" if "maximum" in schema else f", from {schema['minimum']}"
        )
    return f"{said}, default {schema['default']}" if "default" in schema else said


def _message(name: str, kind: Any) -> str:
    said = paragraphs(kind) + "\n" if kind.__doc__ and not _is_inherited(kind) else ""
    return "\n".join(filter(None, [f"### {name}\n", said, _fields(kind)]))


def _fields(kind: Any) -> str:
    notes = field_notes(kind)
    is_request = issubclass(kind, message.Request)
    rows = []
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        shown = _shown(field.type)
        if kind in _ITEMS:
            shown = shown.replace("any JSON", _link(_ITEMS[kind]))
        presence = _default(field) if is_request else "" if field.required else "if any"
        rows.append((f"`{field.encode_name}`", shown, presence, notes.get(field.name, "")))
    return table("field", "type", "default" if is_request else "", "", rows=rows) + "\n"


def _is_inherited(kind: type) -> bool:
    return any(kind.__doc__ == parent.__doc__ for parent in kind.__mro__[1:])


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default in (msgspec.UNSET, msgspec.NODEFAULT, None):
        return ""
    return f"`{msgspec.json.encode(field.default).decode()}`" if not _is_struct(type(field.default)) else ""


def _shown(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        known = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        return " or ".join(_shown(part) for part in known)
    if isinstance(kind, inspect.StructType):
        return _link(kind.cls)
    if isinstance(kind, inspect.ListType):
        return f"list{_bounds(kind.min_length, kind.max_length)} of {_shown(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        return f"map of {_shown(kind.key_type)} to {_shown(kind.value_type)}"
    if isinstance(kind, inspect.StrType):
        if kind.pattern:
            return "name"
        return "text" + (f", at most {kind.max_length} characters" if kind.max_length else "")
    if isinstance(kind, (inspect.IntType, inspect.FloatType)):
        word = "whole number" if isinstance(kind, inspect.IntType) else "number"
        return word + _bounds(kind.ge, kind.le)
    return "true or false" if isinstance(kind, inspect.BoolType) else "any JSON"


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f", {least} to {most}" if least else f", 0 to {most}"
    if most is not None:
        return f", at most {most}"
    return f", from {least}" if least is not None else ""


def _gather(kind: Any, found: dict[str, Any]) -> None:
    """Every message that this one is made of, by name."""
    if not _is_struct(kind) or kind.__name__ in found:
        return
    found[kind.__name__] = kind
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        for part in _parts(field.type):
            _gather(part, found)


def _parts(kind: inspect.Type) -> list[Any]:
    if isinstance(kind, inspect.StructType):
        return [kind.cls]
    if isinstance(kind, inspect.UnionType):
        return [part for each in kind.types for part in _parts(each)]
    return _parts(kind.item_type) if isinstance(kind, inspect.ListType) else []


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not issubclass(kind, enum.Enum)


def _link(kind: Any) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"
