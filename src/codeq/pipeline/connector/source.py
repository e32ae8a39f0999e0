"""`format("codeq-events")`: reads the event log as batches and as streams.

An offset is a number per shard, so a checkpoint names exactly which events were read, and reading them again gives the
same rows. `pushFilters` is left out on purpose: Spark stores the pushed filters in the relation, and the next query on
the same DataFrame would read the rows of the one before. Filters are options instead: `subscribe` and `tenant`.
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
from codeq.pipeline.client import TRANSIENT, LogBounds, PipelineClient, log_line, retry_transient
from codeq.pipeline.connector.offsets import (
    LAG,
    LOG,
    OffsetRange,
    Offsets,
    StoredOffsets,
    capped,
    resolve,
    shards_of,
    split,
    stored,
)
from codeq.pipeline.connector.options import ReadOptions, read_options
from codeq.pipeline.connector.schema import PURGED, check_schema, event_schema
from codeq.wire.events import arrow_schema

PAGE_EVENTS = 24_576
"""Events in one call: about four megabytes, and a multiple of the chunks that the server builds."""
SAMPLE_EVENTS = 1000
"""Events whose bytes are counted to tell how many of them make `maxBytesPerTrigger`."""
EVENT_BYTES_DEFAULT = 200.0
"""In Arrow, without a payload: until a sample was read."""
_PURGED = pa.field(PURGED, pa.bool_(), nullable=False)
POLL_S = 0.1
"""The least time between two polls of an idle log; Spark by itself would poll a hundred times a second."""


class DataLost(CodeqError):
    """Events that were to be read no longer exist: they were trimmed, or the server has another log."""

    code = "data-lost"


class EventsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "codeq-events"

    def schema(self) -> StructType:
        return event_schema(payload=read_options(self.options).event_filter.with_payload)

    def reader(self, schema: StructType) -> "EventsReader":
        return EventsReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> "EventsStreamReader":  # noqa: N802 - Spark's name
        return EventsStreamReader(read_options(self.options), schema)


class OffsetRangePartition(InputPartition):
    def __init__(self, offset_range: OffsetRange, log_id: str = "") -> None:
        super().__init__(tuple(offset_range))
        self.offset_range = offset_range
        self.log_id = log_id


class _LogReader:
    """The common part of both readers. Sent to executors without its connections."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = check_schema(schema, payload=options.event_filter.with_payload)
        self._client: PipelineClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> PipelineClient:
        if self._client is None:
            self._client = PipelineClient(self.options.server)
        return self._client

    def log_bounds(self, *, at: str | None = None) -> dict[int, LogBounds]:
        """Returns the bounds of each shard's log, and retries for `retrySeconds` if the server is unavailable."""
        failure = f"cannot look at the events of {self.options.server.endpoint}"
        return retry_transient(lambda: self.client.log_bounds(at=at), failure, within_s=self.options.retry_s)

    def starting_offsets(self) -> Offsets:
        if self.options.starting_at is not None:
            log = self.log_bounds(at=self.options.starting_at)
            return {str(shard): bounds.next for shard, bounds in log.items()}
        return resolve(self.options.starting, self.log_bounds())

    def ending_offsets(self, log: Mapping[int, LogBounds]) -> Offsets:
        if self.options.ending_at is not None:
            later = self.log_bounds(at=self.options.ending_at)
            return {str(shard): bounds.next for shard, bounds in later.items()}
        return resolve(self.options.ending, log)

    def plan(self, start: Offsets, end: Offsets, log_id: str) -> list[InputPartition]:
        ranges = split(start, end, partitions_min=self.options.partitions_min)
        return [OffsetRangePartition(one, log_id) for one in ranges]

    def report_data_loss(self, shard: int, offset: int, bounds: LogBounds) -> None:
        """Raises DataLost, or only logs it if `failOnDataLoss` is false."""
        if offset < bounds.first:
            loss = f"events {offset} to {bounds.first - 1} of shard {shard} were trimmed before they were read"
        else:
            loss = f"shard {shard} ends at event {bounds.end - 1}, but was read up to {offset - 1} before: another log?"
        self._report(loss)

    def check_log(self, log_id: str, bounds: LogBounds) -> None:
        """Reports a loss if the server has another log than this; an empty id is not known."""
        if log_id and bounds.log_id and log_id != bounds.log_id:
            self._report(
                f"offsets of log {log_id} mean nothing in log {bounds.log_id}, which the server has: it is another "
                "server, or was restored from a backup"
            )

    def _report(self, loss: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLost(f"{loss}; set failOnDataLoss to false to continue without them")
        log_line(f"{loss}; continuing, because failOnDataLoss is false")

    def read_pages(
        self, offset_range: OffsetRange, *, within_s: float | None, log_id: str = "", scope: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Reads the range page by page. Each call is retried for `within_s`; None retries forever.

        Raises DataLost if the server has another log than `log_id`, or returns other events than those of `scope`: the
        server may have been restored, or the token replaced, since the read was planned.
        """
        shard, offset, end = offset_range
        with closing(PipelineClient(self.options.server)) as client:
            while offset < end:
                limit = min(PAGE_EVENTS, end - offset)
                body, bounds = retry_transient(
                    partial(client.events, shard, offset, limit, self.options.event_filter),
                    f"cannot read shard {shard} from event {offset} on",
                    within_s=within_s,
                )
                self.check_log(log_id, bounds)
                if scope is not None and bounds.scope != scope:
                    raise DataLost(f"the token was replaced: it gets the events of {bounds.scope!r}, not of {scope!r}")
                if bounds.first > offset or bounds.next <= offset:
                    self.report_data_loss(shard, offset, bounds)
                table = pa.ipc.open_stream(body).read_all()
                if bounds.next > end:  # the first events were trimmed, so the page holds later ones
                    table = _before(table, end)
                if PURGED in self.columns:
                    table = table.append_column(_PURGED, table["payload"].is_null())
                if table.num_rows:
                    yield from _with_all_columns(table).select(self.columns).combine_chunks().to_batches()
                if bounds.next <= offset:
                    return
                offset = bounds.next


def _with_all_columns(table: pa.Table) -> pa.Table:
    """Adds the columns that a server of an earlier version does not send: counts are 0, what may be null is."""
    for field in arrow_schema():
        if field.name not in table.column_names:
            table = table.append_column(field, pa.array([None if field.nullable else 0] * len(table), field.type))
    return table


def _before(table: pa.Table, end: int) -> pa.Table:
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to import, and rarely needed

    return table.filter(pc.less(table["seq"], end))


class EventsReader(_LogReader, DataSourceReader):
    """Reads a batch: from `startingOffsets` to `endingOffsets`, or between two times, found when the query is
    planned.
    """

    def partitions(self) -> Sequence[InputPartition]:
        log = self.log_bounds()
        start = self.starting_offsets()
        end = self.ending_offsets(log)
        for shard, bounds in log.items():
            if start[str(shard)] < min(bounds.first, end[str(shard)]):
                self.report_data_loss(shard, start[str(shard)], bounds)
            end[str(shard)] = min(end[str(shard)], bounds.end)
        # Without a partition Spark would read no batch, from which it takes the schema of the columns.
        return self.plan(start, end, log[0].log_id) or [OffsetRangePartition(OffsetRange(0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRangePartition)  # noqa: S101 - made above
        return self.read_range(partition.offset_range, log_id=partition.log_id)

    def read_range(
        self, offset_range: OffsetRange, *, log_id: str = "", scope: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self.read_pages(offset_range, within_s=self.options.retry_s, log_id=log_id, scope=scope)


class EventsStreamReader(_LogReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. A running stream waits for an unavailable server as long as it takes."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Offsets | None = None
        """Where a stream with the trigger AvailableNow ends."""
        self._known: StoredOffsets | None = None
        self._idle_until_s = 0.0
        self._waits_since_s: float | None = None
        """Since when there are new events, but fewer than `minOffsetsPerTrigger`."""
        self._event_bytes = EVENT_BYTES_DEFAULT

    def initialOffset(self) -> StoredOffsets:  # noqa: N802
        return stored(self.starting_offsets(), self.log_bounds()[0].log_id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.events_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: StoredOffsets, limit: ReadLimit) -> StoredOffsets:  # noqa: N802
        if self._target is None and time.monotonic() < self._idle_until_s:
            return start
        log = self._log_or_nothing()
        if log is None:
            return start
        log_id = log[0].log_id
        self.check_log(start.get(LOG, ""), log[0])
        begin, end = self._available(shards_of(start), log)
        total = sum(end[shard] - begin[shard] for shard in end)
        is_short = not total or (self._target is None and self._waits_for_more(total, limit))
        reached = begin if is_short else self._limited(begin, end, limit)
        lag = sum(bounds.end - reached[str(shard)] for shard, bounds in log.items())
        self._known = {**stored({str(shard): bounds.end for shard, bounds in log.items()}, log_id), LAG: lag}
        if is_short:
            self._idle_until_s = time.monotonic() + POLL_S
            return start
        return stored(reached, log_id)

    def _waits_for_more(self, total: int, limit: ReadLimit) -> bool:
        """Whether there are fewer events than a batch should have, and not for long."""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self.options.events_per_trigger_min
        if total >= least:
            self._waits_since_s = None
            return False
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        if now_s - self._waits_since_s < self.options.trigger_delay_s:
            return True
        self._waits_since_s = None
        return False

    def _limited(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        limits = [limit.max_rows] if isinstance(limit, ReadMaxRows) else []
        if self.options.bytes_per_trigger is not None:
            limits.append(max(1, int(self.options.bytes_per_trigger / self._sampled_bytes(begin, end))))
        return capped(begin, end, min(limits)) if limits else end

    def _sampled_bytes(self, begin: Offsets, end: Offsets) -> float:
        """Returns how many bytes an event takes in Arrow, by those that come next in the shard with the most."""
        shard = max(end, key=lambda shard: end[shard] - begin[shard])
        count = min(SAMPLE_EVENTS, end[shard] - begin[shard])
        try:
            body, bounds = self.client.events(int(shard), begin[shard], count, self.options.event_filter)
        except TRANSIENT as fault:
            log_line(f"{fault}; events are taken to have {self._event_bytes:.0f} bytes")
            return self._event_bytes
        columns = [name for name in self.columns if name != PURGED]
        size_bytes = pa.ipc.open_stream(body).read_all().select(columns).nbytes
        self._event_bytes = max(1.0, size_bytes / max(1, bounds.next - begin[shard]))
        return self._event_bytes

    def _log_or_nothing(self) -> dict[int, LogBounds] | None:
        """Returns the bounds of the log; None if the server is unavailable, and the query continues later.

        With the trigger AvailableNow a query ends when there is nothing new, so there it waits here, and fails if the
        server stays away.
        """
        if self._target is not None:
            return self.log_bounds()
        try:
            return self.client.log_bounds()
        except TRANSIENT as fault:
            log_line(f"{fault}; the query waits")
            return None

    def reportLatestOffset(self) -> StoredOffsets | None:  # noqa: N802
        return self._known

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {str(shard): bounds.end for shard, bounds in self.log_bounds().items()}

    def partitions(self, start: StoredOffsets, end: StoredOffsets) -> Sequence[InputPartition]:
        return self.plan(shards_of(start), shards_of(end), end.get(LOG, ""))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRangePartition)  # noqa: S101 - made above
        return self.read_pages(partition.offset_range, within_s=None, log_id=partition.log_id)

    def _available(self, start: Offsets, log: Mapping[int, LogBounds]) -> tuple[Offsets, Offsets]:
        """Returns from where to where each shard can be read. New shards are read from their first event on."""
        begin, end = {}, {}
        for number, bounds in log.items():
            shard = str(number)
            offset = start.get(shard, 1)
            last = bounds.end if self._target is None else min(bounds.end, self._target.get(shard, 1))
            if offset > bounds.end or (shard in start and offset < bounds.first):
                self.report_data_loss(number, offset, bounds)
            begin[shard] = max(offset, min(bounds.first, last))
            end[shard] = max(begin[shard], last)
        return begin, end
