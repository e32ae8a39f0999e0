"""The page shows the values of the tables, needs no other file, and escapes all text in the data."""

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.gold_sample import GoldSample
from tests.pipeline.histories import Row, empty
from tests.pipeline.report_sample import broken, sample

from codeq.pipeline import audit, report
from codeq.pipeline.lake import gold
from codeq.pipeline.lake.gold import merge
from codeq.pipeline.lake.gold.adding import added_up
from codeq.pipeline.lake.grouping import Rows
from codeq.pipeline.report import formatting, query, roll_up
from codeq.pipeline.report.charts import Series, apart, linear, logarithmic, time_plot
from codeq.pipeline.report.data import ReportData, Totals
from codeq.pipeline.report.roll_up import NewRows

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EMPTY = {"meta", "line", "path", "link", "br", "img"}


class Reader(HTMLParser):
    """Parses a page, and fails on elements that are not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.scripts += tag == "script"
        assert not [name for name in given if name.startswith("on")]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def test_the_page_stands_alone() -> None:
    page = report.render(sample())
    read = Reader(page)
    assert all(link.startswith("#") and link[1:] in read.ids for link in read.links)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp", page)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_every_plot_has_a_table_with_the_same_values() -> None:
    page = report.render(sample())
    plots = re.findall(r'<script type="application/json">(.*?)</script>(.*?)</figure>', page, re.DOTALL)
    assert len(plots) == 3
    for data, behind in plots:
        values = json.loads(data)
        assert len(values["labels"]) == len(values["series"][0]["values"]) == behind.count("<tr>") - 1
        for one in values["series"]:
            assert all(f">{value}</td>" in behind for value in one["values"])


def test_hours_in_which_nothing_ended_are_gaps_in_the_latency() -> None:
    data = sample()
    few = [data.latency_over_time[hour] for hour in (0, 1, 4)]
    page = report.render(msgspec.structs.replace(data, latency_over_time=few))
    [values] = [json.loads(found) for found in re.findall(r'json">(.*?)</script>', page) if '"p99"' in found]
    assert [value is not None for value in values["series"][0]["heights"]] == [True, True, False, False, True]
    assert len(values["labels"]) == 5
    for none in (few[:1], []):
        report.render(msgspec.structs.replace(data, latency_over_time=none))


def test_the_page_says_how_new_the_lake_is_and_what_its_runs_took() -> None:
    read = Reader(report.render(sample()))
    shown = " ".join(read.texts)
    assert "4 min from the newest event to this report" in shown
    assert "1,204 events in the server's log that the lake does not have" in shown
    assert "bronze 412 MB, silver 230 MB, gold 3.1 MB" in shown
    assert {"98,304", "7.2 MB", "1.1 s", "2.5 s", "3.25 s"} <= set(read.texts)


@pytest.mark.parametrize(("seconds", "labels"), [(30, "12:00:05"), (86_400, "16:00"), (30 * 86_400, "15 Jan")])
def test_times_are_labelled_as_the_span_needs(seconds: int, labels: str) -> None:
    times = [NOW + timedelta(seconds=seconds * i / 180) for i in range(181)]
    assert labels in re.findall(
        r"<span[^>]*>([^<]*)</span>", time_plot("p", times, [Series("s", [1] * 181, "blue")], show=str)
    )


def test_text_from_outside_is_shown_and_not_obeyed() -> None:
    page = report.render(broken())
    read = Reader(page)
    assert read.scripts == Reader(report.render(sample())).scripts
    assert "</script><script>alert(1)</script>" in read.texts
    assert "<img src=x>" in read.texts
    assert "<i>title</i>" in read.texts
    assert "<b>acme</b>" in read.texts


def test_names_in_a_plot_cannot_end_its_data() -> None:
    plot = time_plot("plot", [NOW], [Series("</script><b>", [1], "blue")], show=str)
    assert plot.count("</script>") == 1
    assert "<b>" not in plot


def test_a_broken_rule_is_the_first_thing_one_sees() -> None:
    page = report.render(broken())
    assert "✕ 1 of 10 rules broken" in page
    assert page.index("rules broken") < page.index("Throughput")
    assert "claimed by w-2 while held by w-1" in page
    assert "All 10 rules hold" in report.render(sample())


def test_a_lake_without_events_has_a_page_too() -> None:
    nothing = ReportData(title="new", made_at=NOW, first_at=None, last_at=None, step_seconds=60, totals=Totals())
    read = Reader(report.render(nothing))
    assert "Not audited" in read.texts
    assert "No events yet." in read.texts


def test_the_json_holds_what_the_page_shows() -> None:
    assert msgspec.json.decode(report.to_json(sample()), type=ReportData) == sample()


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (9999, "9,999"), (10_000, "10.0 k"), (123_456, "123 k"), (999_400, "999 k"), (999_900, "1.00 M"),
     (1_234_567, "1.23 M"), (0.25, "0.25"), (2.5e9, "2.50 G")],
)  # fmt: skip
def test_counts_are_short(number: float, shown: str) -> None:
    assert formatting.count(number) == shown


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (None, "-"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (61_000, "1.02 min"),
        (3_600_000, "1 h"),
        (9e8, "10.4 d"),
    ],
)
def test_durations_have_a_unit_that_fits(milliseconds: float | None, shown: str) -> None:
    assert formatting.duration(milliseconds) == shown


def test_nearly_all_is_not_all() -> None:
    assert [formatting.percent(share) for share in (None, 1, 0.99999, 0.5)] == ["-", "100.0 %", "> 99.9 %", "50.0 %"]


def test_labels_of_an_axis_do_not_overlap() -> None:
    axis = logarithmic([1, 40 * 86_400_000])
    assert apart(axis, 0.05)[-1] == axis.high
    for least in (0.05, 0.2):
        places = [axis.fraction(tick) for tick in apart(axis, least)]
        assert all(later - place >= least for place, later in pairwise(places))
    assert len(apart(axis, 0.2)) < len(apart(axis, 0.05)) < len(axis.ticks)


def test_axes_hold_every_value_between_round_numbers() -> None:
    for most in (0, 1, 3, 4, 7, 99, 101, 12_345):
        axis = linear([0, most])
        assert axis.high >= most
        assert axis.ticks[0] == 0 < axis.ticks[-1] == axis.high
        assert 2 <= len(axis.ticks) <= 6
    axis = logarithmic([12, 5400])
    assert (axis.low, axis.high) == (10, 10_000)
    assert [round(axis.fraction(value), 3) for value in (1, 10, 10_000, 99_999)] == [0, 0, 1, 1]


def test_batches_of_many_keys_are_not_added_up_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, ways = 5000, {name: [1] * 5000 for name in ("tenant", *gold.WORKERS.ways)}
    names = ["worker_id", *gold.WORKERS.ways]
    schema = pa.schema([gold.WORKERS.schema.field(name) for name in names])
    rows = pa.table({**ways, "worker_id": [f"w-{number}" for number in range(workers)]}).select(names).cast(schema)
    added = 0

    def count(some: Rows, *more: Any) -> pa.Table:
        nonlocal added
        added += len(some)
        return added_up(some, *more)

    monkeypatch.setattr(merge, "added_up", count)
    combined = roll_up._combined(gold.WORKERS, ["worker_id"], iter(rows.to_batches(max_chunksize=50)), schema=schema)
    assert pa.Table.from_batches(combined).sort_by("worker_id") == rows.sort_by("worker_id")
    assert added < 4 * workers


@pytest.mark.spark
def test_the_report_of_a_real_history_adds_up(
    spark: SparkSession, gold_sample: GoldSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {of.table.name: spark.createDataFrame(gold_sample.rows[of.table.name], of.table.schema) for of in gold.ALL}
    whole = gold_sample.whole
    new = NewRows(*(spark.createDataFrame(rows) for rows in (whole.events, whole.attempts, whole.tasks)))
    verdicts = audit.audit(new.events)
    data = report.collect(tables, made_at=NOW, title="a real one", verdicts=verdicts, detail=lambda _, __: new)
    assert_adds_up(data, gold_sample.events)
    page = report.render(data)
    assert "All 9 rules hold" in page  # the tenth needs the store's listing
    Reader(page)
    monkeypatch.setattr(query, "WORKERS_MAX", 2)
    monkeypatch.setattr(query, "SIGNATURES_MAX", 1)
    by_minute = report.collect(tables, made_at=NOW, live=(70, 7))
    assert by_minute.workers == data.workers[:2] == sorted(data.workers, key=lambda of: -of.deliveries)[:2]
    assert by_minute.dead_letters == data.dead_letters[:1]
    assert by_minute.step_seconds == 60 > data.step_seconds
    assert sum(moment.completed for moment in by_minute.timeline) == sum(moment.completed for moment in data.timeline)
    assert (by_minute.timeline[-1].backlog, by_minute.timeline[-1].running) == (70, 7)
    nothing = {of.table.name: empty(spark, of.table.schema) for of in gold.ALL}
    Reader(report.render(report.collect(nothing, made_at=NOW)))


def assert_adds_up(data: ReportData, events: list[Row]) -> None:
    assert data.totals.events == len(events)
    assert {of.command for of in data.outcomes} == {event["command"] for event in events}
    callbacks = [event for event in events if event["command"] == "$webhooks"]
    of_all = [event for event in events if event["status_before"] == "IN_PROGRESS"]
    events = [event for event in events if event["command"] != "$webhooks"]
    moves = [event["move"] for event in events]
    number = sum(event["move"] == "enqueue" for event in callbacks)
    assert data.totals.webhooks == sum(of.webhooks for of in data.tenants) == number > 0
    assert sum(of.artifact_bytes for of in data.tenants) > sum(of.artifacts for of in data.tenants) > 0
    assert (data.totals.enqueued, data.totals.completed) == (moves.count("enqueue"), moves.count("complete"))
    last = {event["task_id"]: event["status_after"] for event in events}
    live = [status for status in last.values() if status in ("PENDING", "IN_PROGRESS")]
    assert (data.totals.live, data.totals.running) == (len(live), live.count("IN_PROGRESS"))
    assert data.timeline[-1].backlog == len(live)
    assert (
        sum(moment.enqueued for moment in data.timeline)
        == sum(of.tasks for of in data.tenants)
        == moves.count("enqueue")
    )
    assert [moment.at for moment in data.timeline] == sorted({moment.at for moment in data.timeline})
    assert data.first_at is not None
    assert data.first_at == min(event["at"] for event in events)
    assert 0 <= (data.first_at - data.timeline[0].at).total_seconds() < data.step_seconds < 60
    assert len(data.timeline) > 20
    assert len(data.latency_over_time) > 5
    for of in data.outcomes:
        assert of.enqueued == of.completed + of.failed + of.dead + of.cancelled + of.live
    ended = len(of_all)
    assert sum(of.deliveries for of in data.workers) == sum(of.deliveries for of in data.retries) == ended
    assert sum(of.run.number for of in data.latency) == ended
    own = [event for event in events if event["status_before"] == "IN_PROGRESS"]
    assert sum(of.run.number for of in data.latency_over_time) == len(own) < ended, "callbacks are no tasks of tenants"
    assert data.last_at == max(event["at"] for event in events)
    deaths = sum(e["status_after"] == "FAILED" and e["move"] in ("nack", "expire", "abandon") for e in events)
    assert sum(letter.deaths for letter in data.dead_letters) == sum(of.deaths for of in data.retries) == deaths > 0
    assert data.totals.dead == deaths - moves.count("replay") < deaths
    assert {of.command for of in data.capacity} == {of.command for of in data.service_levels} - {"$webhooks"}
