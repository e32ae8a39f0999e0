"""Whether a whole history kept the promises of the queue: one verdict per rule, with the rows that break it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from codeq.pipeline.audit import rules
from codeq.pipeline.audit.rules import RULES, Reading, Rule

__all__ = ["EXAMPLES_MAX", "RULES", "Verdict", "audit", "is_clean", "offending", "to_json", "to_text"]

EXAMPLES_MAX = 10
"""Offending rows shown per rule: enough to see the pattern, and no flood when everything is wrong."""


@dataclass(frozen=True)
class Verdict:
    rule: str
    text: str
    checked: int
    """Rows that the rule was about; 0 where it could not be checked."""
    violations: int
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def word(self) -> str:
        return "FAIL" if self.violations else "ok" if self.checked else "not checked"


def audit(
    events: DataFrame, listing: DataFrame | None = None, *, settled: Mapping[int, int] | None = None
) -> list[Verdict]:
    """Check every rule over the whole history. Without the store's listing, `accounted` is left unchecked.

    One pass per reading of the log counts everything; only rules that are broken are read again, for examples.
    """
    verdicts: dict[str, Verdict] = {}
    for reading in Reading:
        mine = [rule for rule in RULES if rule.reading is reading]
        rows = _read(reading, events, listing, settled)
        verdicts |= {v.rule: v for v in ([_unchecked(rule) for rule in mine] if rows is None else _judge(mine, rows))}
    return [verdicts[rule.name] for rule in RULES]


def offending(
    name: str, events: DataFrame, listing: DataFrame | None = None, *, settled: Mapping[int, int] | None = None
) -> DataFrame:
    """Every row that breaks this rule: rule, tenant, task_id, shard, seq, detail."""
    [rule] = [rule for rule in RULES if rule.name == name]
    rows = _read(rule.reading, events, listing, settled)
    if rows is None:
        raise ValueError(f"the rule {name} needs the store's listing")
    return rule.offending(rows)


def is_clean(verdicts: Sequence[Verdict]) -> bool:
    return not any(verdict.violations for verdict in verdicts)


def to_text(verdicts: Sequence[Verdict]) -> str:
    """A table for a terminal, and below it the rows that break a rule."""
    width = max(len(verdict.rule) for verdict in verdicts)
    lines = [f"{'rule':{width}}  {'verdict':11}  {'checked':>12}  {'violations':>10}  what must hold"]
    lines += [f"{v.rule:{width}}  {v.word:11}  {v.checked:12,}  {v.violations:10,}  {v.text}" for v in verdicts]
    for verdict in verdicts:
        if verdict.violations:
            lines += ["", f"{verdict.rule}: {verdict.violations:,} violations"]
            lines += [f"  {e['tenant']} {e['task_id']} shard {e['shard']} event {e['seq']}: {e['detail']}"
                      for e in verdict.examples]  # fmt: skip
            if verdict.violations > len(verdict.examples):
                lines.append(f"  and {verdict.violations - len(verdict.examples):,} more")
    return "\n".join(lines) + "\n"


def to_json(verdicts: Sequence[Verdict]) -> bytes:
    told = {"clean": is_clean(verdicts), "rules": [asdict(v) | {"verdict": v.word} for v in verdicts]}
    return msgspec.json.format(msgspec.json.encode(told), indent=2)


def _read(
    reading: Reading, events: DataFrame, listing: DataFrame | None, settled: Mapping[int, int] | None
) -> DataFrame | None:
    match reading:
        case Reading.STEPS:
            return rules.steps(events)
        case Reading.NUMBERS:
            return rules.numbers(events)
        case Reading.STAYS:
            return rules.stays(events)
        case Reading.STANDING:
            return None if listing is None else rules.standing(events, listing, settled)


def _judge(mine: Sequence[Rule], rows: DataFrame) -> list[Verdict]:
    counts = rows.agg(
        *(rule.checked().alias(f"{rule.name}_checked") for rule in mine),
        *(rule.violations().alias(f"{rule.name}_violations") for rule in mine),
    ).first()
    assert counts is not None  # noqa: S101 - an aggregate without groups has one row
    verdicts = []
    for rule in mine:
        checked, violations = counts[f"{rule.name}_checked"], counts[f"{rule.name}_violations"]
        found = rule.offending(rows).orderBy("shard", "seq").limit(EXAMPLES_MAX).drop("rule") if violations else None
        examples = [row.asDict() for row in found.collect()] if found is not None else []
        verdicts.append(Verdict(rule.name, rule.text, checked, violations, examples))
    return verdicts


def _unchecked(rule: Rule) -> Verdict:
    return Verdict(rule.name, rule.text, 0, 0)
