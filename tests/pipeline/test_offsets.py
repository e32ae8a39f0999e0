"""Offsets and options of the source and the sink, without Spark."""

from pathlib import Path

import pytest

from codeq.errors import InvalidRequest
from codeq.pipeline.client import LogBounds, ServerOptions
from codeq.pipeline.connector.offsets import EVENTS_PER_PARTITION_MAX, OffsetRange, capped, resolve, split
from codeq.pipeline.connector.options import read_options
from codeq.pipeline.connector.sink import write_options

LOG = {0: LogBounds(5, 100, 0, 2), 1: LogBounds(1, 50, 0, 2)}


def covered(pieces: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(piece.shard, seq) for piece in pieces for seq in range(piece.start, piece.end)]


def test_positions_are_resolved_by_name_and_by_number() -> None:
    assert resolve("earliest", LOG) == {"0": 5, "1": 1}
    assert resolve("latest", LOG) == {"0": 100, "1": 50}
    assert resolve({0: 17}, LOG) == {"0": 17, "1": 1}
    assert resolve({0: -1, 1: -2}, LOG) == {"0": 100, "1": 1}


@pytest.mark.parametrize("most", [1, 2, 3, 7, 50, 144, 145])
def test_a_capped_end_is_as_far_as_allowed_and_never_beyond_the_log(most: int) -> None:
    start, end = {"0": 5, "1": 1}, {"0": 100, "1": 51}
    reached = capped(start, end, most)
    assert sum(reached[shard] - start[shard] for shard in end) == most
    assert all(start[shard] <= reached[shard] <= end[shard] for shard in end)


def test_a_shard_with_little_is_not_starved_for_long() -> None:
    start, end = {"0": 1, "1": 1}, {"0": 1_000_001, "1": 3}
    for _ in range(1100):
        start = capped(start, end, 1000)
    assert start == end


def test_nothing_is_capped_where_there_is_room() -> None:
    assert capped({"0": 1}, {"0": 10}, 9) == {"0": 10}
    assert capped({}, {"0": 10}, 3) == {"0": 4}


@pytest.mark.parametrize("partitions_min", [1, 2, 3, 10, 1000])
def test_ranges_cover_every_event_once(partitions_min: int) -> None:
    pieces = split({"0": 5}, {"0": 100, "1": 51, "2": 1}, partitions_min=partitions_min)
    expected = [(0, seq) for seq in range(5, 100)] + [(1, seq) for seq in range(1, 51)]
    assert sorted(covered(pieces)) == expected
    assert len(pieces) >= min(partitions_min, len(expected))


@pytest.mark.parametrize("events", [1, 24, 25, 26, 49, 51, 1000])
def test_many_cores_get_no_tiny_ranges(events: int) -> None:
    ends = {"0": 1 + events, "1": 1 + events // 2}
    pieces = split({}, ends, partitions_min=64, events_min=25)
    assert sorted(covered(pieces)) == [(shard, n) for shard, end in enumerate(ends.values()) for n in range(1, end)]
    for piece in pieces:
        assert piece.end - piece.start >= min(25, ends[str(piece.shard)] - 1)


def test_a_long_range_is_split_by_default() -> None:
    pieces = split({"0": 1}, {"0": 2_000_000}, partitions_min=1)
    assert len(pieces) == 4
    assert max(piece.end - piece.start for piece in pieces) <= EVENTS_PER_PARTITION_MAX
    assert split({"0": 7}, {"0": 7}, partitions_min=4) == []


def test_the_case_of_an_option_does_not_count() -> None:
    assert read_options({"maxeventspertrigger": "7", "MINPARTITIONS": "3"}).events_per_trigger == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "newest"}, "startingOffsets must be earliest, latest"),
        ({"startingOffsets": '{"0": "x"}'}, "startingOffsets must be earliest, latest"),
        ({"startingOffsets": '{"0": -3}'}, "startingOffsets must be earliest, latest"),
        ({"endingOffsets": "[1]"}, "endingOffsets must be earliest, latest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "not both"),
        ({"maxEventsPerTrigger": "0"}, "maxEventsPerTrigger must be a whole number"),
        ({"maxEventsPerTriger": "5"}, "did you mean 'maxEventsPerTrigger'"),
        ({"minPartitions": "many"}, "minPartitions must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"includePayload": "1"}, "includePayload must be true or false"),
        ({"retrySeconds": "-1"}, "retrySeconds must be a number of seconds"),
        ({"tokenFile": "a", "tokenEnv": "B"}, "tokenFile or tokenEnv, not both"),
        ({"token": "secret"}, "token"),
    ],
)
def test_an_option_that_is_wrong_is_refused_and_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "IGNORE"}, "mode must be one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({"mode": "permissive"}, "needs rejectedPath"),
        ({"inFlight": "0"}, "inFlight must be a whole number"),
        ({"batchSize": "1001"}, "batchSize must be a whole number from 1 to 1000"),
        ({"rejectPath": "x"}, "did you mean 'rejectedPath'"),
    ],
)
def test_an_option_of_the_sink_that_is_wrong_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        write_options(options)


def test_a_token_is_read_again_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    server = ServerOptions(token_file=str(file))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        server.token()
    for text in ("one", "two"):
        file.write_text(text + "\n")
        assert server.token() == text
    monkeypatch.setenv("MINE", "three")
    assert ServerOptions(token_env="MINE").token() == "three"
    monkeypatch.delenv("CODEQ_TOKEN", raising=False)
    with pytest.raises(InvalidRequest, match="set CODEQ_TOKEN"):
        ServerOptions().token()
