"""Checks the promises of the queue against what was recorded in a run.

Pure: all input is in `Evidence`, so that a test can plant a fault and see it found.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from codeq.demo.acknowledged import AcknowledgedTask, FinalState, RepeatedEnqueue
from codeq.demo.task_states import state_of
from codeq.domain.queue import is_system
from codeq.domain.task import FINAL, Move, Status
from codeq.wire.events import Event

IDS_SHOWN = 5

_STATUS = {
    FinalState.COMPLETED: Status.COMPLETED,
    FinalState.FAILED: Status.FAILED,
    FinalState.DEAD: Status.FAILED,
    FinalState.CANCELLED: Status.CANCELLED,
}
_ENDING = frozenset({Move.COMPLETE, Move.FAIL})


class Evidence(msgspec.Struct, kw_only=True):
    acknowledged: Sequence[AcknowledgedTask] = ()
    repeats: Sequence[RepeatedEnqueue] = ()
    unanswered: int = 0
    events: Sequence[Event] = ()
    """The whole log, read after the run."""
    followed: Sequence[Event] = ()
    """The log as a reader followed it during the run, crashes included."""
    listed: dict[str, dict[str, str]] = {}
    """By tenant: the status of each task that its own token can list."""
    cross_tenant_reads: Sequence[tuple[str, str]] = ()
    """Tenant and task id, for each task of another tenant that could be read."""
    wrong_results: Sequence[str] = ()
    wrong_artifacts: Sequence[str] = ()
    called_back: frozenset[str] = frozenset()
    """The tasks whose result callbacks were accepted."""
    forged_callbacks: int = 0
    """Callbacks whose signature did not match."""


class PromiseCheck(msgspec.Struct, frozen=True):
    """One promise, and the faults that break it."""

    promise: str
    faults: list[str]
    ids: list[str] = []

    @property
    def is_kept(self) -> bool:
        return not self.faults


Faults = Iterator[tuple[str, str]]
"""The id of a task (or an empty text), and what is wrong with it."""


def audit(evidence: Evidence) -> list[PromiseCheck]:
    """Checks every promise."""
    checks = []
    for promise, check in PROMISES:
        found = list(check(evidence))
        ids = list(dict.fromkeys(task_id for task_id, _ in found if task_id))
        checks.append(PromiseCheck(promise, [f"{task_id} {fault}".strip() for task_id, fault in found], ids))
    return checks


def _lost(evidence: Evidence) -> Faults:
    known = {event.task_id for event in evidence.events if event.move == Move.ENQUEUE}
    for task in evidence.acknowledged:
        if task.task_id not in known:
            yield task.task_id, f"of {task.tenant} was acknowledged and is not in the log"
        elif task.task_id not in evidence.listed.get(task.tenant, {}):
            yield task.task_id, f"of {task.tenant} was acknowledged and its tenant cannot find it"


def _as_expected(evidence: Evidence) -> Faults:
    last = {event.task_id: event for event in evidence.events}
    for task in evidence.acknowledged:
        event = last.get(task.task_id)
        if event is None:
            continue  # reported by _lost
        state = state_of(event)
        if state != task.expected:
            yield task.task_id, f"is {state}, and should be {task.expected}"
        status = evidence.listed.get(task.tenant, {}).get(task.task_id, _STATUS[task.expected])
        if state == task.expected and status != _STATUS[task.expected]:
            yield task.task_id, f"is listed as {status}, and its last event says {state}"


def _once(evidence: Evidence) -> Faults:
    """After a final status, only a replay or a purge may follow; a worker ends a task at most once."""
    has_ended: dict[str, bool] = {}
    results: Counter[str] = Counter()
    for event in evidence.events:
        task_id = event.task_id
        if has_ended.get(task_id) and event.move not in (Move.REPLAY, Move.PURGE):
            yield task_id, f"had ended, and event {event.seq} is {event.move}"
        has_ended[task_id] = event.status_after in FINAL
        results[task_id] += event.move in _ENDING
    for task_id, times in results.items():
        if times > 1:
            yield task_id, f"was ended by a worker {times} times"


def _newest_lease(evidence: Evidence) -> Faults:
    token: defaultdict[str, int] = defaultdict(int)
    for event in evidence.events:
        if event.move == Move.CLAIM and event.lease_token <= token[event.task_id]:
            yield event.task_id, f"was delivered under token {event.lease_token} after {token[event.task_id]}"
        if event.move in _ENDING and event.lease_token != token[event.task_id]:
            yield event.task_id, f"accepted the result of delivery {event.lease_token}, not {token[event.task_id]}"
        if event.attempts > event.max_attempts:
            yield event.task_id, f"had {event.attempts} attempts of {event.max_attempts}"
        token[event.task_id] = event.lease_token


def _same_task(evidence: Evidence) -> Faults:
    for repeat in evidence.repeats:
        if repeat.first_id != repeat.again_id:
            yield repeat.again_id, f"was created by repeating key {repeat.key} of {repeat.first_id}"


def _enqueued_once(evidence: Evidence) -> Faults:
    """A retried call must not create a second task. Calls without an answer may have created one each."""
    acknowledged = Counter(task.task_id for task in evidence.acknowledged)
    for task_id, times in acknowledged.items():
        if times > 1:
            yield task_id, f"was returned for {times} enqueues"
    created = [e.task_id for e in evidence.events if e.move == Move.ENQUEUE and not is_system(e.command)]
    extra = [task_id for task_id in created if task_id not in acknowledged]
    if len(extra) > evidence.unanswered:
        for task_id in extra:
            yield task_id, "is in the log, and nobody enqueued it"


def _own_tenant(evidence: Evidence) -> Faults:
    owner = {task.task_id: task.tenant for task in evidence.acknowledged}
    for event in evidence.events:
        if owner.get(event.task_id, event.tenant) != event.tenant:
            yield event.task_id, f"of {owner[event.task_id]} has an event of {event.tenant}"
    for tenant, tasks in evidence.listed.items():
        for task_id in tasks:
            if owner.get(task_id, tenant) != tenant:
                yield task_id, f"of {owner[task_id]} is listed for {tenant}"
    for tenant, task_id in evidence.cross_tenant_reads:
        yield task_id, f"can be read by {tenant}, another tenant"


def _no_gap(evidence: Evidence) -> Faults:
    expected: defaultdict[int, int] = defaultdict(lambda: 1)
    for event in evidence.events:
        if event.seq != expected[event.shard]:
            yield "", f"shard {event.shard}: event {expected[event.shard]} is missing, {event.seq} follows"
        expected[event.shard] = event.seq + 1


def _unchanged(evidence: Evidence) -> Faults:
    now = {(event.shard, event.seq): event for event in evidence.events}
    for event in evidence.followed:
        if now.get((event.shard, event.seq)) != event:
            yield (
                event.task_id,
                f"event {event.seq} ({event.move}), read during the run, is different now or gone",
            )


def _right_results(evidence: Evidence) -> Faults:
    for task_id in evidence.wrong_results:
        yield task_id, "has a different result than its handler returned"


def _right_artifacts(evidence: Evidence) -> Faults:
    for task_id in evidence.wrong_artifacts:
        yield task_id, "has another file than its handler attached"


def _called_back(evidence: Evidence) -> Faults:
    for task in evidence.acknowledged:
        if task.planned.task.webhook and task.task_id not in evidence.called_back:
            yield task.task_id, "ended, and its webhook was not called"
    if evidence.forged_callbacks:
        yield "", f"{evidence.forged_callbacks} callbacks had a signature that does not match"


PROMISES: Sequence[tuple[str, Callable[[Evidence], Faults]]] = (
    ("every acknowledged task is there", _lost),
    ("every task reached its expected final state", _as_expected),
    ("no task ended twice", _once),
    ("results were accepted from the newest lease only", _newest_lease),
    ("a repeated key gave the same task", _same_task),
    ("no task exists that nobody enqueued", _enqueued_once),
    ("no tenant saw a task of another", _own_tenant),
    ("the event log has no gap", _no_gap),
    ("events read before a crash are unchanged after it", _unchanged),
    ("results are what the handlers returned", _right_results),
    ("artifacts are what the handlers attached", _right_artifacts),
    ("every webhook was called, and signed", _called_back),
)
