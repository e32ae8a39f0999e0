"""The audit finds nothing in real histories, whole or trimmed, and each rule finds the fault that it is for."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.histories import History, Row, churn, frame
from tests.pipeline.table_comparison import in_parallel

from codeq.domain import lifecycle
from codeq.pipeline import audit
from codeq.pipeline.audit import rules
from codeq.pipeline.audit.rules import LEGAL

pytestmark = pytest.mark.spark

LISTING = "tenant string, task_id string, status string"
LIVE = ("PENDING", "IN_PROGRESS")

Fault = Callable[[list[Row], list[Row]], None]
FAULTS: dict[str, tuple[str, Fault]] = {}
"""By name of the fault: the rule that must find it, and the function that plants it."""


def plant(rule: str) -> Callable[[Fault], Fault]:
    def keep(fault: Fault) -> Fault:
        FAULTS[fault.__name__] = (rule, fault)
        return fault

    return keep


def listed(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame([(r["tenant"], r["task_id"], r["status"]) for r in rows], LISTING)


@pytest.fixture(scope="module")
def real() -> History:
    return churn(11, 500)


def test_real_histories_are_clean(spark: SparkSession, real: History) -> None:
    verdicts = audit.audit(frame(spark, real.events), listed(spark, real.listing))
    assert audit.is_clean(verdicts), audit.to_text(verdicts)
    assert [verdict.rule for verdict in verdicts if not verdict.checked] == []
    counts = {verdict.rule: verdict.checked for verdict in verdicts}
    assert counts["gapless"] == counts["transitions"] == len(real.events)
    assert counts["accounted"] == len({event["task_id"] for event in real.events})


def test_a_trimmed_history_is_clean_too(spark: SparkSession, real: History) -> None:
    kept = frame(spark, [event for event in real.events if event["seq"] > 200])
    verdicts = audit.audit(kept, listed(spark, real.listing))
    assert audit.is_clean(verdicts), audit.to_text(verdicts)


def test_tasks_that_moved_after_the_listing_began_are_not_judged(spark: SparkSession, real: History) -> None:
    """The listing is older than the newest events, so these are not compared with it."""
    noted = {0: 301, 1: 301}
    before = [event for event in real.events if event["seq"] <= 300]
    last = {event["task_id"]: event for event in before}
    listing = [
        {"tenant": e["tenant"], "task_id": e["task_id"], "status": e["status_after"]}
        for e in last.values()
        if e["move"] != "purge"
    ]
    events = frame(spark, real.events)
    [late, settled] = [
        audit.offending("accounted", events, listed(spark, listing), settled=at).count() for at in (None, noted)
    ]
    assert late > 0
    assert settled == 0


def test_the_legal_transitions_are_those_of_the_lifecycle() -> None:
    drawn = re.findall(r"^    (\S+) +--(\w+)--> +(.+)$", lifecycle.__doc__ or "", re.MULTILINE)
    expected: dict[str, set[tuple[str | None, str]]] = {}
    for before, move, afters in drawn:
        for after in afters.split(" | "):
            known = None if before == "(new)" else before
            expected.setdefault(move, set()).add((known, before if after == "(gone)" else after))
    assert expected
    assert expected == {move: set(statuses) for move, statuses in LEGAL.items()}


def test_every_rule_finds_the_fault_it_is_for(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is planted in a copy of a real log with a shard and tenant of its own; one copy is unchanged."""
    monkeypatch.setattr(rules, "BUCKET_EVENTS", 64)  # so that each log is sorted in several parts
    base = churn(5, 200)
    events: list[Row] = []
    listing: list[Row] = []
    for number, name in enumerate(["untouched", *FAULTS]):
        log, kept = copied(base, number, name)
        if name in FAULTS:
            FAULTS[name][1](log, kept)
        events += log
        listing += kept
    rows, known = frame(spark, events).cache(), listed(spark, listing)
    offending = {rule.name: audit.offending(rule.name, rows, known).collect for rule in audit.RULES}
    made: dict[str, Any] = in_parallel({**offending, "verdicts": lambda: audit.audit(rows, known)})
    verdicts = made.pop("verdicts")
    assert not audit.is_clean(verdicts)
    offenders = [row for found in made.values() for row in found]
    found: dict[str, set[str]] = {}
    for row in offenders:
        assert row.detail, row.rule
        found.setdefault(row.tenant, set()).add(row.rule)
    numbers = Counter(row.rule for row in offenders)
    for verdict in verdicts:
        assert numbers[verdict.rule] == verdict.violations > 0, verdict.rule
        assert len(verdict.examples) == min(verdict.violations, audit.EXAMPLES_MAX)
    assert "untouched" not in found
    assert {name: rule for name, (rule, _) in FAULTS.items() if rule not in found.get(name, ())} == {}
    assert {rule for rule, _ in FAULTS.values()} == {rule.name for rule in audit.RULES}
    text = audit.to_text(verdicts)
    assert all(f"{verdict.rule}: {verdict.violations:,} violations" in text for verdict in verdicts)
    decoded = msgspec.json.decode(audit.to_json(verdicts))
    assert (decoded["clean"], len(decoded["rules"])) == (False, len(audit.RULES))


