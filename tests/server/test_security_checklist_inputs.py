"""The security checklist, one test per number: storage keys (36 to 40), hostile bodies and HTTP (41 to 50).

Not here: 39, which is beside what leaves the server, and 49, which is tested with the limits of tenants.
"""

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.connections import Answer, RawConnection, connect, head, look
from tests.server.http_cases import CASES
from tests.server.server_process import Server, Tenant, answered, at, refused, start_server

import codeq
from codeq.domain.ids import is_task_id
from codeq.domain.queue import QueueKey
from codeq.server.settings import Settings
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.wire import paths

HASTY = {"http": {"header_timeout_seconds": 0.5, "body_timeout_seconds": 0.5}}
names = st.text(alphabet="\0\x01\xff/:{}", max_size=6) | st.text(max_size=12)
queues = st.builds(QueueKey, names, names)
versions = st.integers(0, (1 << 64) - 1)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("hasty"), settings=HASTY) as running:
        yield running


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Returns the keys that stores of this process read from now on."""
    seen: list[bytes] = []
    get, get_many, scan = Database.get, Database.get_many, Database.scan

    def counted_get(database: Database, key: bytes) -> bytes | None:
        seen.append(key)
        return get(database, key)

    def counted_get_many(database: Database, wanted: Any) -> Any:
        seen.extend(wanted)
        return get_many(database, wanted)

    def counted_scan(database: Database, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in scan(database, start, end):
            seen.append(key)
            yield key, value

    monkeypatch.setattr(Database, "get", counted_get)
    monkeypatch.setattr(Database, "get_many", counted_get_many)
    monkeypatch.setattr(Database, "scan", counted_scan)
    return seen


def sent(server: Server, data: bytes) -> Answer:
    """Returns the answer to these bytes, after which the server must close."""
    with connect(server.port) as client:
        client.send(data)
        answer = client.answer()
        assert client.is_closed()
    return answer


def payload(tenant: Tenant, text: bytes) -> Any:
    return tenant.producer.post(paths.TASKS, content=b'{"command":"work","payload":%b}' % text)


# Storage keys


def test_check_36_commands(tenant: Tenant) -> None:
    """By decision capital letters are allowed, and name another queue."""
    odd = ["render/acme/pending/..", "a:b", "a\0b", "{x}", "}", "", "x" * 65, "x" * 60_000, "r\u0130", "..", ".", "a\n"]
    for command in odd:
        refused(tenant.producer.post(paths.TASKS, {"command": command, "payload": 1}), 400, "invalid")
        refused(tenant.worker.post(paths.CLAIM, {"commands": [command]}), 400, "invalid")
    for name in ("a%2fb", "a%00", "%7bx%7d", "a%0a", "x" * 65):
        assert tenant.admin.put(at(paths.TOPIC, name), {"policy": {}}).status_code in (400, 404), name
        assert tenant.admin.get(at(paths.ADMIN_QUEUE, name)).status_code in (400, 404), name
    made = tenant.create("RENDER")
    assert tenant.worker.post(paths.CLAIM, {"commands": ["render"]}).status_code == 204
    assert tenant.claim("RENDER")["id"] == made["id"]


@settings(max_examples=150, deadline=None)
@given(queues, st.integers(0, 9), versions, queues)
def test_check_37_keys_of_one_queue_are_not_in_another(
    queue: QueueKey, priority: int, version: int, other: QueueKey
) -> None:
    assert QueueKey(*keys.split_names(keys.counts(queue)[len(keys.COUNTS) :])) == queue
    pending = keys.pending_prefix(queue, priority) + keys.number(version)
    for each in range(10):
        assert pending.startswith(keys.pending_prefix(other, each)) is (queue == other and priority == each)
    assert keys.delayed(queue, 1, version).startswith(keys.delayed_prefix(other)) is (queue == other)
    assert keys.idempotency(*queue).startswith(keys.idempotency(*other)) is (queue == other)


def test_check_38_order_of_keys() -> None:
    queue = QueueKey("acme", "render")
    numbers = [0, 255, 256, 1 << 63, (1 << 64) - 1]
    order = itertools.product(range(9, -1, -1), numbers)
    in_order = [keys.pending_prefix(queue, priority) + keys.number(number) for priority, number in order]
    assert sorted(in_order) == in_order


def test_check_40_task_ids(tenant: Tenant, tmp_path: Path, reads: list[bytes]) -> None:
    assert is_task_id(tenant.create()["id"])
    for name in ("id", "taskId"):
        body = {"command": "work", "payload": 1, name: "01a1e1de-0000-7001-8390-3d3777730000"}
        refused(tenant.producer.post(paths.TASKS, body), 400, "invalid")
    odd = ["..", "%00", "x" * 10_000, "%2e%2e%2f", "%0a", "01A1E1DE-0000-7001-8390-3D3777730000"]
    for task_id in odd:
        refused(tenant.producer.get(at(paths.TASK, task_id)), 404, "not-found")
        refused(tenant.worker.post(at(paths.HEARTBEAT, task_id), {}), 404, "not-found")
    with codeq.open(tmp_path / "data", sweeping=False) as queue:
        reads.clear()
        for task_id in ("..", "\0", "x" * 10_000, ""):
            with pytest.raises(codeq.errors.NotFound):
                queue.get(task_id)
        assert reads == [], "looked up in no store"


# Bodies


def test_check_41_body_size(server: Server) -> None:
    assert sent(server, head("POST", paths.TASKS, "Content-Length: 99999999")).status == 413
    with connect(server.port) as client:
        client.send(head("POST", paths.CLAIM, "Transfer-Encoding: chunked"), b"18000\r\n" + b" " * 0x18000 + b"\r\n")
        assert client.answer().status == 413, "while it arrives"
    bomb = gzip.compress(b"[" * 10_000_000)
    for coding in ("gzip", "deflate", "br", "zstd"):
        answer = server.request("POST", paths.TASKS, content=bomb, headers={"Content-Encoding": coding})
        refused(answer, 415, "unsupported-media")


def test_check_42_depth(tenant: Tenant) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        answered(payload(tenant, opening * 31 + b"1" + closing * 31), 202)
        for depth in (32, 1000, 20_000, 100_000):
            refused(payload(tenant, opening * depth + b"1" + closing * depth), 400, "invalid")
    refused(payload(tenant, b"[" * 100_000), 400, "invalid")
    assert tenant.counts()["ready"] == 2


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b'"\\ud800"', b'{"\\udfff":1}', b'"\0"', b'"\xff"',
     b'"\xed\xa0\x80"', b"\xef\xbb\xbf1"],
)  # fmt: skip
def test_check_43_what_is_not_json(tenant: Tenant, text: bytes) -> None:
    refused(payload(tenant, text), 400, "invalid")
    refused(payload(tenant, b"[" + text + b" " * 20_000 + b"]"), 400, "invalid")
    assert answered(tenant.producer.get(paths.TASKS), 200)["tasks"] == []


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b'"\\u0000"', b"1" * 400, b"1.0", b"0." + b"1" * 40, b'"\\u00e9"'])
def test_check_43_what_is_accepted_comes_back_as_it_was(tenant: Tenant, text: bytes) -> None:
    """Unlike in the check, duplicate keys and escaped zeros are accepted: contents are kept byte for byte."""
    start = answered(tenant.admin.get(paths.EVENTS, limit=1), 200)["endOffset"]
    task = answered(payload(tenant, text), 202)
    assert tenant.claim()["payload"] == tenant.task(task["id"])["payload"] == text.decode()
    body = b'{"status":"COMPLETED","result":%b}' % text
    answered(tenant.worker.post(at(paths.RESULT, task["id"]), content=body), 200)
    assert b'"result":%b' % text in tenant.producer.get(at(paths.RESULT, task["id"])).content
    [event] = answered(tenant.admin.get(paths.EVENTS, offset=start, includePayload="true"), 200)["events"][:1]
    assert event["payload"] == text.decode()


def test_check_44_many_and_long(tenant: Tenant) -> None:
    fields = {f"field-{number}": 1 for number in range(100_000)}
    refused(tenant.producer.post(paths.TASKS, fields), 400, "invalid")
    refused(payload(tenant, json.dumps(fields).encode()), 400, "invalid")
    refused(payload(tenant, b'{"%b":1}' % (b"k" * (1 << 20))), 400, "invalid")
    for items in (1001, 10_000):
        tasks = [{"command": "work", "payload": 1}] * items
        refused(tenant.producer.post(paths.TASKS_BATCH, {"tasks": tasks}), 400, "invalid")
        refused(tenant.worker.post(paths.CLAIM_BATCH, {"count": items}), 400, "invalid")
    refused(tenant.worker.post(paths.CLAIM, {"commands": [f"c{number}" for number in range(65)]}), 400, "invalid")
    assert answered(tenant.producer.get(paths.TASKS), 200)["tasks"] == []


# HTTP


def test_check_45_slow_clients(hasty: Server) -> None:
    defaults = Settings().http
    assert (defaults.header_timeout_seconds, defaults.body_timeout_seconds) <= (5, 30)

    def trickle(client: RawConnection, piece: bytes) -> int:
        """Sends a piece every tenth of a second until there is an answer."""
        client.socket.settimeout(0.1)
        for _ in range(200):
            client.send(piece)
            try:
                return client.answer().status
            except TimeoutError:
                continue
        raise AssertionError("still not cut off")

    with connect(hasty.port) as client:
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert trickle(client, b"x") == 408
    with connect(hasty.port) as client:
        client.send(head("POST", paths.TASKS, "Content-Length: 1000"))
        assert trickle(client, b" ") == 408


def test_check_45_idle_connections(server: Server) -> None:
    with ExitStack() as idle:
        for _ in range(2000):
            idle.enter_context(connect(server.port))
        answered(server.request("GET", paths.HEALTHZ, timeout=5), 200)
        server.tenant().create()


def test_check_46_headers(server: Server) -> None:
    for lines in ([f"X: {'x' * 17_000}"], [f"X-{n}: 1" for n in range(200)], ["X: 1"] * 200):
        assert sent(server, look(*lines)).status == 431
    assert sent(server, look(path="/" + "x" * 17_000)).status == 431
    assert sent(server, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000).status == 431, "before it ends"


@pytest.mark.parametrize(
    "name",
    ["length: length and coding", "length: equal lengths", "length: different lengths", "headers: LF alone",
     "headers: LF after a header", "headers: space before the colon",
     "request line: HTTP/0.9 with an empty line", "request line: HTTP/0.9 by name", "request line: HTTP/2.0",
     "headers: two different Hosts", "headers: fold"],
)  # fmt: skip
def test_check_47_smuggling(server: Server, name: str) -> None:
    answer = sent(server, CASES[name])
    assert (answer.status, answer.headers["connection"]) == (400, "close")


def test_check_47_absolute_form(server: Server) -> None:
    """Accepted, as RFC 9112 (3.2.2) demands. Its path alone counts, so it opens nothing."""
    with connect(server.port) as client:
        for target, status in ((paths.HEALTHZ, 200), (paths.TASKS, 401), ("/nothing", 404)):
            client.send(look(path=f"http://other.test{target}", token="none"))
            assert client.answer().status == status


Number = int | float | str | None
ODD: list[Number] = [-1, 0, 1 << 31, 1 << 63, 1e10, "5", None, 1.5]
NUMBERS: dict[tuple[str, str], set[int]] = {
    (paths.TASKS, "priority"): {0, 1, 2, 3},
    (paths.TASKS, "delaySeconds"): {1, 7},
    (paths.TASKS, "maxAttempts"): {0, 1},
    (paths.CLAIM, "waitSeconds"): {0, 1, 2, 3, 4, 7},
    (paths.CLAIM, "leaseSeconds"): {0, 1, 7},
    (paths.CLAIM_BATCH, "count"): set(),
}
"""By field: which of the odd values are accepted, by their place. What they then mean is in docs/reference/http.md."""


@pytest.mark.parametrize(("path", "field"), NUMBERS)
def test_check_48_numbers(tenant: Tenant, path: str, field: str) -> None:
    """Out of range means 400, or the nearest or default value where the original codeQ took it so."""
    call: Callable[..., Any] = tenant.producer.post if path == paths.TASKS else tenant.worker.post
    for number, value in enumerate(ODD):
        tenant.create("ready")
        body: dict[str, Any] = {"command": "work", "payload": 1} if path == paths.TASKS else {"commands": ["ready"]}
        answer = call(path, body | {field: value})
        assert (answer.status_code in (200, 202)) is (number in NUMBERS[path, field]), (value, answer.text)
        if number not in NUMBERS[path, field]:
            refused(answer, 400, "invalid")
        elif path == paths.TASKS:
            task = answer.json()
            assert 0 <= task["priority"] <= 9
            assert 1 <= task["maxAttempts"] <= 100


def test_check_48_limits_and_times(tenant: Tenant) -> None:
    for value in ("-1", "0", str(1 << 31), str(1 << 63), "1e10", "5.5", "null", "", "\u0665"):
        for path in (paths.TASKS, paths.EVENTS):
            refused(tenant.admin.get(path, limit=value), 400, "invalid")
    for moment, status in {
        "0001-01-01T00:00:00Z": 202,
        "0001-01-01T00:00:00+14:00": 400,
        "9999-12-31T23:59:59Z": 400,
        "9999-12-31T23:59:59-14:00": 400,
        "2026-01-01T00:00:00": 400,
        "2026-02-30T00:00:00Z": 400,
    }.items():
        answer = tenant.producer.post(paths.TASKS, {"command": "work", "payload": 1, "runAt": moment})
        assert answer.status_code == status, moment
    assert tenant.counts()["ready"] == 1, "a time in the past means at once"


def test_check_50_answers_are_bounded(server: Server, tenant: Tenant, tmp_path: Path, reads: list[bytes]) -> None:
    tasks = [{"command": "work", "payload": "x" * 900_000}] * 12
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": tasks}), 200)
    page = tenant.producer.get(paths.TASKS, limit=1000)
    assert len(page.content) < 9 << 20
    rest = answered(tenant.producer.get(paths.TASKS, cursor=page.json()["cursor"]), 200)
    assert len(page.json()["tasks"]) + len(rest["tasks"]) == 12
    counted: list[int] = []
    with codeq.open(tmp_path / "data", durability="process", sweeping=False) as queue:
        for more, total in ((10, 10), (990, 1000), (1000, 2000)):
            queue.enqueue_many([codeq.NewTask(command="work", payload=b"1")] * more)
            reads.clear()
            assert queue.queues()["work"].pending == total
            counted.append(len(reads))
    assert max(counted) < 100, "counting does not read the tasks"


def test_every_number_has_a_test() -> None:
    numbers = {int(name[11:13]) for name in globals() if name.startswith("test_check_")}
    assert numbers == set(range(36, 51)) - {39, 49}
