"""The stream reader, called as Spark does: limits, targets, lost events, and an unavailable server."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from tests.pipeline.event_log import OptionsFor, enqueue, log_of, platform
from tests.pipeline.relay import relay
from tests.server.server_process import Server, Tenant, answered, eventually

from codeq.errors import Unreachable
from codeq.pipeline import event_schema
from codeq.pipeline.client import retry_transient
from codeq.pipeline.connector.offsets import StoredOffsets, shards_of
from codeq.pipeline.connector.options import read_options
from codeq.pipeline.connector.source import DataLost, EventsReader, EventsStreamReader
from codeq.wire import paths

ALL = ReadAllAvailable()


def stream(options: dict[str, str]) -> EventsStreamReader:
    return EventsStreamReader(read_options(options), event_schema())


def read(reader: EventsStreamReader, start: StoredOffsets, end: StoredOffsets) -> list[int]:
    travelled = pickle.loads(pickle.dumps(reader))  # as it is sent to an executor
    return [
        seq
        for part in reader.partitions(start, end)
        for batch in travelled.read(part)
        for seq in batch["seq"].to_pylist()
    ]


def end_of(server: Server) -> int:
    end: int = answered(platform(server).get(paths.EVENTS, limit=1), 200)["endOffset"]
    return end


def test_a_read_ends_where_its_limit_says(tenant: Tenant, options_for: OptionsFor) -> None:
    start = {"0": end_of(tenant.server)}
    enqueue(tenant, 30)
    reader = stream(options_for(tenant.admin))
    assert shards_of(reader.latestOffset(start, ReadMaxRows(7))) == {"0": start["0"] + 7}
    assert shards_of(reader.latestOffset(start, ALL)) == {"0": start["0"] + 30}
    assert shards_of(reader.latestOffset(start, ReadMinRows(30))) == {"0": start["0"] + 30}
    assert reader.latestOffset(start, ReadMinRows(31)) == start
    known = reader.reportLatestOffset()
    assert known is not None
    assert shards_of(known) == {"0": start["0"] + 30}


def test_the_limit_is_the_option(tenant: Tenant, options_for: OptionsFor) -> None:
    assert stream(options_for(tenant.admin)).getDefaultReadLimit() == ALL
    assert stream(options_for(tenant.admin, maxEventsPerTrigger="5")).getDefaultReadLimit() == ReadMaxRows(5)


def test_a_batch_waits_for_enough_events_but_not_forever(tenant: Tenant, options_for: OptionsFor) -> None:
    start = {"0": end_of(tenant.server)}
    enqueue(tenant, 5)
    patient = stream(options_for(tenant.admin, minOffsetsPerTrigger="6", maxTriggerDelay="1h"))
    assert patient.latestOffset(start, ALL) == start
    known = patient.reportLatestOffset()
    assert known is not None
    assert known["lag"] == 5
    impatient = stream(options_for(tenant.admin, minOffsetsPerTrigger="6", maxTriggerDelay="0s"))
    assert shards_of(impatient.latestOffset(start, ALL)) == {"0": start["0"] + 5}
    enqueue(tenant, 1)
    soon = stream(options_for(tenant.admin, minOffsetsPerTrigger="6", maxTriggerDelay="1h"))
    assert shards_of(soon.latestOffset(start, ReadMaxRows(4))) == {"0": start["0"] + 4}
    known = soon.reportLatestOffset()
    assert known is not None
    assert (known["lag"], shards_of(known)) == (2, {"0": start["0"] + 6})
    drain = stream(options_for(tenant.admin, minOffsetsPerTrigger="100"))
    drain.prepareForTriggerAvailableNow()
    assert shards_of(drain.latestOffset(start, ALL)) == {"0": start["0"] + 6}, "there will not be more"


def test_a_batch_has_about_so_many_bytes(tenant: Tenant, options_for: OptionsFor) -> None:
    start = {"0": end_of(tenant.server)}
    large = [{"command": "work", "payload": "x" * 1000} for _ in range(500)]
    answered(tenant.producer.post(paths.TASKS_BATCH, {"tasks": large}), 200)

    def read_at_once(**more: str) -> int:
        options = read_options(options_for(tenant.admin, maxBytesPerTrigger="100000", **more))
        reader = EventsStreamReader(options, event_schema(payload=options.event_filter.with_payload))
        return int(reader.latestOffset(start, ALL)["0"]) - start["0"]

    without, with_payload = read_at_once(), read_at_once(includePayload="true")
    assert 200 < without <= 500
    assert 50 < with_payload < 100, "a kilobyte each, and the other columns"
    assert read_at_once(maxEventsPerTrigger="7") > 7, "which is Spark's to pass as a limit"
    one = stream(options_for(tenant.admin, maxBytesPerTrigger="1"))
    assert shards_of(one.latestOffset(start, ALL)) == {"0": start["0"] + 1}, "at least one, or it would never go on"


def test_a_drain_ends_where_the_log_ended_when_it_began(tenant: Tenant, options_for: OptionsFor) -> None:
    start = {"0": end_of(tenant.server)}
    enqueue(tenant, 10)
    reader = stream(options_for(tenant.admin))
    reader.prepareForTriggerAvailableNow()
    enqueue(tenant, 10)
    middle = reader.latestOffset(start, ReadMaxRows(6))
    end = reader.latestOffset(middle, ReadMaxRows(6))
    assert (shards_of(middle), shards_of(end)) == ({"0": start["0"] + 6}, {"0": start["0"] + 10})
    assert reader.latestOffset(end, ReadMaxRows(6)) == end
    assert reader.latestOffset(end, ReadMinRows(1)) == end


def test_a_drain_does_not_end_early_because_its_server_went_away(tenant: Tenant, options_for: OptionsFor) -> None:
    """A query with the trigger AvailableNow ends, as a success, as soon as there is nothing new."""
    with relay() as way, ThreadPoolExecutor(1) as pool:
        way.lead_to(tenant.server.port)
        start = {"0": end_of(tenant.server)}
        enqueue(tenant, 10)
        impatient, patient = (
            stream(options_for(tenant.admin, endpoint=way.base, retrySeconds=wait)) for wait in ("0", "60")
        )
        for reader in (impatient, patient):
            reader.prepareForTriggerAvailableNow()
            assert shards_of(reader.latestOffset(start, ReadMaxRows(4))) == {"0": start["0"] + 4}
        way.cut()
        with pytest.raises(Unreachable):
            impatient.latestOffset(start, ReadMaxRows(4))
        refused = way.refused
        waiting = pool.submit(patient.latestOffset, start, ReadMaxRows(4))
        eventually(lambda: way.refused > refused or waiting.done())
        way.lead_to(tenant.server.port)
        assert shards_of(waiting.result(60)) == {"0": start["0"] + 4}


def test_offsets_name_their_log_and_those_of_another_log_are_an_error(
    server: Server, trimmed: Server, options_for: OptionsFor
) -> None:
    start = stream(options_for(platform(server))).initialOffset()
    log_id = answered(platform(server).get(paths.EVENTS, limit=1), 200)["logId"]
    assert start["log"] == log_id
    other = stream(options_for(platform(trimmed)))
    moved = {"0": end_of(trimmed) - 1, "log": log_id}
    with pytest.raises(DataLost, match=f"offsets of log {log_id} mean nothing"):
        other.latestOffset(moved, ALL)
    with pytest.raises(DataLost, match=f"offsets of log {log_id} mean nothing"):
        read(other, moved, {"0": end_of(trimmed), "log": log_id})
    lenient = stream(options_for(platform(trimmed), failOnDataLoss="false"))
    assert lenient.latestOffset(moved, ALL)["log"] != log_id
    assert shards_of(other.latestOffset({"0": moved["0"]}, ALL)) == {"0": end_of(trimmed)}, "an older checkpoint"


def test_pages_join_without_a_gap(tenant: Tenant, options_for: OptionsFor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codeq.pipeline.connector.source.PAGE_EVENTS", 7)
    enqueue(tenant, 40)
    expected = [event["seq"] for event in log_of(tenant.admin)]
    reader = EventsReader(read_options(options_for(tenant.admin)), event_schema())
    found = [seq for part in reader.partitions() for batch in reader.read(part) for seq in batch["seq"].to_pylist()]
    assert found == expected
    assert read(stream(options_for(tenant.admin)), {"0": expected[3]}, {"0": expected[20]}) == expected[3:20]


def test_an_idle_log_is_not_asked_all_the_time(server: Server, options_for: OptionsFor) -> None:
    with relay() as way:
        way.lead_to(server.port)
        reader = stream(options_for(platform(server), endpoint=way.base))
        start = reader.initialOffset()
        end = {"0": end_of(server)}
        assert reader.latestOffset(end, ALL) == end
        way.cut()
        assert reader.latestOffset(end, ALL) == end
        assert not way.refused
        assert start["0"] <= end["0"]


def test_an_unavailable_server_has_no_new_events(tenant: Tenant, options_for: OptionsFor) -> None:
    with relay() as way:
        way.lead_to(tenant.server.port)
        start = {"0": end_of(tenant.server)}
        reader = stream(options_for(tenant.admin, endpoint=way.base))
        enqueue(tenant, 5)
        way.cut()
        assert reader.latestOffset(start, ALL) == start
        way.lead_to(tenant.server.port)
        assert shards_of(reader.latestOffset(start, ALL)) == {"0": start["0"] + 5}


def test_a_read_that_has_begun_waits_for_its_server(
    tenant: Tenant, options_for: OptionsFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("codeq.pipeline.client.log_line", lines.append)
    with relay() as way, ThreadPoolExecutor(1) as pool:
        way.lead_to(tenant.server.port)
        start = {"0": end_of(tenant.server)}
        enqueue(tenant, 5)
        reader = stream(options_for(tenant.admin, endpoint=way.base))
        way.cut()
        reading = pool.submit(read, reader, start, {"0": start["0"] + 5})
        eventually(lambda: lines or reading.done())  # one call has failed
        way.lead_to(tenant.server.port)
        assert len(reading.result(30)) == 5


def test_events_trimmed_before_they_were_read_are_an_error(trimmed: Server, options_for: OptionsFor) -> None:
    first = answered(platform(trimmed).get(paths.EVENTS), 200)["firstOffset"]
    start, end = {"0": 21}, {"0": 201}
    strict = stream(options_for(platform(trimmed)))
    with pytest.raises(DataLost, match=f"events 21 to {first - 1} of shard 0 were trimmed"):
        strict.latestOffset(start, ALL)
    with pytest.raises(DataLost, match=f"events 21 to {first - 1}"):
        read(strict, start, end)  # planned before they were trimmed
    lenient = stream(options_for(platform(trimmed), failOnDataLoss="false", minPartitions="3"))
    assert shards_of(lenient.latestOffset(start, ReadMaxRows(10))) == {"0": first + 10}
    assert read(lenient, start, end) == list(range(first, 201))
    assert read(lenient, start, {"0": first + 2}) == [first, first + 1]


def test_another_log_under_the_same_offsets_is_noticed(trimmed: Server, options_for: OptionsFor) -> None:
    with pytest.raises(DataLost, match="another log"):
        stream(options_for(platform(trimmed))).latestOffset({"0": 5000}, ALL)
    lenient = stream(options_for(platform(trimmed), failOnDataLoss="false"))
    assert shards_of(lenient.latestOffset({"0": 5000}, ALL)) == {"0": 5000}
    with pytest.raises(DataLost, match="another log"):
        read(stream(options_for(platform(trimmed))), {"0": 5000}, {"0": 5010})


def test_a_shard_that_the_checkpoint_does_not_know_is_read_from_its_start(
    trimmed: Server, options_for: OptionsFor
) -> None:
    first = answered(platform(trimmed).get(paths.EVENTS), 200)["firstOffset"]
    reader = stream(options_for(platform(trimmed)))
    assert shards_of(reader.latestOffset({}, ReadMaxRows(5))) == {"0": first + 5}


def test_a_wait_for_the_server_is_logged_at_intervals(capfd: pytest.CaptureFixture[str]) -> None:
    faults = [Unreachable("nobody is there")] * 3

    def call() -> str:
        if faults:
            raise faults.pop()
        return "here"

    assert retry_transient(call, "cannot read", within_s=None) == "here"
    assert capfd.readouterr().err == "codeq: cannot read: nobody is there; trying again\n"
    faults.append(Unreachable("gone"))
    with pytest.raises(Unreachable, match="gone"):
        retry_transient(call, "cannot read", within_s=0)
