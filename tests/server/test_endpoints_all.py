"""Runs after all other tests of this folder: was every route called, and did every response match the description?"""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from tests.server.server_process import EXERCISED, Server, answered
from tests.server.stores import ENGINE

from codeq.server.auth.principal import TokenKind
from codeq.server.openapi import describe
from codeq.server.routes import ROUTES
from codeq.wire import paths

NEEDED = ["test_auth.py", *sorted(path.name for path in Path(__file__).parent.glob("test_endpoints_*.py"))]

NOT_HERE = {507: "needs a full disk; see tests/system"}
"""Statuses that no test here can cause."""

NOT_ON_REDIS = {paths.BACKUP: {200, 409}}
"""Statuses of routes that make files of RocksDB."""

ALSO = {400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503}
"""Statuses of any route besides those in its row of the table."""


@pytest.fixture(autouse=True)
def _all_others_ran(request: pytest.FixtureRequest) -> None:
    collected = {item.path.name for item in request.session.items}
    missing = [name for name in NEEDED if name not in collected]
    if missing or request.config.option.keyword:
        pytest.skip(f"this looks back at {', '.join(NEEDED)}; run all of them")


def test_every_route_was_called_and_gave_every_answer_that_it_may_give() -> None:
    missing = {
        f"{route.method} {route.path}": unseen
        for route in ROUTES
        if (
            unseen := {status for status, _ in route.gives}.union(route.refuses)
            - set(EXERCISED[route.method, route.path])
            - set(NOT_HERE)
            - (NOT_ON_REDIS.get(route.path, set()) if ENGINE == "redis" else set())
        )
    }
    assert not missing, "write a test that makes the server answer so"


def test_no_route_gave_an_answer_that_the_table_does_not_know() -> None:
    unknown = {
        f"{route.method} {route.path}": surprising
        for route in ROUTES
        if (
            surprising := set(EXERCISED[route.method, route.path])
            - {status for status, _ in route.gives}.union(route.refuses)
            - (ALSO if route.kind is not TokenKind.NONE else {405, 408, 431, 503})
        )
    }
    assert not unknown


def test_every_answer_looks_as_the_description_says(server: Server) -> None:
    description = answered(server.request("GET", paths.OPENAPI, token=None), 200)
    assert description == json.loads(msgspec.json.encode(describe(ROUTES, description["info"]["version"])))
    wrong = []
    for (method, path), by_status in EXERCISED.items():
        responses = description["paths"][path][method.lower()]["responses"]
        for status, bodies in by_status.items():
            schema = _schema(description, responses.get(str(status)))
            if schema is not None:
                validator = jsonschema_rs.Draft202012Validator(schema)
                wrong += [
                    f"{method} {path} {status}: {fault.message} at {fault.instance_path}"
                    for body in bodies
                    for fault in validator.iter_errors(json.loads(body))
                ]
    assert not wrong


def _schema(description: dict[str, Any], response: dict[str, Any] | None) -> dict[str, Any] | None:
    content = (response or {}).get("content", {}).get("application/json")
    return None if content is None else {**content["schema"], "components": description["components"]}
