"""Judges new events by the rules of the audit, where silver brings them to the open rows of their tasks.

An open row stands for all events of its task so far: its columns are those of the latest one. So each event is compared
with the one before it without reading history. The rules are those of `audit/rules.py`.

Closed rows are not at hand. A task that has none here, and does not begin with its enqueue, has gone on after its end,
or has lost its beginning: both break `transitions`. Only a purge comes after the end, so it is judged by itself.
"""

import io
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct, field

from codeq.domain.task import Move, Status
from codeq.pipeline.audit.columns import ARROW
from codeq.pipeline.audit.rules import RULES, LogView, Rule
from codeq.pipeline.lake.grouping import NO_ROW, Groups, Numbers, Rows, dictionary_encoded, take, take_numbers

EVIDENCE_MAX = 100
"""Violations of a rule that a batch records. All of them are counted."""
_OPEN_ROW = {
    "task_id": "task_id", "move": "last_move", "status_after": "status", "lease_token": "deliveries",
    "worker_id": "last_worker", "visible_at": "visible_at", "attempts": "attempts",
    "deliveries": "current_deliveries", "seq": "last_seq",
}  # fmt: skip
"""The columns of an open row that stand for its latest event."""
_BEFORE = ("move", "status_after", "lease_token", "worker_id", "visible_at", "attempts", "deliveries", "seq")
_COMPARED = frozenset({"move", "move_before", "status_before", "status_after", "status_after_before"})
"""Texts that decide whether a rule is broken."""
_QUEUE = ("tenant", "command", "priority", "shard")
_EVENT = ("task_id", *_QUEUE, "seq", "at", "move", "status_before", "status_after", "attempts", "deliveries",
          "max_attempts", "lease_token", "worker_id", "visible_at")  # fmt: skip


class Violation(Struct, frozen=True):
    rule: str
    shard: int
    seq: int
    detail: str
    tenant: str | None = None
    task_id: str | None = None


class Judgement(Struct, kw_only=True):
    """What the events of a Spark task were found to be."""

    checked: dict[str, int] = {}
    violations: dict[str, int] = {}
    evidence: list[Violation] = []
    numbers: dict[int, tuple[int, int]] = {}
    """By shard: how many events there were, and the sum of their numbers."""
    departures: bytes = field(default=b"")
    """The tasks that left their queue, as a table in Arrow's format: queue, `entered`, `left` and `is_claim`."""

    def add(self, rule: str, *, checked: int, violations: int = 0, evidence: Iterable[Violation] = ()) -> None:
        self.checked[rule] = self.checked.get(rule, 0) + checked
        self.violations[rule] = self.violations.get(rule, 0) + violations
        room = EVIDENCE_MAX - sum(one.rule == rule for one in self.evidence)
        self.evidence += list(evidence)[:room]


def judge(open_rows: pa.Table, events: pa.Table, whole_shards: frozenset[int]) -> Judgement:
    """Judges the events by the rules that compare an event with the one before it of its task. `whole_shards` are those
    whose log the lake has from the first event on.
    """
    judgement = Judgement()
    if not len(events):
        return judgement
    steps = task_steps(open_rows, events, whole_shards)
    for rule in RULES:
        if rule.view is LogView.TASK_STEPS:
            _judge(rule, steps, judgement)
    shards, numbers = steps["shard"].to_numpy(), steps["seq"].to_numpy()
    for shard in np.unique(shards).tolist():
        of_shard = numbers[shards == shard]
        judgement.numbers[shard] = len(of_shard), int(of_shard.sum())
    judgement.departures = _departures(steps)
    return judgement


def task_steps(open_rows: pa.Table, events: pa.Table, whole_shards: frozenset[int]) -> pa.Table:
    """Returns the events with the columns of the event before each, in the order of their numbers."""
    events = events.select(_EVENT).take(pc.sort_indices(events["seq"]))
    known = pa.table({name: open_rows.column(column) for name, column in _OPEN_ROW.items()})
    both = pa.concat_tables([dictionary_encoded(known), dictionary_encoded(events)], promote_options="default")
    rows, is_known = Rows(both), np.arange(len(both)) < len(known)
    groups = Groups(rows.column("task_id"))
    before = groups.latest_before(np.ones(len(rows), bool))
    second = np.where(before == NO_ROW, NO_ROW, before[before])
    # An open row that was just promoted has the time of its delay, which is in the event before for others.
    follows_open_row = take_numbers(is_known.astype(np.int64), before) == 1
    second = np.where(follows_open_row, before, second)
    results, replays = (
        rows.is_in("move", *moves) & ~is_known for moves in ((Move.COMPLETE, Move.FAIL), (Move.REPLAY,))
    )
    columns = {f"{name}_before": take(rows.column(name), before) for name in _BEFORE}
    is_whole = np.isin(rows.numbers("shard"), list(whole_shards)) & ~rows.is_in("move", Move.PURGE)
    highest = groups.highest_before(rows.numbers("lease_token"))
    columns |= {
        "visible_at_second_before": take(rows.column("visible_at"), second),
        "highest_token": pa.array(highest, mask=highest == NO_ROW),
        "last_result": take(rows.column("seq"), groups.latest_before(results)),
        "last_replay": take(rows.column("seq"), groups.latest_before(replays)),
        "is_first": pa.array(before == NO_ROW),
        "is_whole": pa.array(is_whole),
        "is_from_open_row": pa.array(follows_open_row),
    }
    steps = pa.table({**{name: rows.column(name) for name in _EVENT}, **columns}).slice(len(known))
    return _with_plain_texts(steps, _COMPARED)


