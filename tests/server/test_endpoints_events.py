"""The event log over HTTP: by shard and offset, as JSON and as Arrow, with a wait for new events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from rocksdict import WriteBatch
from tests.server.server_process import Caller, Server, Tenant, answered, at, refused, start_server, waiting
from tests.server.stores import on_rocksdb

import codeq
from codeq.store import codec
from codeq.store.rocksdb import keys
from codeq.store.rocksdb.database import Database
from codeq.wire import paths
from codeq.wire.events import ARROW, ARROW_LZ4, COLUMNS, EventPage

TYPES = {"int32": pa.int32(), "int64": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}


PROMISED = """
shard int32, seq int64, at timestamp, move string, tenant string, command string, task_id string, priority int32,
status_before string?, status_after string, attempts int32, deliveries int32, max_attempts int32, lease_token int64,
worker_id string?, lease_until timestamp?, visible_at timestamp?, error string?, payload_bytes int64, trace_id string?
"""
"""The schema that readers of Arrow and the lake rely on; `?` may be null. A column may be added, none may change."""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tmp_path_factory.mktemp("sharded"), settings={"store": {"shards": 3}}) as running:
        yield running


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def walk(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """Returns all events from an offset to the end, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = answered(caller.get(paths.EVENTS, **query), 200)
        found += page["events"]
        if page["nextOffset"] >= page["endOffset"]:
            return found
        query["offset"] = page["nextOffset"]


def platform(server: Server) -> Caller:
    return Caller(server, server.token("ops", "admin", scopes=["codeq:admin", "codeq:platform"]))


def end_offset(server: Server) -> int:
    end: int = answered(platform(server).get(paths.EVENTS, limit=1), 200)["endOffset"]
    return end


def test_no_column_that_readers_know_has_changed() -> None:
    promised = [column.split() for column in PROMISED.replace("\n", " ").split(",")]
    known = [[name, kind + "?" * may_be_null] for name, kind, may_be_null in COLUMNS]
    assert known[: len(promised)] == promised


def test_every_move_is_an_event_with_all_columns(tenant: Tenant) -> None:
    task = tenant.ended(priority=2, payload={"a": 1})
    events = walk(tenant.admin)
    assert [event["move"] for event in events] == ["enqueue", "claim", "complete"]
    assert all(list(event) == [camel(name) for name, _, _ in COLUMNS] for event in events)
    nullable = {camel(name) for name, _, may_be_null in COLUMNS if may_be_null}
    assert {name for event in events for name, value in event.items() if value is None} <= nullable
    claim = events[1]
    assert (claim["taskId"], claim["tenant"], claim["command"]) == (task["id"], tenant.name, "work")
    assert (claim["statusBefore"], claim["statusAfter"], claim["workerId"]) == (
        "PENDING", "IN_PROGRESS", f"{tenant.name}-worker",
    )  # fmt: skip
    assert (claim["payloadBytes"], claim["priority"], claim["leaseToken"], claim["deliveries"]) == (7, 2, 1, 1)
    assert claim["leaseUntil"]
    assert events[2]["at"] == task["endedAt"]


def test_events_are_read_by_offset_in_pages_of_any_size(tenant: Tenant) -> None:
    for n in range(7):
        tenant.create(payload=n)
    all_at_once = walk(tenant.admin)
    assert len(all_at_once) == 7
    assert walk(tenant.admin, limit=1, offset=all_at_once[0]["seq"]) == all_at_once
    assert walk(tenant.admin, offset=all_at_once[3]["seq"]) == all_at_once[3:]
    seqs = [event["seq"] for event in all_at_once]
    assert seqs == sorted(set(seqs))


def test_a_page_says_where_to_read_on_and_what_is_kept(tmp_path: Path) -> None:
    with start_server(tmp_path) as own:
        tenant = own.tenant()
        tenant.create()
        page = answered(tenant.admin.get(paths.EVENTS, limit=50_000), 200)
        assert (page["shard"], page["shards"], page["firstOffset"]) == (0, 1, 1)
        assert page["nextOffset"] == page["endOffset"] == page["events"][-1]["seq"] + 1
        beyond = answered(tenant.admin.get(paths.EVENTS, offset=page["endOffset"]), 200)
        assert (beyond["events"], beyond["nextOffset"]) == ([], page["endOffset"])


