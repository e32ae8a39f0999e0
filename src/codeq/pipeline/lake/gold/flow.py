"""Gold tables about load: throughput, usage by tenant and by worker, and the capacity needed."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from codeq.domain.queue import is_system
from codeq.domain.task import DEAD_LETTERING, Move, Status
from codeq.pipeline.lake.gold.batch import Goals, GoldBatch, start_of
from codeq.pipeline.lake.gold.merge import (
    Columns,
    Floats,
    GoldTable,
    divided,
    null_for_nan,
    number_when,
    of_rows,
    ratio,
)
from codeq.pipeline.lake.gold.sketches import hll_count, hll_of
from codeq.pipeline.lake.grouping import Mask, Rows
from codeq.pipeline.lake.tables import GOLD_CAPACITY, GOLD_THROUGHPUT, GOLD_USAGE, GOLD_WORKERS

_LIVE = (Status.PENDING, Status.IN_PROGRESS)
_SERVERS_MAX = 100_000
_MOVES = {
    "enqueues": Move.ENQUEUE, "claims": Move.CLAIM, "completes": Move.COMPLETE, "fails": Move.FAIL, "nacks": Move.NACK,
    "expiries": Move.EXPIRE, "abandons": Move.ABANDON, "promotes": Move.PROMOTE, "cancels": Move.CANCEL,
    "replays": Move.REPLAY, "purges": Move.PURGE, "began": Move.CLAIM,
}  # fmt: skip


def _throughput(batch: GoldBatch) -> Iterator[pa.Table]:
    sums = batch.move_sums
    was_live, is_live = (sums.is_in(name, *_LIVE) for name in ("status_before", "status_after"))
    conditions = {
        **{name: sums.is_in("move", move) for name, move in _MOVES.items()},
        "deaths": sums.is_in("move", *DEAD_LETTERING) & sums.is_in("status_after", Status.FAILED),
        "entered": is_live & ~was_live,
        "left": was_live & ~is_live & sums.has("status_after"),
        "stopped": sums.is_in("status_before", Status.IN_PROGRESS),
    }
    yield pa.table({
        **_columns(sums, "tenant", "command", "priority", "minute", "day"),
        **number_when(sums, **conditions),
        "payload_bytes": of_rows(sums, "payload_bytes", sums.is_in("move", Move.ENQUEUE)),
    })  # fmt: skip


def _usage(batch: GoldBatch) -> Iterator[pa.Table]:
    """Result callbacks are tasks of a system queue: they are counted by themselves, and not as the tenant's tasks."""
    moves, ends = batch.move_sums, batch.delivery_sums
    is_callback, is_enqueue = _of_system(moves), moves.is_in("move", Move.ENQUEUE)
    has_result = moves.is_in("move", Move.COMPLETE, Move.FAIL)
    yield pa.table({
        **_columns(moves, "tenant", "day"),
        **number_when(moves, tasks=is_enqueue & ~is_callback, webhooks=is_enqueue & is_callback),
        "payload_bytes": of_rows(moves, "payload_bytes", is_enqueue & ~is_callback),
        **{name: of_rows(moves, name, has_result) for name in ("artifacts", "artifact_bytes")},
    })  # fmt: skip
    is_callback, was_abandoned = _of_system(ends), ends.is_in("ended_by", Move.ABANDON)
    yield pa.table({
        **_columns(ends, "tenant", "day"),
        **number_when(
            ends,
            deliveries=~is_callback,
            completes=ends.is_in("ended_by", Move.COMPLETE) & ~is_callback,
            webhook_attempts=~was_abandoned & is_callback,
        ),
        "run_ms": of_rows(ends, "run_ms", ~is_callback),
    })  # fmt: skip


def _with_run_seconds(rows: Rows, goals: Goals) -> Columns:  # noqa: ARG001
    return {"run_seconds": pa.array(rows.numbers("run_ms") / 1000)}


def _workers(batch: GoldBatch) -> Iterator[pa.Table]:
    sums = Rows(batch.delivery_sums.table.filter(pa.array(batch.delivery_sums.has("worker_id"))))
    yield pa.table({
        **_columns(sums, "tenant", "worker_id", "hour", "day"),
        "deliveries": sums.column("number"),
        **number_when(
            sums,
            completes=sums.is_in("ended_by", Move.COMPLETE),
            failures=sums.is_in("ended_by", Move.FAIL, Move.NACK),
            expiries=sums.is_in("ended_by", Move.EXPIRE),
            abandons=sums.is_in("ended_by", Move.ABANDON),
        ),
        "busy_ms": sums.column("run_ms"),
        "first_at": sums.column("first_claimed_at"),
        "last_at": sums.column("last_ended_at"),
    })  # fmt: skip