def copied(base: History, number: int, name: str) -> tuple[list[Row], list[Row]]:
    """Returns the first shard of the history under another shard number and tenant."""

    def renamed(row: Row) -> Row:
        return {**row, "tenant": name, "command": f"{row['tenant']}-{row.get('command')}",
                "task_id": f"{row['task_id'][:-4]}{number:04x}"}  # fmt: skip

    log = [{**renamed(event), "shard": number} for event in base.events if event["shard"] == 0]
    return log, [renamed(task) for task in base.listing if task["task_id"].endswith("0000")]


def pick(log: list[Row], *moves: str, **wanted: Any) -> Row:
    return next(e for e in log if e["move"] in moves and all(e[name] == value for name, value in wanted.items()))


def of(log: list[Row], event: Row) -> list[Row]:
    return [other for other in log if other["task_id"] == event["task_id"]]


def append(log: list[Row], event: Row, **changes: Any) -> None:
    log.append({**event, "seq": log[-1]["seq"] + 1, **changes})


@plant("accounted")
def a_live_task_is_lost(_: list[Row], listing: list[Row]) -> None:
    listing.remove(next(task for task in listing if task["status"] in LIVE))


@plant("accounted")
def an_ended_task_is_lost(_: list[Row], listing: list[Row]) -> None:
    listing.remove(next(task for task in listing if task["status"] == "COMPLETED"))


@plant("accounted")
def a_task_stands_elsewhere(_: list[Row], listing: list[Row]) -> None:
    next(task for task in listing if task["status"] == "PENDING")["status"] = "COMPLETED"


@plant("accounted")
def a_purged_task_is_still_there(log: list[Row], listing: list[Row]) -> None:
    event = pick(log, "purge")
    listing.append({**event, "status": event["status_after"]})


@plant("accounted")
def a_task_without_events(_: list[Row], listing: list[Row]) -> None:
    listing.append({**listing[0], "task_id": "f" + listing[0]["task_id"][1:]})


@plant("one_result")
def a_task_completes_twice(log: list[Row], _: list[Row]) -> None:
    append(log, pick(log, "complete"))


@plant("one_result")
def a_failed_task_completes(log: list[Row], _: list[Row]) -> None:
    append(log, pick(log, "fail"), move="complete", status_after="COMPLETED")


@plant("lease_tokens")
def a_token_is_given_twice(log: list[Row], _: list[Row]) -> None:
    for event in of(log, pick(log, "claim", lease_token=2)):
        event["lease_token"] = min(1, event["lease_token"])


@plant("lease_tokens")
def an_old_token_completes(log: list[Row], _: list[Row]) -> None:
    pick(log, "complete", lease_token=2)["lease_token"] = 1


@plant("one_lease")
def a_held_task_is_handed_out_again(log: list[Row], _: list[Row]) -> None:
    held = next(e for e in log if e["move"] == "claim" and of(log, e)[-1] is e)
    append(log, held, lease_token=held["lease_token"] + 1, deliveries=held["deliveries"] + 1, worker_id="other")


def ready(log: list[Row], number: int) -> list[Row]:
    """New tasks of one queue that become ready one after the other."""
    tasks = []
    for i in range(number):
        template = {**pick(log, "enqueue", visible_at=None), "task_id": f"{i:08}{log[0]['task_id'][8:]}"}
        append(log, template, command="queue")
        tasks.append(log[-1])
    return tasks