@pytest.mark.parametrize("is_platform", [False, True])
def test_arrow_holds_the_same_rows_with_the_types_of_the_columns(tenant: Tenant, is_platform: bool) -> None:
    """A tenant's events are filtered one by one; the platform's are made into columns as they are in the log."""
    tenant.dead(reason="no")
    tenant.create("later", delaySeconds=60)
    tenant.ended("traced")
    with_files = tenant.held("files")
    files = [{"name": "a", "contentBase64": "YWJj"}, {"name": "b", "contentBase64": "YQ=="}]
    outcome = {"status": "COMPLETED", "artifacts": files}
    answered(tenant.worker.post(at(paths.RESULT, with_files["id"]), outcome), 200)
    reader = platform(tenant.server) if is_platform else tenant.admin
    end = end_offset(tenant.server)  # tasks of other tests may move at any time: what is compared ends here
    rows = [row for row in walk(reader) if row["seq"] < end]
    [*_, last] = [row for row in rows if row["taskId"] == with_files["id"]]
    assert (last["move"], last["artifacts"], last["artifactBytes"]) == ("complete", 2, 4)
    answer = reader.request("GET", paths.EVENTS, headers={"Accept": ARROW}, params={"limit": end - 1})
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert [(f.name, f.type, f.nullable) for f in table.schema] == [(n, TYPES[t], null) for n, t, null in COLUMNS]
    found = table.to_pylist()
    for row in found:
        for name, kind, _ in COLUMNS:
            if kind == "timestamp" and row[name] is not None:
                row[name] = row[name].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert [{camel(name): value for name, value in row.items()} for row in found] == rows
    page = answered(reader.get(paths.EVENTS, limit=end - 1), 200)
    offsets = {name: int(answer.headers[f"codeq-{name}"]) for name in ("next-offset", "first-offset", "shards")}
    assert offsets == {"next-offset": page["nextOffset"], "first-offset": page["firstOffset"], "shards": 1}
    assert page["nextOffset"] == end
    assert end <= int(answer.headers["codeq-end-offset"]) <= page["endOffset"]


@on_rocksdb("writes into RocksDB's files")
def test_arrow_shows_a_record_that_columns_do_not_know(tmp_path: Path) -> None:
    """As another version may have written it: here, a number below zero."""
    with start_server(tmp_path) as server:
        server.tenant().ended()
    [path] = (tmp_path / "data").glob("**/rocksdb")
    database = Database(path)
    key, value = next(iter(database.scan(keys.EVENTS, keys.after(keys.EVENTS))))
    first, *others = codec.split_tasks(value)
    odd = msgspec.structs.replace(codec.decode_task(first), attempts=-1)
    batch = WriteBatch(raw_mode=True)
    batch.put(key, codec.joined([codec.encode(odd), *others]))
    database.write(batch)
    database.flush()
    database.close()
    with start_server(tmp_path) as server:
        answer = platform(server).request("GET", paths.EVENTS, headers={"Accept": ARROW}, params={"limit": 50_000})
        table = pa.ipc.open_stream(answer.content).read_all()
    assert table["attempts"].to_pylist() == [-1, 0, 0]


def test_arrow_is_compressed_for_those_who_can_read_it(tenant: Tenant) -> None:
    made = [{"command": "work", "payload": n} for n in range(500)]
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": made}), 200)
    query = {"limit": 50_000}
    plain, packed = (
        tenant.admin.request("GET", paths.EVENTS, headers={"Accept": accept}, params=query)
        for accept in (ARROW, ARROW_LZ4)
    )
    assert len(packed.content) < len(plain.content) / 2
    one, other = (pa.ipc.open_stream(answer.content).read_all() for answer in (plain, packed))
    assert one.equals(other)
    assert one.num_rows == 500


def test_an_empty_arrow_page_still_has_its_schema(tenant: Tenant) -> None:
    query = {"offset": end_offset(tenant.server) + 1000}
    answer = tenant.admin.request("GET", paths.EVENTS, headers={"Accept": ARROW}, params=query)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.num_rows == 0
    assert table.schema.names == [name for name, _, _ in COLUMNS]


