"""Describes the API by OpenAPI, from the route table and the wire structs, so that it cannot differ from them."""

import html
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from codeq.domain.limits import NAME_PATTERN
from codeq.server.auth.principal import TokenKind
from codeq.server.routes import Route
from codeq.wire.system import Problem

_ANY_JSON: dict[str, Any] = {}
QUERY: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
    "waitSeconds": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Longer than the server waits (results 60, events 30) means as long as it waits.",
    },
    "shard": {"type": "integer", "minimum": 0, "default": 0},
    "offset": {"type": "integer", "minimum": 0, "default": 1},
    "status": {"type": "string", "enum": ["PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED"]},
    "queue": {"type": "string", "enum": ["pending", "delayed", "in_progress", "dead", "none"]},
    "at": {"type": "string", "format": "date-time"},
    "includePayload": {"type": "boolean", "default": False},
    "createdFrom": {"type": "string", "format": "date-time"},
    "createdTo": {"type": "string", "format": "date-time"},
    "deletionPolicy": {"type": "string", "enum": ["Delete"]},
}
_EVERYWHERE = (400, 401, 403, 413, 415, 429, 503)


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    messages = [kind for route in routes for kind in (route.takes, *[message for _, message in route.gives]) if kind]
    schemas, components = msgspec.json.schema_components(
        [*messages, Problem], ref_template="#/components/schemas/{name}"
    )
    by_kind = dict(zip([str(kind) for kind in [*messages, Problem]], schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    for schema in components.values():
        _loosen(schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "codeQ", "version": version, "description": "A durable, multi-tenant task queue."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    refusal = {"description": "Refused", "content": {"application/json": {"schema": schemas[str(Problem)]}}}
    responses: dict[str, Any] = {}
    codes = set(route.refuses) | (set(_EVERYWHERE) if route.kind is not TokenKind.NONE else set())
    if route.method in ("POST", "PUT"):
        codes |= {408}
    for code in sorted(codes):
        responses[str(code)] = refusal
    for code, kind in route.gives:
        answer: dict[str, Any] = {"description": "Done"}
        if kind is not None:
            answer["content"] = {route.media: {"schema": schemas[str(kind)]}}
        elif code != 204:
            answer["content"] = {route.media: {"schema": _ANY_JSON}}
        responses[str(code)] = answer
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "tags": [route.kind.value],
        "responses": responses,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
            for name in re.findall(r"{(\w+)}", route.path)
        ]
        + [
            {"name": name, "in": "query", "required": False, "schema": QUERY.get(name, {"type": "string"})}
            for name in route.query
        ]
        + [{"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in route.headers],
    }
    if route.kind is not TokenKind.NONE:
        operation["security"] = [{"bearer": []}]
    if route.scope:
        operation["description"] = f"Needs the scope `{route.scope}`."
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[str(route.takes)]}},
        }
    return operation


def _path_schema(name: str) -> dict[str, Any]:
    if name == "id":
        return {"type": "string", "format": "uuid"}
    return {"type": "string", "pattern": f"^{NAME_PATTERN}$"}


def _loosen(schema: dict[str, Any]) -> None:
    """Describes `Raw` and `bytes` as any value, which they are in JSON; msgspec describes them for MessagePack."""
    for name, field in schema.get("properties", {}).items():
        if name in ("payload", "result") and "$ref" not in str(field):
            schema["properties"][name] = {"type": "string"} if schema["title"] == "TaskView" else _ANY_JSON


def page(description: dict[str, Any]) -> str:
    """Returns the description as one HTML page that loads nothing else."""
    sections = []
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            sections.append(_section(path, method, operation))
    names = sorted(description["components"]["schemas"].items())
    shapes = "".join(
        f'<details id="{html.escape(name)}"><summary><code>{html.escape(name)}</code></summary>'
        f"<pre>{html.escape(_pretty(schema))}</pre></details>"
        for name, schema in names
    )
    return _PAGE.replace("@SECTIONS@", "".join(sections)).replace("@SHAPES@", shapes)


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    takes = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    queries = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"]
    rows = "".join(
        f"<tr><td>{code}</td><td>{_link(answer)}</td></tr>"
        for code, answer in sorted(operation["responses"].items())
        if code[0] == "2"
    )
    others = ", ".join(code for code in sorted(operation["responses"]) if code[0] != "2")
    inputs = f"<p>Body: {_link({'content': {'j': {'schema': takes}}})}</p>" if takes else ""
    inputs += f"<p>Query: <code>{html.escape(', '.join(queries))}</code></p>" if queries else ""
    need = operation.get("description", "")
    return (
        f'<details><summary><b class="{method}">{method.upper()}</b> <code>{html.escape(path)}</code>'
        f"<span>{html.escape(operation['summary'])}</span></summary><div><p>For: {operation['tags'][0]}. "
        f"{html.escape(need)}</p>{inputs}<table>{rows}</table><p>Otherwise: {others or 'nothing'}</p></div></details>"
    )


def _link(answer: dict[str, Any]) -> str:
    for content in answer.get("content", {}).values():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        return f'<a href="#{name}"><code>{name}</code></a>' if name else "see the description"
    return "no body"


def _pretty(schema: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()


_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>codeQ API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
summary { cursor: pointer; padding: .5rem .7rem; } summary span { float: right; opacity: .7; }
details div { padding: 0 1rem .5rem; } pre { padding: 0 1rem 1rem; overflow: auto; margin: 0; }
b { display: inline-block; width: 4.2rem; font-size: .8rem; text-align: center; border-radius: 4px; color: #fff; }
.get { background: #2563a8; } .post { background: #2a7d46; }
.put { background: #a06213; } .delete { background: #a8323e; }
td { padding: .1rem 1rem .1rem 0; } code { font-size: .92em; }
</style></head><body><h1>codeQ API</h1>
<p>Send <code>Authorization: Bearer &lt;token&gt;</code>. JSON in and out; on tasks, MessagePack too
(<code>application/msgpack</code>). The same as data: <a href="/openapi.json">openapi.json</a>.</p>
@SECTIONS@<h2>Messages</h2>@SHAPES@</body></html>"""
