"""Events are judged as silver takes them in, with the same verdicts as a full audit, however they are cut."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.pipeline.histories import History, Row, arrow, churn, cut
from tests.pipeline.test_audit import FAULTS, copied

from codeq.pipeline import audit
from codeq.pipeline.lake import silver, update
from codeq.pipeline.lake.data_file import EVENTS
from codeq.pipeline.lake.parquet import write_stream
from codeq.pipeline.lake.run_history import last_runs, size_by_layer
from codeq.pipeline.lake.table import Lake
from codeq.pipeline.lake.verdicts import SCOPE, Auditor, cleared_marks, verdicts_of

JUDGED = {rule.name for rule in audit.RULES} - {"accounted"}
LEFT_TO_A_FULL_AUDIT = {
    "the_first_is_never_claimed",  # it is found when it leaves
    "a_purged_task_moves",  # its row is closed, and a purge may come after that
    "a_task_that_failed_for_good_is_replayed",
}
"""Faults that need the rows of tasks that had ended, in case the batch ends in between."""


def take_in(lake: Lake, events: Sequence[Row]) -> None:
    """Commits events to bronze and to silver_tasks, as a run does, without Spark."""
    offsets = dict(lake.bronze.offsets)
    files, batch = [], lake.bronze.batch + 1
    for shard in sorted({row["shard"] for row in events}):
        rows = sorted((row for row in events if row["shard"] == shard), key=lambda row: row["seq"])
        offsets[shard] = rows[-1]["seq"] + 1
        target = lake.bronze.target(lake.bronze.new_folder(batch), EVENTS)
        files += write_stream(target, arrow(rows).to_batches())
    lake.bronze.commit(files, batch=batch, offsets=offsets, seconds=1.5)
    update_tasks(lake)


def update_tasks(lake: Lake) -> None:
    known, goal = lake.tasks.offsets, lake.bronze.offsets
    starts = {shard: known.get(shard, 0) for shard in goal}
    found = [file for file in lake.bronze.files(part=EVENTS) if file.overlaps(starts, goal)]
    events, auditor = update.NewEvents(lake.bronze, found, starts, goal), Auditor(lake)
    plan, work = update.plan_step(lake.tasks, silver.tasks, events, parallelism=2, auditor=auditor)
    update.commit_step(lake.tasks, plan, events, [work.result(share) for share in plan.shares], auditor=auditor)


def broken(lake: Lake) -> set[str]:
    return {verdict.rule for verdict in verdicts_of(Lake(lake.folder)) if verdict.violations}


@pytest.fixture(scope="module")
def history() -> History:
    return churn(11, 500)


@pytest.mark.parametrize("batches", [1, 5, 40])
def test_real_histories_are_clean_however_they_are_cut(history: History, batches: int, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for events in cut(history, random.Random(batches), batches):
        if events:
            take_in(lake, events)
    verdicts = {verdict.rule: verdict for verdict in verdicts_of(Lake(tmp_path))}
    assert audit.is_clean(list(verdicts.values())), audit.to_text(list(verdicts.values()))
    assert {rule for rule, verdict in verdicts.items() if verdict.checked} == JUDGED
    assert verdicts["transitions"].checked == verdicts["gapless"].checked == len(history.events)


def test_the_last_runs_tell_what_they_wrote(history: History, tmp_path: Path) -> None:
    lake, batches = Lake(tmp_path), cut(history, random.Random(7), 3)
    for events in batches:
        take_in(lake, events)
    runs = last_runs(Lake(tmp_path), 2)
    assert [run.events for run in runs] == [len(batches[2]), len(batches[1])]
    assert all(run.seconds["bronze"] == 1.5 and "silver" in run.seconds for run in runs)
    newest = [file.size_bytes for file in lake.bronze.files() if file.batch == 3]
    assert runs[0].size_bytes > sum(newest) > 0
    sizes = size_by_layer(lake)
    assert sizes["bronze"] == sum(file.size_bytes for file in lake.bronze.files())
    assert (sizes["silver"] > 0, sizes["gold"]) == (True, 0)


def test_the_numbers_of_one_tenant_have_gaps_and_that_is_no_fault(history: History, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.bronze.set_properties({SCOPE: "tenant=acme"})
    take_in(lake, [row for row in history.events if row["tenant"] == "acme"])
    verdicts = {verdict.rule: verdict for verdict in verdicts_of(lake)}
    assert (verdicts["gapless"].label, verdicts["transitions"].label) == ("not checked", "ok")


def test_a_trimmed_history_is_clean_too(history: History, tmp_path: Path) -> None:
    lake, kept = Lake(tmp_path), [event for event in history.events if event["seq"] > 200]
    for events in (kept[: len(kept) // 2], kept[len(kept) // 2 :]):
        take_in(lake, events)
    assert broken(lake) == set()


@pytest.mark.parametrize("batches", [1, 6])
@pytest.mark.parametrize("fault", [name for name, (rule, _) in FAULTS.items() if rule in JUDGED])
def test_every_rule_finds_the_fault_it_is_for(fault: str, batches: int, tmp_path: Path) -> None:
    rule, plant = FAULTS[fault]
    log, listing = copied(churn(5, 200), 0, "acme")
    plant(log, listing)
    lake = Lake(tmp_path)
    for events in cut(History(log, []), random.Random(fault), batches):
        if events:
            take_in(lake, events)
    found = broken(lake)
    if fault in LEFT_TO_A_FULL_AUDIT and rule not in found:
        return
    assert rule in found or (batches > 1 and "transitions" in found), found
    [verdict] = [one for one in verdicts_of(lake) if one.rule in found and one.rule in (rule, "transitions")][:1]
    assert verdict.examples
    assert all(example["detail"] for example in verdict.examples)


def test_a_rebuild_judges_everything_anew(history: History, tmp_path: Path) -> None:
    lake, (first, second) = Lake(tmp_path), cut(history, random.Random(1), 2)
    wrong = [{**row, "lease_token": row["lease_token"] + 7} if row["move"] == "complete" else row for row in first]
    take_in(lake, wrong)
    take_in(lake, second)
    assert "lease_tokens" in broken(lake)
    before = verdicts_of(lake)
    lake.tasks.begin_epoch(1, cleared_marks(lake.tasks))
    assert all((verdict.checked, verdict.violations, verdict.examples) == (0, 0, []) for verdict in verdicts_of(lake))
    update_tasks(lake)
    again = {verdict.rule: verdict for verdict in verdicts_of(Lake(tmp_path))}
    assert {rule for rule, verdict in again.items() if verdict.violations} == {
        verdict.rule for verdict in before if verdict.violations
    }
    assert again["transitions"].checked == again["gapless"].checked == len(history.events)


def test_a_run_that_died_before_its_commit_leaves_no_verdict(history: History, tmp_path: Path) -> None:
    """The tables of the audit are committed first: what they have of that run must not count."""
    lake, (first, second) = Lake(tmp_path), cut(history, random.Random(3), 2)
    take_in(lake, first)
    before = verdicts_of(lake)
    dying = Lake(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dying.tasks, "commit", lambda *_, **__: None)
        take_in(dying, second)
    assert verdicts_of(Lake(tmp_path)) == before
    update_tasks(Lake(tmp_path))
    assert broken(lake) == set()