def test_messagepack_says_the_same_as_json(tmp_path: Path) -> None:
    with start_server(tmp_path) as own:
        tenant = own.tenant()
        tenant.create()
        packed = tenant.admin.request("GET", paths.EVENTS, headers={"Accept": "application/msgpack"})
        assert msgspec.msgpack.decode(packed.content) == answered(tenant.admin.get(paths.EVENTS), 200)


def test_a_waiting_reader_is_woken_by_the_next_event(tmp_path: Path) -> None:
    with start_server(tmp_path) as own:
        tenant = own.tenant()
        with waiting(tenant.admin, "GET", paths.EVENTS, params={"waitSeconds": 30}) as reading:
            task = tenant.create()
            [event] = answered(reading.result(10), 200)["events"]
        assert event["taskId"] == task["id"]
        offset = event["seq"] + 1
        nothing = answered(tenant.admin.get(paths.EVENTS, offset=offset, waitSeconds=1), 200)
        assert (nothing["events"], nothing["nextOffset"]) == ([], offset)


def test_a_tenant_reads_its_own_events_and_the_platform_reads_all(server: Server) -> None:
    start = end_offset(server)
    ours, theirs = server.tenant(), server.tenant()
    ours.create("ours")
    theirs.create("theirs")
    assert {event["tenant"] for event in walk(ours.admin)} == {ours.name}
    assert {event["tenant"] for event in walk(theirs.admin, offset=start)} == {theirs.name}
    both = {event["tenant"] for event in walk(platform(server), offset=start)}
    assert {ours.name, theirs.name} <= both
    only = {event["tenant"] for event in walk(platform(server), offset=start, tenant=ours.name)}
    assert only == {ours.name}


def test_only_the_platform_may_ask_for_a_tenant(tenant: Tenant) -> None:
    for name in ("other", tenant.name, ""):
        refused(tenant.admin.get(paths.EVENTS, tenant=name), 400, "invalid")


def test_arrow_keeps_tenants_apart_too(server: Server) -> None:
    ours, theirs = server.tenant(), server.tenant()
    ours.create()
    theirs.create()
    answer = ours.admin.request("GET", paths.EVENTS, headers={"Accept": ARROW}, params={"limit": 50_000})
    assert set(pa.ipc.open_stream(answer.content).read_all()["tenant"].to_pylist()) == {ours.name}


def test_reading_events_needs_the_scope_or_an_admin(tenant: Tenant) -> None:
    refused(tenant.producer.get(paths.EVENTS), 403, "forbidden")
    refused(tenant.worker.get(paths.EVENTS), 403, "forbidden")
    reader = Caller(tenant.server, tenant.server.token(tenant.name, "producer", scopes=["codeq:events"]))
    answered(reader.get(paths.EVENTS), 200)


def test_a_worker_limited_to_some_commands_reads_only_their_events(tenant: Tenant) -> None:
    tenant.create("seen")
    tenant.create("hidden")
    reader = tenant.worker_named("r", commands=["seen"], scopes=["codeq:events"])
    assert {event["command"] for event in walk(reader)} == {"seen"}


@pytest.mark.parametrize(
    "query",
    [
        {"shard": "1"},
        {"shard": "-1"},
        {"shard": "x"},
        {"offset": "-1"},
        {"offset": "9" * 19},
        {"limit": "0"},
        {"limit": "50001"},
        {"waitSeconds": "1.5"},
        {"more": "1"},
        {"command": ""},
        {"command": "a,,b"},
        {"command": "a b"},
        {"command": ",".join(["a"] * 257)},
        {"includePayload": "yes"},
        {"at": "today"},
        {"at": "2026-01-01T00:00:00"},
    ],
)
def test_a_read_that_breaks_a_rule_is_refused(tenant: Tenant, query: dict[str, str]) -> None:
    refused(tenant.admin.get(paths.EVENTS, **query), 400, "invalid")


