"""Records the verdicts of the audit with the batches of silver_tasks, and reads them.

The counts of each rule are marks of the commit that has the batch, so they are exactly as new as its rows, and reading
them costs the same after any history. What does not fit into marks is in two tables that are committed just before:
evidence of violations, which is true whether silver_tasks comes to have the batch or not; and how far each queue was
claimed. The commit of silver_tasks names the rows of these that belong to it, so those of a run that died are nobody's.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from codeq.pipeline.audit import EXAMPLES_MAX, RULES, Verdict, is_clean
from codeq.pipeline.lake import parquet
from codeq.pipeline.lake.data_file import EVENTS, DataFile
from codeq.pipeline.lake.judge import Judgement, Queue, Violation, judge_order
from codeq.pipeline.lake.table import Lake, LakeTable

SCOPE = "codeq.scope"
"""A property of bronze: whose events it has; empty if it has all."""
_FIRST = "codeq/first"
"""Marks, by shard: the first event that silver_tasks took in."""
_AUDIT, _TOKEN = "codeq/audit", "codeq/queues"
_COUNTS = ("checked", "violations")
_ROWS_MAX = 1 << 30


class Auditor:
    """Judges the steps of silver_tasks."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._is_scoped = bool(lake.bronze.properties.get(SCOPE))

    def whole_shards(self, starts: Mapping[int, int]) -> frozenset[int]:
        """Returns the shards whose log silver_tasks has from the first event on."""
        return frozenset(shard for shard, first in self._first_events(starts).items() if first == 1)

    def record(
        self, judgements: Sequence[Judgement], starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> dict[str, int]:
        """Records what was found in the events from `starts` to before `ends`. Returns the marks for the commit."""
        whole = Judgement()
        for one in judgements:
            for rule, checked in one.checked.items():
                of_rule = [violation for violation in one.evidence if violation.rule == rule]
                whole.add(rule, checked=checked, violations=one.violations[rule], evidence=of_rule)
        first = self._first_events(starts)
        if not self._is_scoped:
            _judge_numbers(judgements, {shard: max(starts.get(shard, 0), first[shard]) for shard in first}, ends, whole)
        marks = self._judge_order(judgements, whole)
        self._record_evidence(whole.evidence)
        marks |= {f"{_FIRST}/{shard}": number for shard, number in first.items()}
        for rule, checked in whole.checked.items():
            for name, number in (("checked", checked), ("violations", whole.violations[rule])):
                marks[_mark(rule, name)] = number + (self._lake.tasks.mark(_mark(rule, name)) or 0)
        return marks

    def _first_events(self, starts: Mapping[int, int]) -> dict[int, int]:
        """Returns the first event that silver_tasks has, or is about to take in, of each shard."""
        in_bronze: dict[int, int] = {}
        for file in self._lake.bronze.files(part=EVENTS):
            if file.shard is not None:
                in_bronze.setdefault(file.shard, file.first_seq)
        found = {}
        for shard, start in starts.items():
            known = self._lake.tasks.mark(f"{_FIRST}/{shard}")
            first = known or start or in_bronze.get(shard)
            if first:
                found[shard] = first
        return found

    def _judge_order(self, judgements: Sequence[Judgement], whole: Judgement) -> dict[str, int]:
        """Judges the order of queues, and records how far they were claimed. Returns the mark for the commit."""
        known = _highest_claimed(self._lake)
        highest = dict(known)
        judge_order([one.departures for one in judgements], highest, whole)
        if highest == known:
            return {}
        table, tasks, token = self._lake.queues, self._lake.tasks, secrets.randbits(62)
        rows = pa.table(
            list(zip(*((*queue, number, token) for queue, number in highest.items()), strict=True)),
            schema=table.arrow_schema,
        )
        # Another run may be about to commit the same batch, with rows of its own.
        old = [file for file in table.files() if file.batch < tasks.batch or table.epoch != tasks.epoch]
        _commit(table, rows, batch=tasks.batch + 1, removed=old, epoch=tasks.epoch)
        return {_TOKEN: token}

    def _record_evidence(self, evidence: Sequence[Violation]) -> None:
        table, tasks = self._lake.violations, self._lake.tasks
        old = table.files() if table.epoch != tasks.epoch else []
        if evidence or old:
            rows = pa.Table.from_pylist([msgspec.structs.asdict(one) for one in evidence], schema=table.arrow_schema)
            _commit(table, rows, batch=tasks.batch + 1, removed=old, epoch=tasks.epoch)


def verdicts_of(lake: Lake) -> list[Verdict]:
    """Returns the verdicts on all events that silver has taken in, without reading any of them. `accounted` needs the
    store's listing, and is not checked.
    """
    found = []
    for rule in RULES:
        checked, violations = (lake.tasks.mark(_mark(rule.name, name)) or 0 for name in _COUNTS)
        found.append(Verdict(rule.name, rule.text, checked, violations))
    if is_clean(found):
        return found
    examples = _evidence(lake)
    return [replace(verdict, examples=examples.get(verdict.rule, [])) for verdict in found]


def cleared_marks(table: LakeTable) -> dict[str, int]:
    """Returns the marks with which a table begins to be rebuilt: nothing was judged yet."""
    names = [_mark(rule.name, name) for rule in RULES for name in _COUNTS]
    names += [f"{_FIRST}/{shard}" for shard in table.offsets] + [_TOKEN]
    return {name: 0 for name in names if table.mark(name) is not None}


def _judge_numbers(
    judgements: Sequence[Judgement], starts: Mapping[int, int], ends: Mapping[int, int], whole: Judgement
) -> None:
    """Judges whether every number from `starts` to before `ends` was there once, by their count and their sum."""
    for shard, start in starts.items():
        end = max(start, ends.get(shard, start))
        found = [one.numbers.get(shard, (0, 0)) for one in judgements]
        count, total = sum(one[0] for one in found), sum(one[1] for one in found)
        wanted, wanted_total = end - start, (start + end - 1) * (end - start) // 2
        broken = abs(wanted - count) or int(total != wanted_total)
        detail = f"events {start} to {end - 1} are {wanted:,}, and {count:,} of them are there"
        evidence = [Violation(rule="gapless", shard=shard, seq=start, detail=detail)] if broken else []
        whole.add("gapless", checked=count, violations=broken, evidence=evidence)


def _highest_claimed(lake: Lake) -> dict[Queue, int]:
    """Returns the highest entry that was claimed from each queue, as of the batch of silver_tasks."""
    token = lake.tasks.mark(_TOKEN)
    if not token or lake.queues.epoch != lake.tasks.epoch:
        return {}
    rows = lake.queues.parquet_files(lake.queues.files()).read()
    rows = rows.filter(pc.equal(rows["token"], token)).select(["tenant", "command", "priority", "shard", "highest"])
    return {
        (tenant, command, priority, shard): highest
        for tenant, command, priority, shard, highest in zip(*(c.to_pylist() for c in rows.columns), strict=True)
    }


def _evidence(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Returns up to EXAMPLES_MAX violations of each rule, the first ones. A run that died may have left some twice."""
    if lake.violations.epoch != lake.tasks.epoch:
        return {}
    rows = lake.violations.parquet_files(lake.violations.files()).read()
    found: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    for row in rows.sort_by([("shard", "ascending"), ("seq", "ascending")]).to_pylist():
        of_rule = found.setdefault(row.pop("rule"), {})
        if len(of_rule) < EXAMPLES_MAX:
            of_rule.setdefault((row["shard"], row["seq"]), row)
    return {rule: list(of_rule.values()) for rule, of_rule in found.items()}


def _commit(table: LakeTable, rows: pa.Table, *, batch: int, removed: Sequence[DataFile], epoch: int) -> None:
    target = table.target(table.new_folder(batch), EVENTS)
    files = parquet.write_rows(target, rows, rows_max=_ROWS_MAX)
    table.commit(files, batch=batch, removed=removed, epoch=epoch)


def _mark(rule: str, name: str) -> str:
    return f"{_AUDIT}/{rule}/{name}"
