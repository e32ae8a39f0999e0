"""One row per delivery and one per task, carried forward by each batch of events.

Both take the rows that are open so far and new events, each once and in any order, and give the rows that are still
open and those that this batch has closed. However the events are cut into batches, the rows are the same.

Each row is made in one pass over what belongs to it, without looking from event to event: a delivery takes what its
claim and its end say; a task takes the latest event, and adds up times. All the time that a task was run is the sum of
the times when deliveries ended, less the sum of the times when they began.

Spark runs this on Arrow tables that hold all that belongs to some of the tasks: see `shares.py`.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codeq.domain.task import BURYING, Move, Status
from codeq.pipeline.lake.grouping import (
    NOWHERE,
    Groups,
    Mask,
    Numbers,
    Rows,
    elapsed_ms,
    encoded,
    kept,
    one_of,
    taken,
    value_at,
)
from codeq.pipeline.lake.tables import SILVER_ATTEMPTS, SILVER_TASKS


def attempts(open_rows: pa.Table, events: pa.Table) -> pa.Table:
    """The deliveries that are open or were closed by these events. One that was withdrawn before it began is dropped.

    An event belongs to a delivery by its lease token: a claim and what ends it carry the number of the delivery, and
    what made the task ready for it carries the number before.
    """
    return _Deliveries(open_rows, events).table()


def tasks(open_rows: pa.Table, events: pa.Table) -> pa.Table:
    """The tasks that are open or were closed by these events. A purge closes a dead one and changes nothing else."""
    return _Tasks(open_rows, events).table()


# -- deliveries --------------------------------------------------------------------------------------------------------

_CONSTANT = ("tenant", "command", "task_id", "shard", "priority", "max_attempts")


class _Deliveries:
    """A part is what a row says of one delivery: an open row of it, an event of it, or one that made it ready.

    Parts of a kind are in order, and each kind says other things, so that kinds need no order among them.
    """

    def __init__(self, open_rows: pa.Table, events: pa.Table) -> None:
        events = _in_order(events)
        said = Rows(events)
        was_running = said.is_in("status_before", Status.IN_PROGRESS)
        is_ready = said.is_in("status_after", Status.PENDING)
        is_claim = said.is_in("move", Move.CLAIM)
        is_withdrawal = said.is_in("move", Move.CANCEL) & said.is_in("status_before", Status.PENDING)
        here, to_come = np.flatnonzero(is_claim | was_running), np.flatnonzero(is_ready | is_withdrawal)
        self._rows = Rows(_stacked(_delivery_as_said(open_rows), _said_of_delivery(events, said)))
        known = len(open_rows)
        self._places = np.concatenate([np.arange(known), known + here, known + to_come])
        ids = self._rows.column("task_id").dictionary_encode().indices.to_numpy().astype(np.int64)
        tokens = self._rows.numbers("lease_token")[self._places]
        tokens[known + len(here) :] += 1
        self._groups = Groups(pa.array(ids[self._places] * (tokens.max(initial=0) + 1) + tokens))
        self._tokens = tokens

        was_open = self._of_kind(np.ones(known, bool), where=0)
        self._is_claim = self._of_kind(is_claim[here], where=known)
        self._is_end = self._of_kind(~is_claim[here], where=known)
        self._is_ready = self._of_kind(is_ready[to_come], where=known + len(here))
        self._is_withdrawn = self._of_kind(~is_ready[to_come], where=known + len(here))
        self._is_claim |= was_open & self._rows.has("claimed_at")[self._places]
        self._is_ready |= was_open & self._rows.has("ready_by")[self._places]

    def table(self) -> pa.Table:
        groups, any_part = self._groups, np.ones(len(self._places), bool)
        # A delay that ends comes after what began it.
        ready, claim = groups.first(self._is_ready), groups.last(self._is_claim)
        end, some = groups.last(self._is_end), groups.last(any_part)
        columns = {
            **self._columns(some, *_CONSTANT),
            **self._columns(ready, "ready_by", "visible_at", "ready_at"),
            **self._columns(claim, "claimed_at", "lease_until"),
            **self._columns(end, "ended_at", "ended_by", "status_after"),
        }
        is_dead = _is_burial(Rows(pa.table({"move": columns["ended_by"], "status": columns["status_after"]})))
        ended_by = Rows(pa.table({"ended_by": columns["ended_by"]}))
        has_failed = is_dead | ended_by.is_in("ended_by", Move.FAIL, Move.NACK, Move.EXPIRE)
        columns |= {
            "lease_token": pa.array(value_at(self._tokens, some)),
            "attempt": pc.coalesce(self._column("attempt", claim), self._column("attempt", end)),
            "worker_id": pc.coalesce(self._column("worker_id", claim), self._column("worker_id", end)),
            "error": kept(has_failed, self._column("error", end)),
            "is_dead": pa.array(is_dead, mask=end == NOWHERE),
            "wait_ms": elapsed_ms(columns["ready_at"], columns["claimed_at"]),
            "run_ms": elapsed_ms(columns["claimed_at"], columns["ended_at"]),
            "first_seq": pa.array(groups.least(self._rows.numbers("first_seq")[self._places])),
            "last_seq": pa.array(groups.greatest(self._rows.numbers("last_seq")[self._places])),
            "is_open": pa.array(end == NOWHERE),
        }
        has_begun = (claim != NOWHERE) | (end != NOWHERE)
        there_is = has_begun | ~groups.has(self._is_withdrawn)
        return pa.table({name: columns[name] for name in SILVER_ATTEMPTS.names}).filter(pa.array(there_is))

    def _columns(self, parts: Numbers, *names: str) -> dict[str, pa.Array]:
        return {name: self._column(name, parts) for name in names}

    def _column(self, name: str, parts: Numbers) -> pa.Array:
        """What the parts say, one of each delivery."""
        rows = np.where(parts == NOWHERE, NOWHERE, self._places[parts]) if len(self._places) else parts
        return taken(self._rows.column(name), rows)

    def _of_kind(self, parts: Mask, *, where: int) -> Mask:
        mask = np.zeros(len(self._places), bool)
        mask[where : where + len(parts)] = parts
        return mask


def _delivery_as_said(open_rows: pa.Table) -> pa.Table:
    """An open row says what the events said that made it."""
    names = ("lease_token", "ready_by", "visible_at", "ready_at", "claimed_at", "attempt", "worker_id", "lease_until")
    return open_rows.select([*_CONSTANT, *names, "first_seq", "last_seq"])


def _said_of_delivery(events: pa.Table, said: Rows) -> pa.Table:
    # A failed delivery is counted by the event that ends it.
    tries = said.numbers("attempts") + ~said.is_in("move", Move.NACK, Move.EXPIRE)
    new = {
        "lease_token": "lease_token", "ready_by": "move", "visible_at": "visible_at", "claimed_at": "at",
        "worker_id": "worker_id", "lease_until": "lease_until", "first_seq": "seq", "last_seq": "seq",
        "ended_at": "at", "ended_by": "move", "status_after": "status_after", "error": "error",
    }  # fmt: skip
    table = _renamed(events, {**{name: name for name in _CONSTANT}, **new})
    table = table.append_column("attempt", pa.array(tries, pa.int32()))
    return table.append_column("ready_at", pc.coalesce(events["visible_at"], events["at"]))


# -- tasks -------------------------------------------------------------------------------------------------------------

_COUNTED = {"nacks": Move.NACK, "expiries": Move.EXPIRE, "abandons": Move.ABANDON, "replays": Move.REPLAY,
            "promotes": Move.PROMOTE}  # fmt: skip
_TASK_CONSTANT = (*_CONSTANT, "payload_bytes", "trace_id")
_LAST = {
    "status": "status_after", "last_move": "move", "last_at": "at", "deliveries": "lease_token", "attempts": "attempts",
    "visible_at": "visible_at", "last_error": "error", "last_worker": "worker_id", "last_seq": "seq",
}  # fmt: skip
"""What the latest step says of its task, as a row and as an event name it."""


class _Tasks:
    """A step is an open row, which stands for all events that made it, or an event. Steps are in order."""

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
        self._is_carried = np.arange(len(rows)) < len(open_rows)
        self._is_new = ~self._is_carried
        self._is_claim = self._moved(Move.CLAIM)
        self._is_purge = self._moved(Move.PURGE)
        self._was_running = self._is_new & rows.is_in("status_before", Status.IN_PROGRESS)
        self._at_ms = rows.numbers("last_at") // 1000

    def table(self) -> pa.Table:
        rows, groups = self._steps, self._groups
        everywhere = np.ones(len(rows), bool)
        last, first = groups.last(~self._is_purge), groups.first(everywhere)
        columns = {name: taken(rows.column(name), first) for name in (*_TASK_CONSTANT, "first_seq")}
        columns |= {name: taken(rows.column(name), last) for name in _LAST}
        columns["last_worker"] = self._latest("last_worker", rows.has("last_worker"))
        for name, move in _COUNTED.items():
            counts = np.where(self._is_new, self._moved(move), rows.numbers(name))
            columns[name] = pa.array(groups.total(counts, everywhere))
        is_first_claim = self._is_claim & (rows.numbers("deliveries") == 1)
        for name, is_it in {"enqueued_at": self._moved(Move.ENQUEUE), "first_claimed_at": is_first_claim}.items():
            places = groups.first(is_it | (self._is_carried & rows.has(name)))
            columns[name] = taken(rows.column(name), places)
        columns |= self._times(last)
        columns |= self._ends(columns)
        table = pa.table({name: columns[name] for name in SILVER_TASKS.names})
        return table.filter(pa.array(last != NOWHERE))

    def _ends(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """What follows from the latest step."""
        said = Rows(pa.table({"status": columns["status"], "move": columns["last_move"]}))
        is_live = said.is_in("status", Status.PENDING, Status.IN_PROGRESS)
        is_dead = _is_burial(said)
        ended_at = kept(~is_live, columns["last_at"])
        outcomes = ("live", "completed", "cancelled", "dead", "failed")
        is_what = [is_live, said.is_in("status", Status.COMPLETED), said.is_in("status", Status.CANCELLED), is_dead]
        outcome = np.select(is_what, list(range(len(is_what))), default=len(is_what))
        was_promoted = pa.array(said.is_in("move", Move.PROMOTE))
        latest_delay = self._latest("visible_at", self._steps.has("visible_at"))
        return {
            "visible_at": pc.if_else(was_promoted, latest_delay, columns["visible_at"]),
            "ended_at": ended_at,
            "outcome": one_of(outcomes, outcome),
            "is_dead": pa.array(is_dead),
            "end_to_end_ms": elapsed_ms(columns["enqueued_at"], ended_at),
            "is_open": pa.array(is_live | (is_dead & ~self._groups.has(self._is_purge))),
        }

    def _times(self, last: Numbers) -> dict[str, pa.Array]:
        """Sums of what has begun and ended. What has not ended yet is taken out again; and so is what began before the
        first event that was kept, unless a row carries it."""
        rows, groups, at_ms = self._steps, self._groups, self._at_ms
        is_pending, is_running = (rows.is_in("status", of) for of in (Status.PENDING, Status.IN_PROGRESS))
        is_ready = is_pending & ~(self._is_new & self._moved(Move.PROMOTE))
        ready_ms = np.where(rows.has("visible_at"), rows.numbers("visible_at") // 1000, at_ms)
        is_running_since = self._is_carried & is_running
        latest_ready, latest_claim = groups.last(is_ready), groups.last(self._is_claim | is_running_since)
        claimed_ms = groups.total(at_ms, self._is_claim)

        begin = groups.first(self._is_new)
        is_lost = ~groups.has(self._is_carried)
        lost_claim = is_lost & _true_at(self._is_claim, begin)
        lost_delay = is_lost & _true_at(self._moved(Move.PROMOTE), begin) & (latest_claim != NOWHERE)
        lost_run = is_lost & _true_at(self._was_running, begin)
        first_ms = value_at(at_ms, begin)

        waited_ms = groups.total(rows.numbers("total_wait_ms"), self._is_carried) + claimed_ms
        waited_ms -= groups.total(ready_ms, is_ready)
        waited_ms += np.where(latest_ready > latest_claim, value_at(ready_ms, latest_ready), 0)
        waited_ms -= np.where(lost_claim | lost_delay, first_ms, 0)
        ran_ms = groups.total(rows.numbers("total_run_ms"), self._is_carried) - claimed_ms
        ran_ms += groups.total(at_ms, self._was_running) - groups.total(at_ms, is_running_since)
        ran_ms += np.where(_true_at(is_running, last), value_at(at_ms, latest_claim), 0)
        ran_ms -= np.where(lost_run, first_ms, 0)
        return {"total_wait_ms": pa.array(waited_ms), "total_run_ms": pa.array(ran_ms)}

    def _moved(self, move: Move) -> Mask:
        """Events of this kind. Rows that are carried on have counted theirs."""
        return self._is_new & self._steps.is_in("last_move", move)

    def _latest(self, name: str, where: Mask) -> pa.Array:
        return taken(self._steps.column(name), self._groups.last(where))


def _is_burial(said: Rows) -> Mask:
    """Whether the move sent the task to the dead-letter queue."""
    return said.is_in("move", *BURYING) & said.is_in("status", Status.FAILED)


def _true_at(mask: Mask, places: Numbers) -> Mask:
    return np.asarray(value_at(mask.astype(np.int64), places) == 1)


def _in_order(events: pa.Table) -> pa.Table:
    numbers = events["seq"].to_numpy()
    return events if (numbers[1:] >= numbers[:-1]).all() else events.take(pa.array(np.argsort(numbers, kind="stable")))


def _stacked(open_rows: pa.Table, said: pa.Table) -> pa.Table:
    """Open rows first. What only one of them has is null for the other."""
    return pa.concat_tables([encoded(open_rows), encoded(said)], promote_options="default")


def _renamed(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """A table of columns of another, each by its new name."""
    return pa.table({name: table.column(old) for name, old in names.items()})
