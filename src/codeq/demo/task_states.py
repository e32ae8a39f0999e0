"""Follows the event log and counts tasks by state, for the screen and for steps that wait."""

from collections import Counter, defaultdict, deque

from codeq.domain.queue import is_system
from codeq.domain.task import Move, Status
from codeq.wire.events import Event
from codeq.wire.to_domain import moment_ms

WAITS_MAX = 2000
RECENT_S = 3

_FAILED_ATTEMPT = frozenset({Move.NACK, Move.EXPIRE})
OPEN = frozenset({"ready", "delayed", "running"})


class TaskStates:
    """Counts by queue, by worker and by second."""

    def __init__(self) -> None:
        self.queues: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """By tenant and command: how many tasks are in each state, and how many were `retried` and `replayed`."""
        self.held: Counter[str] = Counter()
        self.done_by: Counter[str] = Counter()
        self.ended_at: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        """By queue: how many tasks ended in which second."""
        self.waits_ms: deque[int] = deque(maxlen=WAITS_MAX)
        self.events: list[Event] = []
        self._state: dict[str, str] = {}
        self._holder: dict[str, str] = {}
        self._ready_ms: dict[str, int] = {}

    def apply(self, event: Event) -> None:
        self.events.append(event)
        if is_system(event.command):
            return  # a delivery to a webhook; nobody enqueued it
        queue, task_id, at_ms = (event.tenant, event.command), event.task_id, moment_ms(event.at)
        counts = self.queues[queue]
        before, after = self._state.get(task_id), state_of(event)
        if before is not None:
            counts[before] -= 1
        counts[after] += 1
        self._state[task_id] = after
        if (holder := self._holder.pop(task_id, None)) is not None:
            self.held[holder] -= 1
        if after == "running":
            self._claimed(event, at_ms)
        elif after == "ready":
            self._ready_ms[task_id] = at_ms
        elif after not in OPEN:
            self.ended_at[queue][at_ms // 1000] += 1
        if event.move == Move.COMPLETE and event.worker_id:
            self.done_by[event.worker_id] += 1
        if event.move in _FAILED_ATTEMPT and after in OPEN:
            counts["retried"] += 1
        counts["replayed"] += event.move == Move.REPLAY

    def total(self, *states: str) -> int:
        return sum(counts[state] for counts in self.queues.values() for state in states)

    @property
    def open_tasks(self) -> int:
        return self.total(*OPEN)

    @property
    def ended_tasks(self) -> int:
        return len(self._state) - self.open_tasks

    def rate(self, now_ms: int, queue: tuple[str, str] | None = None) -> float:
        """Tasks ended per second, over the last whole seconds."""
        seconds = range(now_ms // 1000 - RECENT_S, now_ms // 1000)
        queues = [queue] if queue is not None else list(self.ended_at)
        return sum(self.ended_at[one][second] for one in queues for second in seconds) / RECENT_S

    def rates(self, now_ms: int, seconds: int) -> list[int]:
        """Tasks ended in each of the last seconds, oldest first."""
        last = now_ms // 1000
        ended = list(self.ended_at.values())
        return [sum(by[second] for by in ended) for second in range(last - seconds, last)]

    def wait_ms(self, share: float) -> int:
        return percentile(sorted(self.waits_ms), share)

    def _claimed(self, event: Event, at_ms: int) -> None:
        worker = event.worker_id or ""
        self._holder[event.task_id] = worker
        self.held[worker] += 1
        if (ready_ms := self._ready_ms.pop(event.task_id, None)) is not None:
            self.waits_ms.append(at_ms - ready_ms)


def state_of(event: Event) -> str:
    """The state of the task after the event, in the words of the screen."""
    match event.status_after:
        case Status.PENDING:
            return "delayed" if event.visible_at else "ready"
        case Status.IN_PROGRESS:
            return "running"
        case Status.COMPLETED:
            return "completed"
        case Status.CANCELLED:
            return "cancelled"
    return "failed" if event.move == Move.FAIL else "dead"


def percentile(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0
