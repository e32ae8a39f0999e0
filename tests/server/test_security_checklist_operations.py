"""The security checklist, one test per number: the rate limiter (53), pages (73, 75) and operations (77 to 88).

Not here: 72, 74 and 76, because there is no dashboard, and 86, which is in the tests of Redis.
"""

import ast
import asyncio
import json
import os
import re
import stat
import statistics
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.server.in_process_server import InProcessServer
from tests.server.otlp_collector import collecting
from tests.server.server_process import (
    Caller,
    Server,
    Tenant,
    answered,
    at,
    eventually,
    refused,
    run_codeq,
    start_server,
)
from tests.server.stores import on_rocksdb
from typer.testing import CliRunner

import codeq
from codeq.cli.main import app
from codeq.domain.errors import InvalidRequest
from codeq.server import dev, ratelimit
from codeq.server.auth.principal import Principal, TokenKind
from codeq.server.logs import VALUE_CHARS_MAX
from codeq.server.ratelimit import Charge, Rate, RateLimiter
from codeq.server.routes import ROUTES
from codeq.store.rocksdb.database import Database
from codeq.wire import events as wire_events
from codeq.wire import paths
from codeq.wire.errors import RateLimited

PROJECT = Path(__file__).parents[2]
PACKAGE = Path(codeq.__file__).parent
UNKNOWN = "01a1e1de-0000-7001-8390-3d3777730000"
DONE = {"status": "COMPLETED", "result": {}}


def static(token: str, *scopes: str) -> dict[str, Any]:
    options = {"token": token, "subject": "s", "scopes": list(scopes), "eventTypes": ["*"], "raw": {"tid": "acme"}}
    return {"provider": "static", "config": options}


def config_check(file: Path) -> tuple[int, str]:
    """Runs `codeq config check` without the settings of this machine. Returns its exit code and standard error."""
    env = {name: None for name in os.environ if name.startswith("CODEQ_")}
    done = CliRunner().invoke(app, ["config", "check", "--config", str(file)], env=env)
    return done.exit_code, done.stderr


def both(provider: dict[str, Any]) -> dict[str, Any]:
    return {"auth": {"producer": provider, "worker": provider}}


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"log": {"access": "all", "level": "debug"}}
    with start_server(tmp_path_factory.mktemp("talkative"), settings=settings) as running:
        yield running


@cache
def modules() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    return ((ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call))


# The limiter, the page, other origins


