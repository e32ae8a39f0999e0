"""Gold rows equal those counted in plain Python, however batches are cut and merged."""

import math
import random
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.pipeline.gold_sample import GOALS, GoldSample
from tests.pipeline.histories import Row

from codeq.pipeline.lake import gold
from codeq.pipeline.lake.gold import GoldBatch, GoldTable, failures, sketches
from codeq.pipeline.lake.gold.adding import added_up
from codeq.pipeline.lake.gold.batch import no_rows
from codeq.pipeline.lake.grouping import Rows
from codeq.pipeline.lake.tables import SILVER_ATTEMPTS, Merge


def rows_of(table: GoldTable, rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    """Returns rows by key, without the sketches, whose bytes may differ."""
    plain_columns = [column.name for column in table.table.columns if not column.name.endswith("_sketch")]
    found = {tuple(row[key] for key in table.table.keys): {name: row[name] for name in plain_columns} for row in rows}
    assert len(found) == len(rows)
    return found


def whole_of(table: GoldTable, gold_sample: GoldSample) -> dict[tuple[Any, ...], Row]:
    return rows_of(table, gold_sample.rows[table.table.name])


@pytest.mark.parametrize("table", gold.ALL, ids=lambda table: str(table.table.name))
def test_any_order_and_grouping_of_merges_gives_the_same_rows(gold_sample: GoldSample, table: GoldTable) -> None:
    none = table.schema.empty_table()
    first, second, third = (table.partials(part) for part in gold_sample.parts)
    early = table.merged(none, pa.concat_tables([first, second]), GOALS)
    rows = table.merged(table.merged(none, third, GOALS), early, GOALS)
    assert rows.schema == table.schema
    assert rows_of(table, rows.to_pylist()) == whole_of(table, gold_sample)


@pytest.mark.parametrize("table", gold.ALL, ids=lambda table: str(table.table.name))
def test_rows_may_come_a_few_at_a_time(gold_sample: GoldSample, table: GoldTable) -> None:
    whole = gold_sample.whole
    pieces = [
        GoldBatch(**{kind: rows.slice(start, 37)}, goals=GOALS)
        for kind, rows in (("tasks", whole.tasks), ("events", whole.events), ("attempts", whole.attempts))
        for start in range(0, len(rows), 37)
    ]
    random.Random(1).shuffle(pieces)
    rows = table.completed(pa.concat_tables([table.partials(piece) for piece in pieces]), GOALS)
    assert rows_of(table, rows.to_pylist()) == whole_of(table, gold_sample)


def test_a_missing_value_is_no_value_and_a_missing_key_is_a_key() -> None:
    many = [sketches.kll_of(np.array([float(n)])) for n in (1, 2)]
    rows = pa.table({
        "key": pa.array(["a", None, "a", "b", None, "a"]).dictionary_encode(),
        "number": [1, 2, None, None, 4, 8],
        "time": pa.array([5, None, None, None, 7, 3], pa.timestamp("us", "UTC")),
        "texts": [["c", "a"], ["b"], None, None, [], ["b", "a"]],
        "sketch": [many[0], None, None, None, many[1], many[1]],
    })  # fmt: skip
    columns = {"number": Merge.SUM, "first": Merge.MIN, "last": Merge.MAX, "texts": Merge.FEW, "sketch": Merge.KLL}
    rows = rows.append_column("first", rows["time"]).append_column("last", rows["time"])
    found = added_up(Rows(rows), ["key"], columns, {"texts": 2}).to_pylist()
    read = {row["key"]: (row["number"], row["first"], row["last"], row["texts"]) for row in found}
    at = {n: datetime(1970, 1, 1, microsecond=n, tzinfo=UTC) for n in (3, 5, 7)}
    assert read == {
        "a": (9, at[3], at[5], ["a", "b"]), "b": (0, None, None, []), None: (6, at[7], at[7], ["b"]),
    }  # fmt: skip
    highest = {row["key"]: sketches.kll_quantiles(row["sketch"], [0.5, 1.0]) for row in found}
    assert highest == {"a": [1.0, 2.0], "b": None, None: [2.0, 2.0]}


def test_texts_computed_from_texts_are_whole() -> None:
    """NumPy's own texts lose zeros at their end."""
    rows = Rows(pa.table({"error": ["a\0", None, "b", "a\0"]}))
    assert rows.by_text("error", lambda text: text or "none").tolist() == ["a\0", "none", "b", "a\0"]


def test_throughput_counts_every_event_once(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.THROUGHPUT, gold_sample)
    counted = Counter(
        (e["tenant"], e["command"], e["priority"], e["at"].replace(second=0, microsecond=0), e["move"])
        for e in gold_sample.events
    )
    columns = {"enqueue": "enqueues", "claim": "claims", "complete": "completes", "fail": "fails", "nack": "nacks",
               "expire": "expiries", "abandon": "abandons", "promote": "promotes", "cancel": "cancels",
               "replay": "replays", "purge": "purges"}  # fmt: skip
    found = {(*key, move): row[column] for key, row in rows.items() for move, column in columns.items() if row[column]}
    assert found == counted
    added = [column.name for column in gold.THROUGHPUT.table.columns if column.merge]
    total = {name: sum(row[name] for row in rows.values()) for name in added}
    live = Counter(task["status"] for task in gold_sample.tasks)
    assert total["entered"] - total["left"] == live["PENDING"] + live["IN_PROGRESS"]
    assert total["began"] - total["stopped"] == live["IN_PROGRESS"]
    assert total["payload_bytes"] == sum(e["payload_bytes"] for e in gold_sample.events if e["move"] == "enqueue")
    assert total["deaths"] == sum(attempt["is_dead"] for attempt in gold_sample.attempts) > 0
    assert {row["day"].isoformat() for row in rows.values()} == {"2025-12-31", "2026-01-01"}


def test_latency_has_the_percentiles_of_each_hour_and_day(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.LATENCY, gold_sample)
    for grain, start_of in {"hour": hour_of, "day": midnight_of}.items():
        expected: dict[tuple[Any, ...], list[Row]] = {}
        for a in gold_sample.attempts:
            expected.setdefault((grain, start_of(a["ended_at"]), a["tenant"], a["command"], a["priority"]), []).append(
                a
            )
        for key, mine in expected.items():
            row = rows[key]
            waits = sorted(a["wait_ms"] for a in mine)
            assert (row["waits"], row["wait_ms"]) == (len(waits), sum(waits))
            assert row["wait_p50_ms"] == waits[math.ceil(len(waits) * 0.5) - 1]
            assert row["wait_p99_ms"] == waits[math.ceil(len(waits) * 0.99) - 1]
            assert row["runs"] == len(mine)
            assert row["run_p90_ms"] == sorted(a["run_ms"] for a in mine)[math.ceil(len(mine) * 0.9) - 1]
    done = [task for task in gold_sample.tasks if task["outcome"] in ("completed", "failed")]
    assert sum(row["ends"] for row in rows.values() if row["grain"] == "day") == len(done)
    assert sum(row["end_to_end_ms"] for row in rows.values() if row["grain"] == "hour") == sum(
        task["end_to_end_ms"] for task in done
    )


def test_sketches_of_many_values_stay_close() -> None:
    """Merged from forty parts, each percentile is within 1.5 % of its rank."""
    numbers = np.arange(40_000)
    columns: dict[str, Any] = {
        "tenant": "t", "command": "c", "priority": 0, "wait_ms": numbers * 7919 % 40_000, "run_ms": 1,
        "ended_at": (1_767_225_600 + numbers % 20 * 3600) * 1_000_000, "is_open": False,
    }  # fmt: skip
    schema = no_rows(SILVER_ATTEMPTS).schema
    attempts = pa.table([
        pa.array(np.broadcast_to(columns[field.name], 40_000)).cast(field.type)
        if field.name in columns else pa.nulls(40_000, field.type)
        for field in schema
    ], schema=schema)  # fmt: skip
    halves = [gold.LATENCY.partials(GoldBatch(attempts=attempts.slice(start, 20_000))) for start in (0, 20_000)]
    rows = gold.LATENCY.completed(pa.concat_tables(halves)).to_pylist()
    [row] = [row for row in rows if row["grain"] == "day"]
    assert row["waits"] == 40_000
    for p in (50, 90, 95, 99):
        assert abs(row[f"wait_p{p}_ms"] / 40_000 - p / 100) < 0.015


@pytest.mark.spark
def test_spark_reads_the_sketches_and_they_read_those_of_spark(spark: SparkSession) -> None:
    """A lake is continued whose sketches were made by Spark's functions, and Spark's users add up ours."""
    numbers, workers = [float(n * 7919 % 1000) for n in range(150)], [f"wörker-{n % 37}" for n in range(150)]
    rows = spark.createDataFrame(list(zip(numbers, workers, strict=True)), "number double, worker string")
    [made] = rows.selectExpr(
        "kll_sketch_agg_double(number) as kll", "hll_sketch_agg(worker) as hll",
        "kll_sketch_agg_double(null) as none",
    ).collect()  # fmt: skip
    theirs = [bytes(made.kll), bytes(made.hll)]
    ours = [sketches.kll_of(np.array(numbers)), sketches.hll_of(workers)]
    ranks = [0.1, 0.5, 0.9, 0.99]
    exact = [sorted(numbers)[math.ceil(rank * len(numbers)) - 1] for rank in ranks]
    assert sketches.kll_quantiles(theirs[0], ranks) == sketches.kll_quantiles(ours[0], ranks) == exact
    assert sketches.kll_quantiles(bytes(made.none), ranks) is None
    assert sketches.hll_count(sketches.hll_merged([theirs[1], ours[1]])) == 37
    both = spark.createDataFrame([tuple(theirs), tuple(ours)], "kll binary, hll binary")
    [merged] = both.selectExpr(
        "kll_merge_agg_double(kll) as kll", "hll_sketch_estimate(hll_union_agg(hll)) as workers"
    ).collect()
    assert merged.workers == 37
    assert sketches.kll_quantiles(bytes(merged.kll), [0.0]) == [min(numbers)]
    quantiles = ", ".join(f"kll_sketch_get_quantile_double(kll, {rank}D)" for rank in ranks)
    assert [row[0] for row in both.selectExpr(f"array({quantiles})").collect()] == [exact, exact]


def test_service_levels_judge_each_command_by_its_target(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.SERVICE_LEVELS, gold_sample).values()
    for row in rows:
        target = GOALS.targets.get(row["command"], GOALS.default)
        assert (row["target_ms"], row["objective"]) == (target.within_ms, target.objective)
        mine = [t for t in gold_sample.tasks if (t["tenant"], t["command"]) == (row["tenant"], row["command"])
                and t["ended_at"] and hour_of(t["ended_at"]) == row["hour"]]  # fmt: skip
        completed = [t for t in mine if t["outcome"] == "completed"]
        assert row["good"] == sum(t["end_to_end_ms"] <= target.within_ms for t in completed)
        assert row["late"] == len(completed) - row["good"]
        assert row["tasks"] == row["good"] + row["late"] + row["failed"]
        assert row["burn"] == pytest.approx((1 - row["good"] / row["tasks"]) / (1 - target.objective))
    deaths = sum(attempt["is_dead"] for attempt in gold_sample.attempts)
    assert sum(row["failed"] for row in rows) == deaths + sum(task["outcome"] == "failed" for task in gold_sample.tasks)
    assert sum(row["good"] for row in rows) > 0 < sum(row["late"] for row in rows)


def test_retries_tell_how_deliveries_ended_and_how_many_a_task_took(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.RETRIES, gold_sample).values()
    ends = Counter(attempt["ended_by"] for attempt in gold_sample.attempts)
    for name, move in {"completes": "complete", "fails": "fail", "nacks": "nack", "expiries": "expire",
                       "abandons": "abandon", "cancels": "cancel"}.items():  # fmt: skip
        assert sum(row[name] for row in rows) == ends[move]
    assert sum(row["deaths"] for row in rows) == sum(attempt["is_dead"] for attempt in gold_sample.attempts)
    assert sum(row["deliveries"] for row in rows) == len(gold_sample.attempts)
    took = Counter(task["deliveries"] for task in gold_sample.tasks if task["outcome"] in ("completed", "failed"))
    for number in range(1, 6):
        assert sum(row[f"took_{number}"] for row in rows) == took[number]
    assert all(
        row["retry_share"] == pytest.approx((row["nacks"] + row["expiries"] + row["abandons"]) / row["deliveries"])
        for row in rows
        if row["deliveries"]
    )


def test_dead_letters_are_gathered_by_what_they_died_of(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.DEAD_LETTERS, gold_sample)
    dead = [attempt for attempt in gold_sample.attempts if attempt["is_dead"]]
    assert sum(row["deaths"] for row in rows.values()) == len(dead)
    assert {key[2] for key in rows} >= {"cannot open <text>", "timeout after <n> s"}
    for (day, tenant, _), row in rows.items():
        mine = [
            a for a in dead if a["error"] in row["errors"] and a["tenant"] == tenant and a["ended_at"].date() == day
        ]
        assert (row["first_at"], row["last_at"]) == (min(a["ended_at"] for a in mine), max(a["ended_at"] for a in mine))
        assert row["commands"] == sorted({a["command"] for a in mine})
        assert row["task_ids"] == sorted({a["task_id"] for a in mine})[:5]


def test_usage_and_workers_add_up_to_all_that_was_run(gold_sample: GoldSample) -> None:
    usage = whole_of(gold.USAGE, gold_sample).values()
    workers = whole_of(gold.WORKERS, gold_sample).values()
    own = [attempt for attempt in gold_sample.attempts if attempt["command"] != "$webhooks"]
    ran_ms = sum(attempt["run_ms"] for attempt in own)
    assert sum(row["run_ms"] for row in usage) == ran_ms
    assert sum(row["busy_ms"] for row in workers) == sum(attempt["run_ms"] for attempt in gold_sample.attempts)
    assert sum(row["run_seconds"] for row in usage) == pytest.approx(ran_ms / 1000)
    assert sum(row["tasks"] for row in usage) == sum(task["command"] != "$webhooks" for task in gold_sample.tasks)
    assert sum(row["deliveries"] for row in usage) == len(own)
    assert sum(row["deliveries"] for row in workers) == len(gold_sample.attempts)
    assert {row["worker_id"] for row in workers} == {attempt["worker_id"] for attempt in gold_sample.attempts}
    bad = Counter(a["worker_id"] for a in gold_sample.attempts if a["ended_by"] in ("fail", "nack", "expire"))
    for worker, number in bad.items():
        assert sum(r["failures"] + r["expiries"] for r in workers if r["worker_id"] == worker) == number


def test_usage_tells_callbacks_and_files_from_tasks(gold_sample: GoldSample) -> None:
    for (day, tenant), row in whole_of(gold.USAGE, gold_sample).items():
        mine = [e for e in gold_sample.events if e["tenant"] == tenant and e["at"].date() == day]
        ended = [e for e in mine if e["move"] in ("complete", "fail")]
        sent = [e for e in mine if e["command"] == "$webhooks"]
        assert row["webhooks"] == sum(e["move"] == "enqueue" for e in sent) > 0
        assert row["webhook_attempts"] == sum(e["move"] == "complete" for e in sent) > 0
        assert row["artifacts"] == sum(e["artifacts"] for e in ended) > 0
        assert row["artifact_bytes"] == sum(e["artifact_bytes"] for e in ended) > 0


def test_capacity_is_planned_from_arrivals_and_runs(gold_sample: GoldSample) -> None:
    rows = whole_of(gold.CAPACITY, gold_sample).values()
    own = [e for e in gold_sample.events if e["command"] != "$webhooks"]
    arrivals = [e for e in own if e["status_after"] == "PENDING" and e["move"] != "promote"]
    assert sum(row["arrivals"] for row in rows) == len(arrivals)
    for row in rows:
        mine = [a for a in gold_sample.attempts if (a["tenant"], a["command"]) == (row["tenant"], row["command"])
                and hour_of(a["ended_at"]) == row["hour"]]  # fmt: skip
        assert (row["deliveries"], row["run_ms"]) == (len(mine), sum(a["run_ms"] for a in mine))
        assert row["workers"] == len({a["worker_id"] for a in mine})
        load = row["arrivals"] / row["seconds"] * row["service_ms"] / 1000
        assert row["load"] == pytest.approx(load)
        assert row["workers_needed"] == by_the_book(row["load"], row["service_ms"], GOALS.wait_ms)
        assert row["utilisation"] == pytest.approx(row["run_ms"] / 1000 / row["seconds"] / row["workers"])


def test_workers_needed_are_those_of_the_formula() -> None:
    cases = [(load, service) for load in (0.01, 0.7, 1.0, 3.5, 12.0, 140.0) for service in (5.0, 900.0, 60_000.0)]
    loads, services = (np.array(column) for column in zip(*cases, strict=True))
    for wait in (1, 1000):
        found = gold.workers_needed(loads, services, wait).to_pylist()
        assert found == [by_the_book(*case, wait) for case in cases]
    assert gold.workers_needed(np.array([np.nan, 0.0]), np.array([np.nan, 0.0]), 1).to_pylist() == [None, 0]


def by_the_book(load: float, service_ms: float, wait_ms: int) -> int:
    """The textbook formula of Erlang C, with logarithms of factorials so that many servers do not overflow."""
    servers = math.floor(load) + 1
    while True:
        terms = [math.exp(k * math.log(load) - math.lgamma(k + 1)) for k in range(servers)]
        last = math.exp(servers * math.log(load) - math.lgamma(servers + 1)) * servers / (servers - load)
        if last / (sum(terms) + last) * service_ms / (servers - load) <= wait_ms:
            return servers
        servers += 1


def test_errors_of_one_kind_have_one_signature() -> None:
    alike = {
        "timeout after <n> s": ["timeout after 30 s", "timeout after 1.5 s", "  timeout   after 7 s \n  at line 3"],
        "no user <text>": ['no user "ada"', "no user 'bob the 2nd'", "no user `x`"],
        "cannot open <path>: denied": ["cannot open /srv/in/47.png: denied", r"cannot open C:\temp\a.txt: denied"],
        "task <uuid> is gone": ["task 019b76d1-8055-7002-8708-206ee7830000 is gone"],
        "at <hex> in <hex>": ["at 0x7ffe12 in deadbeef01", "at 0X1f in 00ffaa99"],
        "GET <url> gave <n>": ["GET https://example.org/a?b=1 gave 503", "GET http://10.0.0.1:80 gave 404"],
        "can't reach <mail>": ["can't reach ada@example.org"],
        "LEASE_EXPIRED": ["LEASE_EXPIRED"],
        "utf8 decode failed in md5": ["utf8 decode failed in md5"],
        "unknown": ["", "   "],
    }
    errors = [(error, wanted) for wanted, errors in alike.items() for error in errors]
    assert [(error, gold.signature(error)) for error, _ in errors] == errors
    assert gold.signature(None) == "unknown"


PLAIN = {failures._SCHEME_OR_URL: (r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+", "<url>"),
         failures._NAME_OR_MAIL: (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<mail>")}  # fmt: skip


@given(st.lists(st.sampled_from([*"aB1 .+-_@/'<ä", "://", "a@b", "a.b"]), max_size=12).map("".join))
def test_long_words_are_searched_once_and_nothing_is_missed(text: str) -> None:
    """The patterns that match what may begin a URL or an address too replace what the plain ones do."""
    for (pattern, (plain, name)), instead in zip(PLAIN.items(), ("<url>", "<mail>"), strict=True):
        found = re.sub(pattern, failures._instead(instead), text, flags=re.ASCII)
        assert found == re.sub(plain, name, text, flags=re.ASCII)


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def midnight_of(at: datetime) -> datetime:
    return hour_of(at).replace(hour=0)