def claimed(log: list[Row], task: Row) -> None:
    append(log, task, move="claim", status_before="PENDING", status_after="IN_PROGRESS", lease_token=1, deliveries=1)


@plant("fifo")
def the_second_is_claimed_first(log: list[Row], _: list[Row]) -> None:
    first, second = ready(log, 2)
    claimed(log, second)
    claimed(log, first)


@plant("fifo")
def the_first_is_never_claimed(log: list[Row], _: list[Row]) -> None:
    claimed(log, ready(log, 3)[1])


@plant("fifo")
def the_first_is_passed_over_and_cancelled(log: list[Row], _: list[Row]) -> None:
    first, second = ready(log, 2)
    claimed(log, second)
    append(log, first, move="cancel", status_before="PENDING", status_after="CANCELLED")


@plant("not_early")
def a_task_is_promoted_early(log: list[Row], _: list[Row]) -> None:
    event = pick(log, "promote")
    delayed = of(log, event)[of(log, event).index(event) - 1]
    event["at"] = delayed["visible_at"] - timedelta(milliseconds=1)


@plant("not_early")
def a_promoted_task_is_claimed_early(log: list[Row], _: list[Row]) -> None:
    event = next(e for e in log if e["move"] == "promote" and e is not of(log, e)[-1])
    mine = of(log, event)
    at = mine.index(event)
    mine[at + 1] |= {"move": "claim", "at": mine[at - 1]["visible_at"] - timedelta(milliseconds=1)}


@plant("not_early")
def a_delayed_task_is_claimed_before_its_time(log: list[Row], _: list[Row]) -> None:
    event = pick(log, "promote")
    delayed = of(log, event)[of(log, event).index(event) - 1]
    event |= {"move": "claim", "at": delayed["visible_at"] - timedelta(milliseconds=1)}


@plant("attempts_limit")
def a_task_has_more_attempts_than_allowed(log: list[Row], _: list[Row]) -> None:
    event = pick(log, "nack", status_after="FAILED")
    event["attempts"] = event["max_attempts"] + 1


@plant("attempts_limit")
def a_task_goes_on_without_attempts_left(log: list[Row], _: list[Row]) -> None:
    pick(log, "nack", status_after="FAILED", lease_token=2)["status_after"] = "PENDING"


@plant("attempts_count")
def a_nack_is_not_counted(log: list[Row], _: list[Row]) -> None:
    pick(log, "nack", attempts=1)["attempts"] = 0


@plant("attempts_count")
def an_abandon_is_counted(log: list[Row], _: list[Row]) -> None:
    pick(log, "abandon", attempts=0)["attempts"] = 1


@plant("attempts_count")
def a_delivery_is_not_counted(log: list[Row], _: list[Row]) -> None:
    pick(log, "claim", deliveries=1)["deliveries"] = 0


@plant("transitions")
def a_pending_task_completes(log: list[Row], _: list[Row]) -> None:
    pick(log, "complete")["status_before"] = "PENDING"


@plant("transitions")
def a_move_that_nobody_knows(log: list[Row], _: list[Row]) -> None:
    pick(log, "abandon")["move"] = "forget"


@plant("transitions")
def a_task_begins_in_the_middle(log: list[Row], _: list[Row]) -> None:
    event = next(e for e in log if e["move"] == "enqueue" and len(of(log, e)) > 1 and e["seq"] > 1)
    event["task_id"] = "f" + event["task_id"][1:]


@plant("transitions")
def a_purged_task_moves(log: list[Row], _: list[Row]) -> None:
    append(log, pick(log, "purge"))


@plant("transitions")
def a_task_that_failed_for_good_is_replayed(log: list[Row], _: list[Row]) -> None:
    event = pick(log, "fail")
    append(log, event, move="replay", status_before="FAILED", status_after="PENDING", attempts=0, deliveries=0)


@plant("transitions")
def a_move_starts_elsewhere(log: list[Row], _: list[Row]) -> None:
    event = next(e for e in log if e["move"] == "claim" and of(log, e)[-1] is e)
    append(log, event, move="promote", status_before="PENDING", status_after="PENDING")


@plant("gapless")
def an_event_is_missing(log: list[Row], _: list[Row]) -> None:
    del log[len(log) // 2]


@plant("gapless")
def an_event_is_there_twice(log: list[Row], _: list[Row]) -> None:
    log.append(dict(log[-1]))
