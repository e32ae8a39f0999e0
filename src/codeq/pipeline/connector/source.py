"""`format("codeq-events")`: the event log as a Spark source, for batches and for streams.

An offset is a number per shard, so a checkpoint names exactly which events were read, and reading them again gives the
same rows. `pushFilters` is left out on purpose: Spark keeps the pushed filters on the relation, and the next query on
the same DataFrame reads the rows of the one before. Filters are options instead: `subscribe` and `tenant`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from codeq.errors import CodeqError
from codeq.pipeline.client import TRANSIENT, Calls, Span, patiently, say
from codeq.pipeline.connector.offsets import Offsets, Stretch, capped, resolve, split
from codeq.pipeline.connector.options import ReadOptions, read_options
from codeq.pipeline.connector.schema import check_wanted, event_schema

PAGE_EVENTS = 24_576
"""Events in one call: about four megabytes, and whole pieces of what the server builds at once."""
POLL_S = 0.1
"""The least time between two looks at an idle log; Spark by itself would ask a hundred times a second."""


class DataLost(CodeqError):
    """Events that were to be read are gone: they were trimmed, or the server's log was replaced by another."""

    code = "data-lost"


class EventsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "codeq-events"

    def schema(self) -> StructType:
        return event_schema(payload=read_options(self.options).wanted.with_payload)

    def reader(self, schema: StructType) -> "EventsReader":
        return EventsReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> "EventsStreamReader":  # noqa: N802 - Spark's name
        return EventsStreamReader(read_options(self.options), schema)


class StretchPartition(InputPartition):
    def __init__(self, stretch: Stretch) -> None:
        super().__init__(tuple(stretch))
        self.stretch = stretch


class _Events:
    """What both readers share. It travels to executors without its connections."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = check_wanted(schema, payload=options.wanted.with_payload)
        self._calls: Calls | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": None}

    @property
    def calls(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(self.options.connection)
        return self._calls

    def spans(self, *, at: str | None = None) -> dict[int, Span]:
        """What the server has, waiting for it as long as a batch may."""
        where = f"cannot look at the events of {self.options.connection.endpoint}"
        return patiently(lambda: self.calls.spans(at=at), where, within_s=self.options.retry_s)

    def starting(self) -> Offsets:
        if self.options.starting_at is not None:
            return {str(shard): span.next for shard, span in self.spans(at=self.options.starting_at).items()}
        return resolve(self.options.starting, self.spans())

    def planned(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        pieces = split(start, end, partitions_min=self.options.partitions_min)
        return [StretchPartition(piece) for piece in pieces]

    def lost(self, shard: int, wanted: int, have: Span) -> None:
        """Say that events are gone; by default, stop."""
        if wanted < have.first:
            what = f"events {wanted} to {have.first - 1} of shard {shard} were trimmed before they were read"
        else:
            what = f"shard {shard} ends at event {have.end - 1}, but was read up to {wanted - 1} before: another log?"
        if self.options.fail_on_data_loss:
            raise DataLost(f"{what}; set failOnDataLoss to false to go on without them")
        say(f"{what}; going on, because failOnDataLoss is false")

    def pages(self, stretch: Stretch, *, within_s: float | None) -> Iterator[pa.RecordBatch]:
        shard, offset, end = stretch
        with closing(Calls(self.options.connection)) as calls:
            while offset < end:
                limit = min(PAGE_EVENTS, end - offset)
                body, span = patiently(
                    partial(calls.events, shard, offset, limit, self.options.wanted),
                    f"cannot read shard {shard} from event {offset} on",
                    within_s=within_s,
                )
                if span.first > offset or span.next <= offset:
                    self.lost(shard, offset, span)
                table = pa.ipc.open_stream(body).read_all()
                if span.next > end:  # what was asked for is gone in part, and the rest was read instead
                    table = _before(table, end)
                if table.num_rows:
                    yield from table.select(self.columns).combine_chunks().to_batches()
                if span.next <= offset:
                    return
                offset = span.next


def _before(table: pa.Table, end: int) -> pa.Table:
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to import, and rarely needed

    return table.filter(pc.less(table["seq"], end))


class EventsReader(_Events, DataSourceReader):
    """A batch: from `startingOffsets` to `endingOffsets` as they are when it is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        spans = self.spans()
        start = self.starting()
        end = resolve(self.options.ending, spans)
        for shard, span in spans.items():
            if start[str(shard)] < min(span.first, end[str(shard)]):
                self.lost(shard, start[str(shard)], span)
            end[str(shard)] = min(end[str(shard)], span.end)
        # Without a partition Spark would read none, and the columns would have no schema to come with.
        return self.planned(start, end) or [StretchPartition(Stretch(0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StretchPartition)  # noqa: S101 - made above
        return self.read_stretch(partition.stretch)

    def read_stretch(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        return self.pages(stretch, within_s=self.options.retry_s)


class EventsStreamReader(_Events, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Once it runs, a server that is away makes it wait and never ends it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Offsets | None = None
        self._known: Offsets | None = None
        self._idle_until_s = 0.0

    def initialOffset(self) -> Offsets:  # noqa: N802
        return self.starting()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.events_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        if self._target is None and time.monotonic() < self._idle_until_s:
            return start
        try:
            spans = self.calls.spans()
        except TRANSIENT as fault:
            say(f"{fault}; the query waits")
            return start
        self._known = {str(shard): span.end for shard, span in spans.items()}
        begin, end = self._reachable(start, spans)
        total = sum(end[shard] - begin[shard] for shard in end)
        if not total or (isinstance(limit, ReadMinRows) and total < limit.min_rows and self._target is None):
            self._idle_until_s = time.monotonic() + POLL_S
            return start
        return capped(begin, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        return self._known

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {str(shard): span.end for shard, span in self.spans().items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return self.planned(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StretchPartition)  # noqa: S101 - made above
        return self.pages(partition.stretch, within_s=None)

    def _reachable(self, start: Offsets, spans: Mapping[int, Span]) -> tuple[Offsets, Offsets]:
        """From where to where each shard can be read. New shards are read from their first event on."""
        begin, end = {}, {}
        for number, span in spans.items():
            shard = str(number)
            wanted = start.get(shard, 1)
            last = span.end if self._target is None else min(span.end, self._target.get(shard, 1))
            if wanted > span.end or (shard in start and wanted < span.first):
                self.lost(number, wanted, span)
            begin[shard] = max(wanted, min(span.first, last))
            end[shard] = max(begin[shard], last)
        return begin, end