def _with_plain_texts(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Decodes texts: rules compare texts with texts, and Arrow cannot do all of it with encoded ones."""
    for index, column in enumerate(table.schema):
        if column.name in names and pa.types.is_dictionary(column.type):
            table = table.set_column(index, column.name, table.column(index).cast(pa.string()))
    return table


def _judge(rule: Rule, steps: pa.Table, judgement: Judgement) -> None:
    applies, broken = rule.applies(ARROW), rule.broken(ARROW)
    found = ds.dataset(steps).scanner(columns={"applies": applies, "broken": applies & broken}).to_table()
    violations = pc.sum(found["broken"]).as_py() or 0
    evidence: list[Violation] = []
    if violations:
        rows = steps.filter(found["broken"]).slice(0, EVIDENCE_MAX)
        rows = _with_plain_texts(rows, rows.column_names)
        shown = {name: pc.field(name) for name in ("shard", "seq", "tenant", "task_id")}
        shown["detail"] = rule.detail(ARROW)
        evidence = [
            Violation(rule=rule.name, **row) for row in ds.dataset(rows).scanner(columns=shown).to_table().to_pylist()
        ]
    judgement.add(rule.name, checked=pc.sum(found["applies"]).as_py() or 0, violations=violations, evidence=evidence)


# -- the order of a queue ----------------------------------------------------------------------------------------------


def _departures(steps: pa.Table) -> bytes:
    """Returns when tasks that were ready left their queue, and when they had entered it."""
    rows = Rows(steps)
    is_ready = ~rows.has("visible_at_before")
    is_ready |= rows.numbers("is_from_open_row").astype(bool) & rows.is_in("move_before", Move.PROMOTE)
    left = pa.array(is_ready & rows.is_in("status_after_before", Status.PENDING))
    table = pa.table({
        **{name: steps[name] for name in _QUEUE},
        "entered": steps["seq_before"],
        "left": steps["seq"],
        "is_claim": pa.array(rows.is_in("move", Move.CLAIM)),
    })  # fmt: skip
    target = io.BytesIO()
    with pa.ipc.new_stream(target, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.filter(left).combine_chunks())
    return target.getvalue()


Queue = tuple[str, str, int, int]
"""Tenant, command, priority and shard."""


def judge_order(departures: Iterable[bytes], highest: dict[Queue, int], judgement: Judgement) -> None:
    """Judges whether tasks left their queues in the order in which they had entered, and updates the highest entry that
    was claimed from each queue. `audit/rules.py` says why that is enough.

    A task that was overtaken and still waits is found when it leaves; a full audit finds it before.
    """
    tables = [pa.ipc.open_stream(one).read_all() for one in departures if one]
    if not tables:
        return
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks().sort_by("left").combine_chunks()
    entered, left, is_claim = (rows[name].to_numpy() for name in ("entered", "left", "is_claim"))
    for queue, places in _by_queue(rows):
        claimed = np.where(is_claim[places], entered[places], NO_ROW)
        passed = np.maximum.accumulate(np.append(highest.get(queue, NO_ROW), claimed))
        broken = np.flatnonzero(passed[:-1] > entered[places])
        evidence = [
            Violation(
                rule="fifo", tenant=queue[0], shard=queue[3], seq=int(entered[places][i]),
                detail=f"ready since event {entered[places][i]}, but one that was ready later, at event {passed[i]}, "
                f"was claimed before it left at event {left[places][i]}",
            )
            for i in broken[:EVIDENCE_MAX]
        ]  # fmt: skip
        judgement.add("fifo", checked=len(places), violations=len(broken), evidence=evidence)
        if passed[-1] != NO_ROW:
            highest[queue] = int(passed[-1])


def _by_queue(rows: pa.Table) -> Iterator[tuple[Queue, Numbers]]:
    """Yields the rows of each queue."""
    codes = np.zeros(len(rows), np.int64)
    for name in _QUEUE:
        encoded = rows[name].combine_chunks().dictionary_encode()
        numbers = encoded.indices.to_numpy()
        codes = np.unique(codes * (numbers.max(initial=0) + 1) + numbers, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(codes[order]) != 0)[: len(order)])
    for places in np.split(order, starts[1:]) if len(order) else ():
        tenant, command, priority, shard = (rows[name][int(places[0])].as_py() for name in _QUEUE)
        yield (tenant, command, priority, shard), places
