"""Whether an event log keeps the guarantees of the queue: one verdict per rule, with the rows that break it.

Imports PySpark alone: it gets events and listing as DataFrames.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from codeq.pipeline.audit import rules
from codeq.pipeline.audit.rules import RULES, LogView, Rule

__all__ = ["EXAMPLES_MAX", "RULES", "Verdict", "audit", "is_clean", "offending", "to_json", "to_text"]

EXAMPLES_MAX = 10
"""Offending rows shown per rule: enough to see a pattern, and few enough if everything is wrong."""


@dataclass(frozen=True)
class Verdict:
    """The result of one rule."""

    rule: str
    text: str
    checked: int
    """Rows that the rule applies to; 0 if it could not be checked."""
    violations: int
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return "FAIL" if self.violations else "ok" if self.checked else "not checked"


def audit(
    events: DataFrame, listing: DataFrame | None = None, *, settled: Mapping[int, int] | None = None
) -> list[Verdict]:
    """Checks every rule over the whole log. Without the store's listing, `accounted` is not checked.

    One pass per view of the log counts all violations; only broken rules take another pass, for examples.
    """
    verdicts: dict[str, Verdict] = {}
    for view in LogView:
        of_view = [rule for rule in RULES if rule.view is view]
        rows = _rows_of(view, events, listing, settled)
        checked = [Verdict(rule.name, rule.text, 0, 0) for rule in of_view] if rows is None else _check(of_view, rows)
        verdicts |= {verdict.rule: verdict for verdict in checked}
    return [verdicts[rule.name] for rule in RULES]


def offending(
    name: str, events: DataFrame, listing: DataFrame | None = None, *, settled: Mapping[int, int] | None = None
) -> DataFrame:
    """Returns every row that breaks this rule: rule, tenant, task_id, shard, seq, detail."""
    [rule] = [rule for rule in RULES if rule.name == name]
    rows = _rows_of(rule.view, events, listing, settled)
    if rows is None:
        raise ValueError(f"the rule {name} needs the store's listing")
    return rule.offending(rows)


def is_clean(verdicts: Sequence[Verdict]) -> bool:
    return not any(verdict.violations for verdict in verdicts)


def to_text(verdicts: Sequence[Verdict]) -> str:
    """Returns a table for a terminal, followed by rows that break a rule."""
    width = max(len(verdict.rule) for verdict in verdicts)
    lines = [f"{'rule':{width}}  {'verdict':11}  {'checked':>12}  {'violations':>10}  what must hold"]
    lines += [f"{v.rule:{width}}  {v.label:11}  {v.checked:12,}  {v.violations:10,}  {v.text}" for v in verdicts]
    for verdict in verdicts:
        if verdict.violations:
            lines += ["", f"{verdict.rule}: {verdict.violations:,} violations"]
            lines += [f"  {e['tenant'] or '-'} {e['task_id'] or '-'} shard {e['shard']} event {e['seq']}: {e['detail']}"
                      for e in verdict.examples]  # fmt: skip
            if verdict.violations > len(verdict.examples):
                lines.append(f"  and {verdict.violations - len(verdict.examples):,} more")
    return "\n".join(lines) + "\n"


def to_json(verdicts: Sequence[Verdict]) -> bytes:
    result = {"clean": is_clean(verdicts), "rules": [asdict(v) | {"verdict": v.label} for v in verdicts]}
    return msgspec.json.format(msgspec.json.encode(result), indent=2)


def _rows_of(
    view: LogView, events: DataFrame, listing: DataFrame | None, settled: Mapping[int, int] | None
) -> DataFrame | None:
    match view:
        case LogView.TASK_STEPS:
            return rules.task_steps(events)
        case LogView.SHARD_SEQUENCE:
            return rules.shard_sequence(events)
        case LogView.READY_PERIODS:
            return rules.ready_periods(events)
        case LogView.LAST_STATES:
            return None if listing is None else rules.last_states(events, listing, settled)


def _check(of_view: Sequence[Rule], rows: DataFrame) -> list[Verdict]:
    counts = rows.agg(
        *(rule.checked().alias(f"{rule.name}_checked") for rule in of_view),
        *(rule.violations().alias(f"{rule.name}_violations") for rule in of_view),
    ).first()
    assert counts is not None  # noqa: S101 - an aggregate without groups has one row
    verdicts = []
    for rule in of_view:
        checked, violations = counts[f"{rule.name}_checked"], counts[f"{rule.name}_violations"]
        found = rule.offending(rows).orderBy("shard", "seq").limit(EXAMPLES_MAX).drop("rule") if violations else None
        examples = [row.asDict() for row in found.collect()] if found is not None else []
        verdicts.append(Verdict(rule.name, rule.text, checked, violations, examples))
    return verdicts