def test_each_shard_has_its_own_log_and_together_they_hold_everything(sharded: Server) -> None:
    tenant = sharded.tenant()
    made = {tenant.create(payload=n)["id"] for n in range(12)}
    pages = [answered(tenant.admin.get(paths.EVENTS, shard=shard), 200) for shard in range(3)]
    assert [page["shards"] for page in pages] == [3, 3, 3]
    assert [[event["seq"] for event in page["events"]] for page in pages] == [[1, 2, 3, 4]] * 3
    assert {event["taskId"] for page in pages for event in page["events"]} == made
    for page in pages:
        assert {int(event["taskId"][-4:], 16) for event in page["events"]} == {page["shard"]}
    refused(tenant.admin.get(paths.EVENTS, shard=3), 400, "invalid")
    history = answered(tenant.producer.get(at(paths.HISTORY, pages[2]["events"][0]["taskId"])), 200)
    assert [event["shard"] for event in history["events"]] == [2]


def test_no_event_says_what_a_payload_held(tenant: Tenant) -> None:
    tenant.ended(payload={"secret": "canary-in-payload"}, result={"secret": "canary-in-result"})
    assert "canary" not in tenant.admin.get(paths.EVENTS, limit=50_000).text


def test_events_of_some_commands_can_be_asked_for(tenant: Tenant) -> None:
    for command in ("a", "b", "c"):
        tenant.create(command)
    assert [event["command"] for event in walk(tenant.admin, command="a,c")] == ["a", "c"]
    repeated = tenant.admin.request("GET", f"{paths.EVENTS}?command=a&command=b&limit=50000")
    assert [event["command"] for event in answered(repeated, 200)["events"]] == ["a", "b"]
    arrow = tenant.admin.request(
        "GET", paths.EVENTS, headers={"Accept": ARROW}, params={"command": "b", "limit": 50_000}
    )
    assert pa.ipc.open_stream(arrow.content).read_all()["command"].to_pylist() == ["b"]


def test_a_reader_limited_to_some_commands_cannot_ask_for_others(tenant: Tenant) -> None:
    tenant.create("seen")
    tenant.create("hidden")
    reader = tenant.worker_named("r", commands=["seen"], scopes=["codeq:events"])
    assert walk(reader, command="hidden") == []
    assert [event["command"] for event in walk(reader, command="hidden,seen", includePayload="true")] == ["seen"]


def test_payloads_come_along_on_request_while_they_are_kept(tenant: Tenant) -> None:
    gone = tenant.ended(payload={"n": 1})
    answered(tenant.admin.post(paths.CLEANUP, {"before": "2100-01-01T00:00:00Z"}), 200)
    kept = tenant.create(payload={"n": 2})
    events = walk(tenant.admin, includePayload="true")
    assert {(event["taskId"], event["payload"]) for event in events} == {(gone["id"], None), (kept["id"], '{"n":2}')}
    query = {"includePayload": "true", "limit": 50_000}
    answer = tenant.admin.request("GET", paths.EVENTS, headers={"Accept": ARROW}, params=query)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.names == [*(name for name, _, _ in COLUMNS), "payload"]
    assert table["payload"].to_pylist() == [None] * 4 + ['{"n":2}']


def test_payloads_of_other_tenants_stay_theirs(server: Server) -> None:
    ours, theirs = server.tenant(), server.tenant()
    start = end_offset(server)
    ours.create(payload="ours")
    theirs.create(payload="theirs")
    ours.create(payload="ours")
    assert [e["payload"] for e in walk(ours.admin, offset=start, includePayload="true")] == ['"ours"'] * 2
    seen = walk(platform(server), offset=start, includePayload="true")  # and what other tests left to happen
    both = [e["payload"] for e in seen if e["tenant"] in (ours.name, theirs.name)]
    assert both == ['"ours"', '"theirs"', '"ours"']


def test_an_answer_with_payloads_stays_within_bounds(tmp_path: Path) -> None:
    with start_server(tmp_path) as own:
        tenant = own.tenant()
        megabyte = "x" * 1_000_000
        for _ in range(40):
            tenant.create(payload=megabyte)
        page = answered(tenant.admin.get(paths.EVENTS, includePayload="true"), 200)
        assert 7 <= len(page["events"]) < 40
        assert page["nextOffset"] == page["events"][-1]["seq"] + 1
        events = walk(tenant.admin, includePayload="true")
        assert [event["seq"] for event in events] == list(range(1, 41))
        assert {len(event["payload"]) for event in events} == {1_000_002}


