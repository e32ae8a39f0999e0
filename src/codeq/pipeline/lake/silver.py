"""Updates the silver tables: one row per delivery and one per task.

Both functions take the open rows so far and new events, each event once and in any order, and return the rows that are
still open and those that these events have closed. The rows are the same however the events are cut into batches.

Each row is computed in one pass, without comparing an event with the next: a delivery takes its columns from its claim
and its end; a task takes its columns from the latest event, and sums of times. The total run time of a task is the sum
of the times at which deliveries ended, minus the sum of the times at which they began.

Spark runs this on Arrow tables that hold all rows of some of the tasks: see `partitions.py`.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codeq.domain.task import DEAD_LETTERING, Move, Status
from codeq.pipeline.lake.grouping import (
    NO_ROW,
    Groups,
    Mask,
    Numbers,
    Rows,
    dictionary_encoded,
    elapsed_ms,
    null_unless,
    take,
    take_numbers,
    texts_by_number,
)
from codeq.pipeline.lake.tables import SILVER_ATTEMPTS, SILVER_TASKS


def attempts(open_rows: pa.Table, events: pa.Table) -> pa.Table:
    """Returns the deliveries that are open or were closed by these events. A delivery whose task was cancelled before
    the claim is dropped.

    The lease token assigns an event to a delivery: a claim and the event that ends the delivery have the number of the
    delivery, and the event that made the task ready has the number before it.
    """
    return _Deliveries(open_rows, events).table()


def tasks(open_rows: pa.Table, events: pa.Table) -> pa.Table:
    """Returns the tasks that are open or were closed by these events. A purge closes a dead task and changes no other
    column.
    """
    return _Tasks(open_rows, events).table()


# -- deliveries --------------------------------------------------------------------------------------------------------

_CONSTANT = ("tenant", "command", "task_id", "shard", "priority", "max_attempts")


class _Deliveries:
    """Computes rows of deliveries from parts. A part is an open row of the delivery, an event of it, or the event that
    made its task ready.

    Parts of one kind are in order. Each kind fills other columns, so kinds need no order among them.
    """

    def __init__(self, open_rows: pa.Table, events: pa.Table) -> None:
        events = _in_order(events)
        columns = Rows(events)
        was_running = columns.is_in("status_before", Status.IN_PROGRESS)
        is_ready = columns.is_in("status_after", Status.PENDING)
        is_claim = columns.is_in("move", Move.CLAIM)
        is_withdrawal = columns.is_in("move", Move.CANCEL) & columns.is_in("status_before", Status.PENDING)
        current, next_one = np.flatnonzero(is_claim | was_running), np.flatnonzero(is_ready | is_withdrawal)
        self._rows = Rows(_stacked(_parts_of_open_rows(open_rows), _parts_of_events(events, columns)))
        known = len(open_rows)
        self._row_of = np.concatenate([np.arange(known), known + current, known + next_one])
        """The row of each part: open rows, then events of a delivery, then events before one."""
        ids = self._rows.column("task_id").dictionary_encode().indices.to_numpy().astype(np.int64)
        tokens = self._rows.numbers("lease_token")[self._row_of]
        tokens[known + len(current) :] += 1
        self._groups = Groups(pa.array(ids[self._row_of] * (tokens.max(initial=0) + 1) + tokens))
        self._tokens = tokens

        was_open = self._of_kind(np.ones(known, bool), start=0)
        self._is_claim = self._of_kind(is_claim[current], start=known)
        self._is_end = self._of_kind(~is_claim[current], start=known)
        self._is_ready = self._of_kind(is_ready[next_one], start=known + len(current))
        self._is_withdrawn = self._of_kind(~is_ready[next_one], start=known + len(current))
        self._is_claim |= was_open & self._rows.has("claimed_at")[self._row_of]
        self._is_ready |= was_open & self._rows.has("ready_by")[self._row_of]

    def table(self) -> pa.Table:
        groups, any_part = self._groups, np.ones(len(self._row_of), bool)
        # The first event that made the task ready, because the end of a delay comes after its beginning.
        ready, claim = groups.first(self._is_ready), groups.last(self._is_claim)
        end, any_last = groups.last(self._is_end), groups.last(any_part)
        columns = {
            **self._columns(any_last, *_CONSTANT),
            **self._columns(ready, "ready_by", "visible_at", "ready_at"),
            **self._columns(claim, "claimed_at", "lease_until"),
            **self._columns(end, "ended_at", "ended_by", "status_after"),
        }
        is_dead = _is_dead_letter(Rows(pa.table({"move": columns["ended_by"], "status": columns["status_after"]})))
        ended_by = Rows(pa.table({"ended_by": columns["ended_by"]}))
        has_failed = is_dead | ended_by.is_in("ended_by", Move.FAIL, Move.NACK, Move.EXPIRE)
        columns |= {
            "lease_token": pa.array(take_numbers(self._tokens, any_last)),
            "attempt": pc.coalesce(self._column("attempt", claim), self._column("attempt", end)),
            **{
                name: pc.coalesce(self._column(name, claim), self._column(name, end))
                for name in ("worker_id", "worker_name")
            },
            "error": null_unless(has_failed, self._column("error", end)),
            "is_dead": pa.array(is_dead, mask=end == NO_ROW),
            "wait_ms": elapsed_ms(columns["ready_at"], columns["claimed_at"]),
            "run_ms": elapsed_ms(columns["claimed_at"], columns["ended_at"]),
            "first_seq": pa.array(groups.minimum(self._rows.numbers("first_seq")[self._row_of])),
            "last_seq": pa.array(groups.maximum(self._rows.numbers("last_seq")[self._row_of])),
            "is_open": pa.array(end == NO_ROW),
        }
        has_begun = (claim != NO_ROW) | (end != NO_ROW)
        exists = has_begun | ~groups.has(self._is_withdrawn)
        return pa.table({name: columns[name] for name in SILVER_ATTEMPTS.names}).filter(pa.array(exists))

    def _columns(self, parts: Numbers, *names: str) -> dict[str, pa.Array]:
        return {name: self._column(name, parts) for name in names}

    def _column(self, name: str, parts: Numbers) -> pa.Array:
        """The values of these parts, one of each delivery."""
        rows = np.where(parts == NO_ROW, NO_ROW, self._row_of[parts]) if len(self._row_of) else parts
        return take(self._rows.column(name), rows)

    def _of_kind(self, parts: Mask, *, start: int) -> Mask:
        """A mask of all parts, with these from `start` on."""
        mask = np.zeros(len(self._row_of), bool)
        mask[start : start + len(parts)] = parts
        return mask


def _parts_of_open_rows(open_rows: pa.Table) -> pa.Table:
    """Columns that an open row has from the events before."""
    names = ("lease_token", "ready_by", "visible_at", "ready_at", "claimed_at", "attempt", "worker_id", "worker_name",
             "lease_until")  # fmt: skip
    return open_rows.select([*_CONSTANT, *names, "first_seq", "last_seq"])


def _parts_of_events(events: pa.Table, columns: Rows) -> pa.Table:
    # The event that ends a failed delivery has counted it already.
    attempt = columns.numbers("attempts") + ~columns.is_in("move", Move.NACK, Move.EXPIRE)
    new = {
        "lease_token": "lease_token", "ready_by": "move", "visible_at": "visible_at", "claimed_at": "at",
        "worker_id": "worker_id", "worker_name": "worker_name", "lease_until": "lease_until",
        "first_seq": "seq", "last_seq": "seq",
        "ended_at": "at", "ended_by": "move", "status_after": "status_after", "error": "error",
    }  # fmt: skip
    table = _renamed(events, {**{name: name for name in _CONSTANT}, **new})
    table = table.append_column("attempt", pa.array(attempt, pa.int32()))
    return table.append_column("ready_at", pc.coalesce(events["visible_at"], events["at"]))


# -- tasks -------------------------------------------------------------------------------------------------------------

_COUNTED = {"nacks": Move.NACK, "expiries": Move.EXPIRE, "abandons": Move.ABANDON, "replays": Move.REPLAY,
            "promotes": Move.PROMOTE}  # fmt: skip
_TASK_CONSTANT = (*_CONSTANT, "payload_bytes", "trace_id")
_LAST = {
    "status": "status_after", "last_move": "move", "last_at": "at", "deliveries": "lease_token", "attempts": "attempts",
    "current_deliveries": "deliveries",
    "visible_at": "visible_at", "last_error": "error", "last_worker": "worker_id", "last_seq": "seq",
    "artifacts": "artifacts", "artifact_bytes": "artifact_bytes",
}  # fmt: skip
"""Columns of a task that are taken from its latest step: the name in a row, and the name in an event."""


class _Tasks:
    """Computes rows of tasks from steps. A step is an open row, which stands for all events before, or a new event.
    Steps are in order.
    """

    def __init__(self, open_rows: pa.Table, events: pa.Table) -> None:
        steps = _renamed(_in_order(events), {
            **{name: name for name in _TASK_CONSTANT},
            **_LAST,
            **dict.fromkeys(("enqueued_at", "first_claimed_at"), "at"),
            "first_seq": "seq",
            "status_before": "status_before",
        })  # fmt: skip
        self._steps = rows = Rows(_stacked(open_rows, steps))
        self._groups = Groups(rows.column("task_id"))
        self._was_open = np.arange(len(rows)) < len(open_rows)
        self._is_new = ~self._was_open
        self._is_claim = self._moved(Move.CLAIM)
        self._is_purge = self._moved(Move.PURGE)
        self._was_running = self._is_new & rows.is_in("status_before", Status.IN_PROGRESS)
        self._at_ms = rows.numbers("last_at") // 1000

    def table(self) -> pa.Table:
        rows, groups = self._steps, self._groups
        everywhere = np.ones(len(rows), bool)
        last, first = groups.last(~self._is_purge), groups.first(everywhere)
        columns = {name: take(rows.column(name), first) for name in (*_TASK_CONSTANT, "first_seq")}
        columns |= {name: take(rows.column(name), last) for name in _LAST}
        columns["last_worker"] = self._latest("last_worker", rows.has("last_worker"))
        for name, move in _COUNTED.items():
            counts = np.where(self._is_new, self._moved(move), rows.numbers(name))
            columns[name] = pa.array(groups.total(counts, everywhere))
        is_first_claim = self._is_claim & (rows.numbers("deliveries") == 1)
        for name, is_event in {"enqueued_at": self._moved(Move.ENQUEUE), "first_claimed_at": is_first_claim}.items():
            found = groups.first(is_event | (self._was_open & rows.has(name)))
            columns[name] = take(rows.column(name), found)
        columns |= self._times(last)
        columns |= self._outcomes(columns)
        table = pa.table({name: columns[name] for name in SILVER_TASKS.names})
        return table.filter(pa.array(last != NO_ROW))

    def _outcomes(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Computes the columns that follow from the latest step."""
        latest = Rows(pa.table({"status": columns["status"], "move": columns["last_move"]}))
        is_live = latest.is_in("status", Status.PENDING, Status.IN_PROGRESS)
        is_dead = _is_dead_letter(latest)
        ended_at = null_unless(~is_live, columns["last_at"])
        outcomes = ("live", "completed", "cancelled", "dead", "failed")
        is_completed, is_cancelled = (latest.is_in("status", of) for of in (Status.COMPLETED, Status.CANCELLED))
        conditions = [is_live, is_completed, is_cancelled, is_dead]
        outcome = np.select(conditions, list(range(len(conditions))), default=len(conditions))
        was_promoted = pa.array(latest.is_in("move", Move.PROMOTE))
        latest_delay = self._latest("visible_at", self._steps.has("visible_at"))
        return {
            "visible_at": pc.if_else(was_promoted, latest_delay, columns["visible_at"]),
            "ended_at": ended_at,
            "outcome": texts_by_number(outcomes, outcome),
            "is_dead": pa.array(is_dead),
            "end_to_end_ms": elapsed_ms(columns["enqueued_at"], ended_at),
            "is_open": pa.array(is_live | (is_dead & ~self._groups.has(self._is_purge))),
        }

    def _times(self, last: Numbers) -> dict[str, pa.Array]:
        """Computes the total wait and run times as sums of ends minus sums of beginnings.

        What has not ended yet is subtracted again; and so is what began before the first event in the log, unless an
        open row has counted it.
        """
        rows, groups, at_ms = self._steps, self._groups, self._at_ms
        is_pending, is_running = (rows.is_in("status", of) for of in (Status.PENDING, Status.IN_PROGRESS))
        is_ready = is_pending & ~(self._is_new & self._moved(Move.PROMOTE))
        ready_ms = np.where(rows.has("visible_at"), rows.numbers("visible_at") // 1000, at_ms)
        ran_already = self._was_open & is_running
        latest_ready, latest_claim = groups.last(is_ready), groups.last(self._is_claim | ran_already)
        claimed_ms = groups.total(at_ms, self._is_claim)

        begin = groups.first(self._is_new)
        starts_late = ~groups.has(self._was_open)
        lost_claim = starts_late & _true_at(self._is_claim, begin)
        lost_delay = starts_late & _true_at(self._moved(Move.PROMOTE), begin) & (latest_claim != NO_ROW)
        lost_run = starts_late & _true_at(self._was_running, begin)
        first_ms = take_numbers(at_ms, begin)

        waited_ms = groups.total(rows.numbers("total_wait_ms"), self._was_open) + claimed_ms
        waited_ms -= groups.total(ready_ms, is_ready)
        waited_ms += np.where(latest_ready > latest_claim, take_numbers(ready_ms, latest_ready), 0)
        waited_ms -= np.where(lost_claim | lost_delay, first_ms, 0)
        ran_ms = groups.total(rows.numbers("total_run_ms"), self._was_open) - claimed_ms
        ran_ms += groups.total(at_ms, self._was_running) - groups.total(at_ms, ran_already)
        ran_ms += np.where(_true_at(is_running, last), take_numbers(at_ms, latest_claim), 0)
        ran_ms -= np.where(lost_run, first_ms, 0)
        return {"total_wait_ms": pa.array(waited_ms), "total_run_ms": pa.array(ran_ms)}

    def _moved(self, move: Move) -> Mask:
        """New events of this move. Open rows have counted theirs."""
        return self._is_new & self._steps.is_in("last_move", move)

    def _latest(self, name: str, where: Mask) -> pa.Array:
        return take(self._steps.column(name), self._groups.last(where))


def _is_dead_letter(rows: Rows) -> Mask:
    """Whether the move sent the task to the dead-letter queue."""
    return rows.is_in("move", *DEAD_LETTERING) & rows.is_in("status", Status.FAILED)


def _true_at(mask: Mask, rows: Numbers) -> Mask:
    return np.asarray(take_numbers(mask.astype(np.int64), rows) == 1)


def _in_order(events: pa.Table) -> pa.Table:
    numbers = events["seq"].to_numpy()
    return events if (numbers[1:] >= numbers[:-1]).all() else events.take(pa.array(np.argsort(numbers, kind="stable")))


def _stacked(open_rows: pa.Table, events: pa.Table) -> pa.Table:
    """Concatenates both, open rows first. A column of only one of them is null in the other."""
    return pa.concat_tables([dictionary_encoded(open_rows), dictionary_encoded(events)], promote_options="default")


def _renamed(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """Returns the named columns under their new names."""
    return pa.table({name: table.column(old) for name, old in names.items()})
