"""Counts the figures of a run from its event log."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from codeq.demo.task_states import percentile, state_of
from codeq.domain.task import Move
from codeq.wire.events import Event
from codeq.wire.to_domain import moment_ms


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    tasks: int = 0
    acknowledged: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    events: int = 0
    seconds: float = 0
    per_second: float = 0
    per_second_peak: int = 0
    """Tasks that ended in the busiest second."""
    wait_ms_p50: int = 0
    """From ready to claimed, before the rush."""
    wait_ms_p99: int = 0
    retries: int = 0
    leases_expired: int = 0
    redeliveries: int = 0
    """Deliveries after the first one of a task: what at-least-once costs."""
    replays: int = 0
    repeats: int = 0
    """Tasks that were enqueued again with the same key."""
    workers_killed: int = 0
    servers_killed: int = 0
    downtime_seconds: float = 0


def count(events: Sequence[Event], /, *, rush_at_ms: int = 0, **known: float) -> Figures:
    """`known` are figures that the log does not hold. Waits count until the rush, where they only show its backlog."""
    moves = Counter(event.move for event in events)
    ends = Counter(state_of(event) for event in {event.task_id: event for event in events}.values())
    ended = Counter(moment_ms(event.at) // 1000 for event in events if state_of(event) in _ENDS)
    before_rush = [event for event in events if not rush_at_ms or moment_ms(event.at) < rush_at_ms]
    waits = sorted(_waits_ms(before_rush))
    span_s = (moment_ms(events[-1].at) - moment_ms(events[0].at)) / 1000 if events else 0.0
    enqueued = moves[Move.ENQUEUE] + moves[Move.REPLAY]
    claimed = len({event.task_id for event in events if event.move == Move.CLAIM})
    return msgspec.convert(
        {
            "tasks": moves[Move.ENQUEUE],
            **{end: ends[end] for end in _ENDS},
            "events": len(events),
            "seconds": round(span_s, 1),
            "per_second": round(enqueued / span_s, 1) if span_s else 0.0,
            "per_second_peak": max(ended.values(), default=0),
            "wait_ms_p50": percentile(waits, 0.50),
            "wait_ms_p99": percentile(waits, 0.99),
            "retries": moves[Move.NACK] - _dead_lettered(events, Move.NACK),
            "leases_expired": moves[Move.EXPIRE],
            "redeliveries": moves[Move.CLAIM] - claimed - moves[Move.REPLAY],
            "replays": moves[Move.REPLAY],
            **known,
        },
        Figures,
    )


_ENDS = ("completed", "failed", "dead", "cancelled")


def _dead_lettered(events: Sequence[Event], move: Move) -> int:
    return sum(event.move == move and state_of(event) == "dead" for event in events)


def _waits_ms(events: Sequence[Event]) -> list[int]:
    waits = []
    ready_ms: dict[str, int] = {}
    for event in events:
        state = state_of(event)
        if state == "ready":
            ready_ms[event.task_id] = moment_ms(event.at)
        elif state == "running" and event.task_id in ready_ms:
            waits.append(moment_ms(event.at) - ready_ms.pop(event.task_id))
    return waits
