"""Whether the queue kept its word: the promises, each checked against everything that is on record.

Pure: what there is to know is gathered in `Evidence`, so that a test can plant a fault and see it found.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from codeq.demo.ledger import End, Receipt, Repeat
from codeq.demo.task_states import place_of
from codeq.domain.task import Move, Status
from codeq.wire.events import Event

IDS_SHOWN = 5

_FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
_STATUS = {
    End.COMPLETED: Status.COMPLETED,
    End.FAILED: Status.FAILED,
    End.DEAD: Status.FAILED,
    End.CANCELLED: Status.CANCELLED,
}
_ENDING = frozenset({Move.COMPLETE, Move.FAIL})


class Evidence(msgspec.Struct, kw_only=True):
    receipts: Sequence[Receipt] = ()
    repeats: Sequence[Repeat] = ()
    unanswered: int = 0
    events: Sequence[Event] = ()
    """The whole log, read after the end."""
    followed: Sequence[Event] = ()
    """The log as a reader followed it while everything happened, crashes included."""
    listed: dict[str, dict[str, str]] = {}
    """By tenant: the status of each task that its own token can list."""
    sightings: Sequence[tuple[str, str]] = ()
    """Tenant and task: those of others that a tenant could read."""
    wrong_results: Sequence[str] = ()


class Finding(msgspec.Struct, frozen=True):
    """One promise, and what contradicts it."""

    promise: str
    faults: list[str]
    ids: list[str] = []

    @property
    def is_kept(self) -> bool:
        return not self.faults


Faults = Iterator[tuple[str, str]]
"""The id of a task (or nothing), and what is wrong with it."""


def audit(evidence: Evidence) -> list[Finding]:
    """Every promise, kept or broken."""
    findings = []
    for promise, check in PROMISES:
        found = list(check(evidence))
        ids = list(dict.fromkeys(task_id for task_id, _ in found if task_id))
        findings.append(Finding(promise, [f"{task_id} {said}".strip() for task_id, said in found], ids))
    return findings


def _lost(evidence: Evidence) -> Faults:
    known = {event.task_id for event in evidence.events if event.move == Move.ENQUEUE}
    for receipt in evidence.receipts:
        if receipt.task_id not in known:
            yield receipt.task_id, f"of {receipt.tenant} was acknowledged and is not in the log"
        elif receipt.task_id not in evidence.listed.get(receipt.tenant, {}):
            yield receipt.task_id, f"of {receipt.tenant} was acknowledged and its tenant cannot find it"


def _as_expected(evidence: Evidence) -> Faults:
    last = {event.task_id: event for event in evidence.events}
    for receipt in evidence.receipts:
        event = last.get(receipt.task_id)
        if event is None:
            continue  # said to be lost above
        place = place_of(event)
        if place != receipt.end:
            yield receipt.task_id, f"is {place}, and should be {receipt.end}"
        status = evidence.listed.get(receipt.tenant, {}).get(receipt.task_id, _STATUS[receipt.end])
        if place == receipt.end and status != _STATUS[receipt.end]:
            yield receipt.task_id, f"is listed as {status}, and its last event says {place}"


def _once(evidence: Evidence) -> Faults:
    """A life begins with enqueue or replay and has one end. Nothing but a replay or a purge follows an end."""
    has_ended: dict[str, bool] = {}
    results: Counter[str] = Counter()
    for event in evidence.events:
        task_id = event.task_id
        if has_ended.get(task_id) and event.move not in (Move.REPLAY, Move.PURGE):
            yield task_id, f"had ended, and event {event.seq} is {event.move}"
        has_ended[task_id] = event.status_after in _FINAL
        results[task_id] += event.move in _ENDING
    for task_id, times in results.items():
        if times > 1:
            yield task_id, f"was ended by a worker {times} times"


def _newest_lease(evidence: Evidence) -> Faults:
    token: defaultdict[str, int] = defaultdict(int)
    for event in evidence.events:
        if event.move == Move.CLAIM and event.lease_token <= token[event.task_id]:
            yield event.task_id, f"was handed out under token {event.lease_token} after {token[event.task_id]}"
        if event.move in _ENDING and event.lease_token != token[event.task_id]:
            yield event.task_id, f"took the result of delivery {event.lease_token}, not {token[event.task_id]}"
        if event.attempts > event.max_attempts:
            yield event.task_id, f"had {event.attempts} tries of {event.max_attempts}"
        token[event.task_id] = event.lease_token


def _same_task(evidence: Evidence) -> Faults:
    for repeat in evidence.repeats:
        if repeat.first_id != repeat.again_id:
            yield repeat.again_id, f"was made by repeating key {repeat.key}, which is that of {repeat.first_id}"


def _ordered(evidence: Evidence) -> Faults:
    """A retried call must not make a second task. Calls that were never answered may have made one each."""
    receipts = Counter(receipt.task_id for receipt in evidence.receipts)
    for task_id, times in receipts.items():
        if times > 1:
            yield task_id, f"was given to {times} orders"
    made = [event.task_id for event in evidence.events if event.move == Move.ENQUEUE]
    extra = [task_id for task_id in made if task_id not in receipts]
    if len(extra) > evidence.unanswered:
        for task_id in extra:
            yield task_id, "is in the log, and nobody ordered it"


def _own_tenant(evidence: Evidence) -> Faults:
    owner = {receipt.task_id: receipt.tenant for receipt in evidence.receipts}
    for event in evidence.events:
        if owner.get(event.task_id, event.tenant) != event.tenant:
            yield event.task_id, f"of {owner[event.task_id]} has an event of {event.tenant}"
    for tenant, tasks in evidence.listed.items():
        for task_id in tasks:
            if owner.get(task_id, tenant) != tenant:
                yield task_id, f"of {owner[task_id]} is listed for {tenant}"
    for tenant, task_id in evidence.sightings:
        yield task_id, f"can be read by {tenant}, whose it is not"


def _no_gap(evidence: Evidence) -> Faults:
    expected: defaultdict[int, int] = defaultdict(lambda: 1)
    for event in evidence.events:
        if event.seq != expected[event.shard]:
            yield "", f"shard {event.shard}: event {expected[event.shard]} is missing, {event.seq} follows"
        expected[event.shard] = event.seq + 1


def _still_so(evidence: Evidence) -> Faults:
    now = {(event.shard, event.seq): event for event in evidence.events}
    for event in evidence.followed:
        if now.get((event.shard, event.seq)) != event:
            yield event.task_id, f"event {event.seq} ({event.move}) was read before, and is another one now or gone"


def _right_results(evidence: Evidence) -> Faults:
    for task_id in evidence.wrong_results:
        yield task_id, "has another result than its handler returned"


PROMISES: Sequence[tuple[str, Callable[[Evidence], Faults]]] = (
    ("every acknowledged task is there", _lost),
    ("every task reached the end it was meant to have", _as_expected),
    ("no task ended twice", _once),
    ("results were taken from the newest lease only", _newest_lease),
    ("a repeated key gave the same task", _same_task),
    ("no task exists that nobody ordered", _ordered),
    ("no tenant saw a task of another", _own_tenant),
    ("the event log has no gap", _no_gap),
    ("what was read before a crash still stands after it", _still_so),
    ("results are what the handlers returned", _right_results),
)