def test_check_53_the_limiter_needs_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets are in memory, so no backend can be down; they are bounded, and a dropped one counts as full."""
    monkeypatch.setattr(ratelimit, "BUCKETS_MAX", 10)
    charge, rate = Charge("read", "get"), Rate(requests_per_minute=1, burst_size=1)
    limiter = RateLimiter({"read": rate}, {}, clock=lambda: 1000.0)
    callers = [Principal(tenant="acme", subject=str(number)) for number in range(100)]
    for caller in callers:
        limiter.spend(charge, caller)
    for caller in callers[90:]:
        with pytest.raises(RateLimited):
            limiter.spend(charge, caller)
    limiter.spend(charge, callers[0])
    assert "With RocksDB buckets are in memory" in (PROJECT / "docs" / "guides" / "server.md").read_text()


def test_check_73_headers_of_the_page(server: Server) -> None:
    """Stricter than the check: the page has no script at all. HSTS is for the proxy that ends TLS."""
    answer = server.request("GET", paths.DOCS, token=None)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", policy.pop("style-src"))
    assert policy == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert not re.search(r"<script|<link|<img|<iframe|\bsrc=|\bon\w+=|@import|url\(|javascript:", answer.text)


def test_check_75_other_origins(tenant: Tenant) -> None:
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}
    for origin in ("https://evil.test", "null", tenant.server.base):
        for method, path in (("GET", paths.TASKS), ("GET", paths.DOCS), ("POST", paths.TASKS), ("GET", "/nothing")):
            answer = tenant.producer.request(method, path, headers={"Origin": origin})
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        for path in (paths.TASKS, at(paths.TOPIC, "work"), paths.HEALTHZ):
            answer = tenant.server.request("OPTIONS", path, token=None, headers={"Origin": origin, **asked})
            refused(answer, 405, "method-not-allowed")
            assert not [name for name in answer.headers if name.startswith("access-control-")]


# Secrets and logs


def test_check_77_canaries(tmp_path: Path) -> None:
    secret, payload = "canary-token-4711", "canary-payload-4712"
    with collecting() as collector:
        settings = both(static(secret, "codeq:claim", "codeq:nack", "codeq:result", "codeq:admin", "codeq:create"))
        settings |= {"log": {"access": "all", "level": "debug"}}
        settings |= {"tracing": {"enabled": True, "endpoint": collector.endpoint}}
        with start_server(tmp_path, dev=False, settings=settings, env={"OTEL_BSP_SCHEDULE_DELAY": "50"}) as own:
            caller = Caller(own, secret)
            body = {"command": "work", "payload": {"canary": payload}, "idempotencyKey": "canary-key"}
            task = answered(caller.post(paths.TASKS, body), 202)
            answered(caller.post(paths.CLAIM, {}), 200)
            shown = [
                caller.post(paths.TASKS, body | {"priority": payload}),
                caller.post(paths.TASKS, content=f'{{"command":"work","payload":"{payload}'.encode()),
                caller.post(at(paths.NACK, task["id"]), {"leaseToken": 99, "reason": payload}),
                own.request("GET", paths.TASKS, token=f"{secret}-almost"),
                own.request("GET", f"{paths.TASKS}?access_token={secret}", token=None),
                own.request("GET", paths.TASKS, token=None, headers={"Cookie": f"token={secret}"}),
            ]
            outcome = {"status": "COMPLETED", "result": {"canary": payload}}
            answered(caller.post(at(paths.RESULT, task["id"]), outcome), 200)
            shown += [caller.get(path) for path in (paths.METRICS, paths.EVENTS, paths.QUEUES, paths.ADMIN_QUEUES)]
            eventually(lambda: collector.named("codeq.task.submit_result"), 20)
            assert own.stop() == 0
    texts = [own.log_text(), (tmp_path / "stdout.log").read_text(), repr(collector.spans)]
    texts += [answer.text + str(answer.headers) for answer in shown]
    assert [answer.status_code for answer in shown] == [400, 400, 403, 401, 401, 401, 200, 200, 200, 200]
    assert not [text for text in texts if "canary" in text]


def test_check_78_forged_log_lines(talkative: Server) -> None:
    evil = 'x"}\n{"level":"critical","message":"forged"}\x1b[31m\u2028'
    tenant = talkative.tenant()
    for value in ("a b", "x" * 65, "a;b", 'a"b', "<b>", "{}", "%0a", ""):
        answer = tenant.producer.request("GET", at(paths.TASK, "%0a%1b[31m%7b"), headers={"X-Request-Id": value})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    tenant.producer.post(paths.TASKS, {"command": evil, "payload": evil})
    tenant.producer.post(paths.TASKS, {"command": "x" * 1_000_000, "payload": 1})
    tenant.worker.post(at(paths.NACK, tenant.held()["id"]), {"reason": evil * 1000})
    last = talkative.request("GET", paths.HEALTHZ).headers["x-request-id"]
    text = eventually(lambda: last in talkative.log_text() and talkative.log_text())
    assert isinstance(text, str)
    for line in text.splitlines():
        assert line.isascii()
        assert line.isprintable()
        fields = json.loads(line)
        assert fields["message"] != "forged"
        assert all(len(value) <= VALUE_CHARS_MAX for value in fields.values() if isinstance(value, str))


PUBLIC_COMPARISONS = {"server/auth/static.py": ["token == DEV_TOKEN"], "server/auth/jwks.py": ["token.count('.') != 2"]}
"""With the token of development servers, which everybody knows and which is refused, and with a number of dots."""


def test_check_79_secrets_are_compared_in_constant_time() -> None:
    """No `==` with a token, secret or signature in the server; JWTs are verified by PyJWT and cryptography."""
    found: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in ast.walk(tree) if name.startswith("server/") else ():
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                text = ast.unparse(node)
                if re.search(r"(?i)\b_?(token|secret|signature|digest|password)\b", re.sub(r"'[^']*'", "", text)):
                    found.setdefault(name, []).append(text)
    assert found == PUBLIC_COMPARISONS
    for name in ("server/auth/static.py", "server/handlers/system.py"):
        assert "compare_digest" in (PACKAGE / name).read_text()


# Operations


def test_check_80_unsafe_settings(tmp_path: Path) -> None:
    """There is no `env=prod`: a server without --dev is one. It has neither debug routes nor webhooks."""
    public = {"http": {"host": "0.0.0.0"}}
    unsafe: dict[str, dict[str, Any]] = {
        "auth.producer.provider is not set": {},
        "auth.worker.provider is not set": {"auth": {"producer": static("x" * 16)}},
        "everybody knows the token": both(static("dev-token")),
        "16 characters": both(static("short")) | public,
        "https": both({"config": {"jwksUrl": "http://id.test/keys", "issuer": "i", "audience": "a"}}),
    }
    file = tmp_path / "codeq.yaml"
    for complaint, settings in unsafe.items():
        file.write_text(yaml.safe_dump(settings))
        code, errors = config_check(file)
        assert (code, complaint in errors) == (1, True), errors
    started = run_codeq("serve", "--config", str(file), "--data", str(tmp_path / "data"), "--port", "0")
    assert started.returncode == 1
    assert not (tmp_path / "data").exists()
    file.write_text(yaml.safe_dump(both(static("x" * 16)) | public))
    assert config_check(file) == (0, "")
    dev.prepare(tmp_path / "dev")
    (tmp_path / "dev" / "dev-key.pem").chmod(0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        dev.prepare(tmp_path / "dev")


def test_check_81_internal_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("canary /secret/path")

    async def scenario() -> None:
        server = InProcessServer(tmp_path)
        monkeypatch.setattr(type(server.store), "get_records", broken)
        async with server.running():
            caller = server.stranger("acme")
            for accept in ("*/*", "text/html", "application/json"):
                caller.send("GET", at(paths.TASK, UNKNOWN), accept=accept)
                answer = await caller.answer()
                assert (answer.status, answer.headers["content-type"]) == (500, "application/json")
                assert answer.json == {"error": "internal error", "code": "internal", "requestId": answer.request_id}

    asyncio.run(scenario())


UNPICKLING = {
    "sdk/worker/child_process.py": "a child process gets its handlers from its parent",
    "pipeline/lake/partitions.py": "the driver gets exceptions from its executors",
}


def test_check_82_nothing_stored_is_executed() -> None:
    """Only what our own processes send each other is unpickled. The linter's rules S are the gate for the rest."""
    unpickling: set[str] = set()
    for name, tree in modules().items():
        for function, call in calls(tree):
            assert function not in ("eval", "exec", "yaml.load", "yaml.unsafe_load", "marshal.loads"), name
            assert function not in ("os.system", "os.popen", "__import__"), name
            assert not [word for word in call.keywords if word.arg == "shell"], name
            if function in ("Options", "WriteBatch"):
                assert "raw_mode=True" in ast.unparse(call), name
            if function == "Rdict":
                assert len(call.args) >= 2, f"{name}: without options it unpickles"
            if function in ("pickle.loads", "pickle.load", "pickle.Unpickler"):
                unpickling.add(name)
    assert unpickling == set(UNPICKLING)
    select = re.search(r"(?s)\[tool\.ruff\.lint\]\s*select = \[(.*?)\]", (PROJECT / "pyproject.toml").read_text())
    assert select
    assert '"S"' in select[1]


