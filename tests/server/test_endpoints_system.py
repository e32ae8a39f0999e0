"""Routes for machines: health, readiness, the API description. For metrics see test_observability.py."""

import html
import re
from typing import Any

import httpx
import jsonschema_rs
import jwt
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31
from tests.server.server_process import Server, answered, start_server

import codeq
from codeq.server.auth.principal import TokenKind
from codeq.server.routes import ROUTES
from codeq.wire import paths


def test_a_server_that_answers_is_alive(server: Server) -> None:
    assert answered(server.request("GET", paths.HEALTHZ, token=None), 200) == {"status": "ok"}


def test_a_server_whose_disk_takes_writes_is_ready_and_says_how_durable_it_is(server: Server) -> None:
    ready = answered(server.request("GET", paths.READYZ, token=None), 200)
    assert ready["status"] == "ready"
    assert (ready["durability"] == "fsync") == ready["survives"].endswith(" and power loss")


@pytest.mark.parametrize("path", [paths.HEALTHZ, paths.READYZ, paths.OPENAPI, paths.DOCS, paths.JWKS, paths.TASKS])
def test_head_is_answered_as_get_without_the_body(server: Server, path: str) -> None:
    """RFC 9110, 9.3.2: balancers and monitors probe with it."""
    whole, head = server.request("GET", path), server.request("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert head.headers["content-type"] == whole.headers["content-type"]


def test_head_of_metrics_has_no_body(server: Server) -> None:
    head = server.request("HEAD", paths.METRICS, token=None)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 1000


def test_head_is_refused_as_get_is(server: Server) -> None:
    assert server.request("HEAD", paths.TASKS, token=None).status_code == 401
    assert server.request("HEAD", "/nothing").status_code == 404
    refused = server.request("HEAD", paths.CLAIM)
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")


def test_the_description_is_valid_openapi(server: Server) -> None:
    description = answered(server.request("GET", paths.OPENAPI, token=None), 200)
    assert description["info"] == {
        "title": "codeQ", "version": codeq.__version__, "description": description["info"]["description"],
    }  # fmt: skip
    jsonschema_rs.validate(OPENAPI_31, description)
    for schema in description["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_the_description_holds_every_route_and_no_other(server: Server) -> None:
    described = answered(server.request("GET", paths.OPENAPI, token=None), 200)["paths"]
    found = {(method.upper(), path) for path, operations in described.items() for method in operations}
    assert found == {(route.method, route.path) for route in ROUTES}
    ids = [operation["operationId"] for operations in described.values() for operation in operations.values()]
    assert len(set(ids)) == len(ids)


def test_the_description_says_who_may_call_and_what_they_send(server: Server) -> None:
    described = answered(server.request("GET", paths.OPENAPI, token=None), 200)["paths"]
    for route in ROUTES:
        operation = described[route.path][route.method.lower()]
        assert ("security" in operation) == (route.kind is not TokenKind.NONE)
        assert ("requestBody" in operation) == (route.takes is not None)
        assert {str(status) for status, _ in route.gives} <= set(operation["responses"])
        named = {parameter["name"]: parameter["in"] for parameter in operation["parameters"]}
        wanted = dict.fromkeys(re.findall(r"{(\w+)}", route.path), "path") | dict.fromkeys(route.query, "query")
        assert named == wanted | dict.fromkeys(route.headers, "header")


def test_every_reference_of_the_description_leads_somewhere(server: Server) -> None:
    answer = server.request("GET", paths.OPENAPI, token=None)
    schemas = answered(answer, 200)["components"]["schemas"]
    assert set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', answer.text)) <= set(schemas)


def test_the_page_for_people_names_every_route_and_needs_nothing_from_anywhere(server: Server) -> None:
    answer = server.request("GET", paths.DOCS, token=None)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    for route in ROUTES:
        assert html.escape(route.path) in answer.text
        assert html.escape(route.summary) in answer.text
    assert not re.search(r"<script|https?://|src=|@import|url\(", answer.text)


def test_a_development_server_shows_the_key_that_its_tokens_are_signed_with(server: Server) -> None:
    [key] = answered(server.request("GET", paths.JWKS, token=None), 200)["keys"]
    assert (key["kty"], key["alg"], "d" in key) == ("OKP", "EdDSA", False)
    token = server.token("acme")
    claims: dict[str, Any] = jwt.decode(token, jwt.PyJWK(key).key, algorithms=["EdDSA"], audience="codeq")
    assert claims["tid"] == "acme"


def test_another_server_shows_no_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = {"provider": "static", "config": {"token": "secret", "raw": {"tid": "a"}}}
    settings = {"auth": {"producer": secret, "producers_may_work": True}}
    with start_server(tmp_path_factory.mktemp("static"), dev=False, settings=settings) as own:
        answer = own.request("GET", paths.JWKS, token=None)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
        assert own.request("GET", paths.TASKS, token="secret").status_code == 200
        assert own.request("GET", paths.TASKS).status_code == 401, "the development token is for --dev alone"


def test_every_answer_says_that_its_type_is_not_to_be_guessed(server: Server) -> None:
    for path in (paths.HEALTHZ, paths.OPENAPI, paths.DOCS, paths.METRICS, paths.TASKS, "/nothing"):
        assert server.request("GET", path).headers["x-content-type-options"] == "nosniff"


def test_no_answer_says_what_software_gave_it(server: Server) -> None:
    assert "server" not in server.request("GET", paths.HEALTHZ).headers


def test_one_connection_serves_many_requests_at_a_time(server: Server) -> None:
    with httpx.Client(base_url=server.base, limits=httpx.Limits(max_connections=1), trust_env=False) as client:
        assert [client.get(paths.HEALTHZ).status_code for _ in range(20)] == [200] * 20