def test_the_first_event_of_a_time_is_found(tmp_path: Path) -> None:
    with start_server(tmp_path) as own:
        tenant = own.tenant()
        for n in range(20):
            tenant.create(payload=n)
        events = walk(tenant.admin)
        times = [event["at"] for event in events]
        for at_time in sorted(set(times)):
            page = answered(tenant.admin.get(paths.EVENTS, at=at_time), 200)
            assert (page["nextOffset"], page["events"]) == (events[times.index(at_time)]["seq"], [])
            assert (page["firstOffset"], page["endOffset"], page["shards"]) == (1, 21, 1)
        assert answered(tenant.admin.get(paths.EVENTS, at="2000-01-01T00:00:00Z"), 200)["nextOffset"] == 1
        assert answered(tenant.admin.get(paths.EVENTS, at="2100-01-01T00:00:00+01:00"), 200)["nextOffset"] == 21


def test_a_long_read_is_one_stream_whatever_its_pieces(tmp_path: Path) -> None:
    made = [{"command": "work", "payload": n} for n in range(1000)]
    with start_server(tmp_path) as own:
        tenant = own.tenant()
        for _ in range(3):
            answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": made}), 200)
        start = 1
        for limit in (1, 1023, 1024, 1025, 2048, 2999, 3000):
            query = {"offset": start, "limit": limit}
            answer = tenant.admin.request("GET", paths.EVENTS, headers={"Accept": ARROW}, params=query)
            table = pa.ipc.open_stream(answer.content).read_all()
            assert table["seq"].to_pylist() == list(range(start, start + limit))
            assert int(answer.headers["codeq-next-offset"]) == start + limit


def test_workers_are_served_while_events_are_read(tenant: Tenant) -> None:
    """Calls made during a read of many pieces return before it ends."""
    made = [{"command": "work", "payload": n} for n in range(1000)]
    for _ in range(20):
        answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": made}), 200)
    query = {"limit": 50_000, "includePayload": "true"}
    with waiting(tenant.admin, "GET", paths.EVENTS, params=query) as reading:
        served = 0
        while not reading.done():
            tenant.claim("work")
            served += 1
    assert served > 1
    assert len(answered(reading.result(), 200)["events"]) >= 20_000


def test_a_batch_says_which_of_its_tasks_were_known(tenant: Tenant) -> None:
    one, two = ({"command": "work", "payload": n, "idempotencyKey": str(n)} for n in (1, 2))
    first = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [one]}), 200)["results"]
    again = answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": [one, two]}), 200)["results"]
    assert [result.get("replayed", False) for result in [*first, *again]] == [False, True, False]


def test_a_page_names_the_log_and_whose_events_it_has(server: Server, tenant: Tenant) -> None:
    def named(caller: Caller, **query: Any) -> tuple[str, str]:
        page = answered(caller.get(paths.EVENTS, **query), 200)
        arrow = caller.request("GET", paths.EVENTS, params=query, headers={"accept": ARROW})
        headers = arrow.headers["codeq-log-id"], arrow.headers["codeq-events-scope"]
        assert headers == (page["logId"], page["scope"])
        return headers

    log_id, everything = named(platform(server))
    assert len(log_id) == 32
    assert everything == ""
    assert named(tenant.admin) == (log_id, f"tenant={tenant.name}")
    assert named(platform(server), tenant="a|b", command="mail,charge") == (
        log_id,
        "tenant=a%7Cb&command=charge%2Cmail",
    )


@pytest.mark.parametrize("from_a_backup", [True, False], ids=["backup", "copied-directory"])
def test_a_restored_store_has_another_log(tmp_path: Path, from_a_backup: bool) -> None:
    with codeq.open(tmp_path / "data", sweeping=False) as queue:
        queue.enqueue("work", 1)
        queue.backup(tmp_path / "backup")
        log_id = page_of(queue).log_id
    codeq.restore(tmp_path / ("backup" if from_a_backup else "data"), tmp_path / "restored")
    with codeq.open(tmp_path / "restored", sweeping=False) as queue:
        assert page_of(queue).log_id != log_id
        assert len(page_of(queue).events) == 1


def page_of(queue: codeq.Queue) -> EventPage:
    return queue.events(limit=10)