@on_rocksdb("looks at the permissions of RocksDB's files")
def test_check_83_data_directory(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with start_server(tmp_path) as own:
            own.tenant().create()
            found = {path: stat.S_IMODE(path.stat().st_mode) for path in (own.data, *own.data.rglob("*"))}
            second = run_codeq("serve", "--dev", "--data", str(own.data), "--port", "0")
    finally:
        os.umask(before)
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in found.items() if not path.is_dir()} == {0o600}
    assert second.returncode == 1
    assert "another process" in second.stderr
    for name, tree in modules().items():
        for function, call in calls(tree) if name.startswith(("server/", "store/", "usecases/")) else ():
            assert not function.startswith("tempfile.") or "dir=" in ast.unparse(call), "not beside the data"


FLOORS = {"pyjwt": (2, 15), "h11": (0, 16), "urllib3": (2, 5), "starlette": (0, 47, 2), "orjson": (3, 9, 15)}
REFUSED = {"python-jose", "httpx-secure", "advocate"}


def test_check_84_dependencies() -> None:
    """Every package is installed by its hash. There is no SBOM and no audit job yet."""
    lock = (PROJECT / "requirements.lock").read_text()
    entries = re.findall(r"(?m)^([a-z0-9._-]+)==(\S+)([^\n]*(?:\n    [^\n]+)*)", lock)
    assert len(entries) == len(re.findall(r"(?m)^[^\s#]", lock))
    assert not [name for name, _, rest in entries if "--hash=sha256:" not in rest]
    versions = {name: tuple(int(part) for part in re.findall(r"\d+", version)) for name, version, _ in entries}
    assert not [name for name, least in FLOORS.items() if name in versions and versions[name] < least]
    assert not REFUSED & set(versions)
    assert "--require-hashes -r requirements.lock" in (PROJECT / "Makefile").read_text()


OPEN = {paths.HEALTHZ, paths.READYZ, paths.METRICS, paths.OPENAPI, paths.DOCS, paths.JWKS}
"""Routes without a token: for probes, for people, and `/metrics`, which `metrics.token` closes."""