def _with_failure_share(rows: Rows, goals: Goals) -> Columns:  # noqa: ARG001
    bad = (rows.numbers("failures") + rows.numbers("expiries")).astype(np.float64)
    return {
        "busy_seconds": pa.array(rows.numbers("busy_ms") / 1000),
        "failure_share": null_for_nan(divided(bad, rows.numbers("deliveries").astype(np.float64))),
    }


def _capacity(batch: GoldBatch) -> Iterator[pa.Table]:
    """Without result callbacks, which the server sends: no worker is needed for them."""
    moves = batch.move_sums
    has_arrived = moves.is_in("status_after", Status.PENDING) & ~moves.is_in("move", Move.PROMOTE)
    arrived = Rows(moves.table.filter(pa.array(has_arrived & ~_of_system(moves))))
    yield pa.table({
        **_columns(arrived, "tenant", "command", "day", "first_at", "last_at"),
        "hour": start_of(arrived, "minute", 3600),
        "arrivals": arrived.column("number"),
    })  # fmt: skip
    ends = batch.delivery_sums
    served = Rows(ends.table.filter(pa.array((ends.numbers("is_timed") == 1) & ~_of_system(ends))))
    sketches = served.by_text("worker_id", lambda worker: None if worker is None else hll_of([worker]))
    yield pa.table({
        **_columns(served, "tenant", "command", "hour", "day", "run_ms"),
        "deliveries": served.column("number"),
        "first_at": served.column("first_ended_at"),
        "last_at": served.column("last_ended_at"),
        "worker_sketch": pa.array(sketches.tolist(), pa.binary()),
    })  # fmt: skip


def _with_workers_needed(rows: Rows, goals: Goals) -> Columns:
    first_ms, last_ms = (rows.numbers(name) // 1000 for name in ("first_at", "last_at"))
    seconds = np.maximum(60.0, (last_ms - first_ms) / 1000)
    workers = np.array([hll_count(sketch) for sketch in rows.column("worker_sketch").to_pylist()], np.int64)
    service_ms = ratio(rows, "run_ms", "deliveries")
    arrivals_per_second = rows.numbers("arrivals") / seconds
    load = arrivals_per_second * service_ms / 1000
    busy = rows.numbers("run_ms") / 1000 / seconds
    return {
        "workers": pa.array(workers),
        "seconds": pa.array(seconds),
        "service_ms": null_for_nan(service_ms),
        "wait_target_ms": pa.array(np.full(len(rows), goals.wait_ms, np.int64)),
        "arrivals_per_second": pa.array(arrivals_per_second),
        "load": null_for_nan(load),
        "utilisation": null_for_nan(divided(busy, workers.astype(np.float64))),
        "workers_needed": workers_needed(load, service_ms, goals.wait_ms),
    }


def workers_needed(load: Floats, service_ms: Floats, wait_ms: int) -> pa.Array:
    """Returns the fewest servers of an M/M/c queue with a mean wait of at most `wait_ms`; null if the load is unknown.

    Erlang B is computed from one server up, B(c) = a B(c-1) / (c + a B(c-1)); Erlang C follows from it,
    C = B / (1 - (a/c)(1 - B)), and the mean wait is C s / (c - a). Five deviations above the load is always enough.
    """
    needed = np.zeros(len(load), np.int64)
    rows = np.flatnonzero(load > 0)  # those that are not decided yet
    blocked, servers = np.ones(len(rows)), 0
    while len(rows):
        servers += 1
        a, s = load[rows], service_ms[rows]
        blocked = a * blocked / (servers + a * blocked)
        most = np.minimum(np.ceil(a + 5 * np.sqrt(a) + 10), _SERVERS_MAX)
        with np.errstate(divide="ignore", invalid="ignore"):  # where there are no more servers than load
            wait = blocked / (1 - a / servers * (1 - blocked)) * s / (servers - a)
        is_decided = ((servers > a) & (wait <= wait_ms)) | (servers >= most)
        needed[rows[is_decided]] = servers
        rows, blocked = rows[~is_decided], blocked[~is_decided]
    return pa.array(needed, mask=np.isnan(load))


def _columns(rows: Rows, *names: str) -> dict[str, pa.Array]:
    return {name: rows.column(name) for name in names}


def _of_system(rows: Rows) -> Mask:
    """Tasks that the server made for itself: deliveries of result callbacks."""
    return rows.by_text("command", lambda command: command is not None and is_system(command))


THROUGHPUT = GoldTable(GOLD_THROUGHPUT, _throughput)
USAGE = GoldTable(GOLD_USAGE, _usage, _with_run_seconds)
WORKERS = GoldTable(GOLD_WORKERS, _workers, _with_failure_share)
CAPACITY = GoldTable(GOLD_CAPACITY, _capacity, _with_workers_needed)