def test_check_85_every_route_is_listed(server: Server, tmp_path: Path) -> None:
    assert {route.path for route in ROUTES if route.kind is TokenKind.NONE} == OPEN
    described = answered(server.request("GET", paths.OPENAPI, token=None), 200)["paths"]
    assert {(method.upper(), path) for path, methods in described.items() for method in methods} == {
        (route.method, route.path) for route in ROUTES
    }
    for path in OPEN:
        assert server.request("GET", path, token=None).status_code == 200, path
    for path in ("/", "/debug", "/admin", "/v1", "/v1/codeq", "/v2/codeq/tasks", "/metrics/x", "/redoc"):
        for token in (None, "wrong", "dev-token"):
            assert server.request("GET", path, token=token).status_code == 404, path
    with start_server(tmp_path, settings={"metrics": {"token": "m" * 16}}) as closed:
        assert closed.request("GET", paths.METRICS, token=None).status_code == 401
        assert closed.request("GET", paths.METRICS, token="m" * 16).status_code == 200


def test_check_87_event_export(server: Server, tenant: Tenant) -> None:
    server.tenant().create(payload="canary-other")
    task = tenant.ended(payload="canary-own")
    reader = Caller(server, server.token(tenant.name, "producer", scopes=["codeq:events"]))
    plain, full = reader.get(paths.EVENTS, limit=50_000), reader.get(paths.EVENTS, limit=50_000, includePayload="true")
    assert "canary" not in plain.text
    assert [event["tenant"] for event in answered(plain, 200)["events"]] == [tenant.name] * 3
    assert {event["payload"] for event in answered(full, 200)["events"]} == {'"canary-own"'}
    columns = {name: may_be_null for name, _, may_be_null in wire_events.COLUMNS}
    assert columns["tenant"] is False
    assert not {"payload", "result", "token"} & set(columns)
    for path, body in ((paths.TASKS, {"command": "work", "payload": 1}), (at(paths.CANCEL, task["id"]), {})):
        refused(reader.post(path, body), 403, "forbidden")
    for route in ROUTES:
        if route.method != "GET" and route.kind is not TokenKind.PRODUCER:
            path = at(route.path, task["id"] if "{id}" in route.path else "work")
            assert reader.request(route.method, path, {}).status_code in (401, 403), route.path
    stranger = Caller(server, server.token(tenant.name, "producer", scopes=["codeq:create"]))
    refused(stranger.get(paths.EVENTS), 403, "forbidden")


def test_check_88_reads_of_a_foreign_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of another tenant, whatever its state, takes the reads of an id that nobody has, below the own tenant."""
    reads: list[bytes] = []
    get, get_many = Database.get, Database.get_many
    monkeypatch.setattr(Database, "get", lambda self, key: reads.append(key) or get(self, key))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Database, "get_many", lambda self, wanted: reads.extend(wanted) or get_many(self, wanted))  # type: ignore[func-returns-value]
    with codeq.open(tmp_path / "data", tenant="owner", sweeping=False) as queue:
        ended, leased, waiting = [queue.enqueue("work", number).id for number in range(3)]
        jobs = queue.claim("work", limit=2)
        assert {job.id for job in jobs} == {ended, leased}
        queue.complete(next(job for job in jobs if job.id == ended), 1)
        stranger = queue.for_tenant("stranger")
        looked_up = []
        for task_id in (UNKNOWN, ended, leased, waiting):
            reads.clear()
            with pytest.raises(codeq.errors.NotFound):
                stranger.get(task_id)
            looked_up.append([key.replace(task_id.encode(), b"id") for key in reads])
    assert looked_up == [[b"t/stranger\0\x01id", b"b/stranger\0\x01id"]] * 4


def test_check_88_times_of_a_foreign_id(server: Server, tenant: Tenant) -> None:
    """The bound is wide, because others use the machine: what differs is the path taken, not its speed."""
    leased, stranger = tenant.held()["id"], server.tenant().producer
    times_s: dict[str, list[float]] = {UNKNOWN: [], leased: []}
    for _ in range(200):
        for task_id, seen in times_s.items():
            start_s = time.perf_counter()
            assert stranger.get(at(paths.TASK, task_id)).status_code == 404
            seen.append(time.perf_counter() - start_s)
    unknown_s, leased_s = (statistics.median(seen) for seen in times_s.values())
    assert 1 / 5 < leased_s / unknown_s < 5
    malformed, forged = (
        server.request("GET", paths.TASKS, token=token) for token in ("x", f"{tenant.producer.token}x")
    )
    assert (malformed.status_code, malformed.content) == (forged.status_code, forged.content)
    assert malformed.status_code == 401


def test_every_number_has_a_test() -> None:
    numbers = {int(name[11:13]) for name in globals() if name.startswith("test_check_")}
    assert numbers == {53, 73, 75, 87, 88, *range(77, 86)}
