"""The demo's audit detects faults: a run without fault passes, and each planted fault is reported."""

import io
from collections.abc import Callable, Sequence

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from codeq.cli.main import app
from codeq.demo import figures
from codeq.demo.acknowledged import AcknowledgedTask, FinalState, PlannedTask, RepeatedEnqueue
from codeq.demo.audit import Evidence, audit
from codeq.demo.report import print_report
from codeq.demo.run import DemoReport
from codeq.demo.task_states import TaskStates
from codeq.domain.requests import NewTask
from codeq.wire.events import Event

DONE = ("enqueue", "claim", "complete")
ENDS = {
    "t-done": FinalState.COMPLETED,
    "t-late": FinalState.COMPLETED,
    "t-declined": FinalState.FAILED,
    "t-dead": FinalState.DEAD,
    "t-replayed": FinalState.COMPLETED,
    "t-unwanted": FinalState.CANCELLED,
    "t-other": FinalState.COMPLETED,
}
LIVES: dict[str, Sequence[str]] = {
    "t-done": DONE,
    "t-late": ("enqueue", "claim", "expire", "claim", "complete"),
    "t-declined": ("enqueue", "claim", "fail"),
    "t-dead": ("enqueue", "claim", "bury"),
    "t-replayed": ("enqueue", "claim", "bury", "replay", "claim", "complete"),
    "t-unwanted": ("enqueue", "cancel"),
    "t-other": DONE,
}
AFTER = {
    "enqueue": "PENDING", "claim": "IN_PROGRESS", "complete": "COMPLETED", "fail": "FAILED", "bury": "FAILED",
    "expire": "PENDING", "replay": "PENDING", "cancel": "CANCELLED",
}  # fmt: skip


def tenant_of(task_id: str) -> str:
    return "globex" if task_id == "t-other" else "acme"


def log_of(lives: dict[str, Sequence[str]]) -> list[Event]:
    """Returns the events of one task after the other, numbered without gaps."""
    events: list[Event] = []
    for task_id, moves in lives.items():
        token, attempts = 0, 0
        for move in moves:
            token += move == "claim"
            attempts = 0 if move == "replay" else attempts + (move in ("expire", "bury"))
            events.append(
                Event(
                    shard=0, seq=len(events) + 1, at=f"2026-01-31T12:00:{len(events):02d}.000Z",
                    move="nack" if move == "bury" else move, tenant=tenant_of(task_id), command="work",
                    task_id=task_id, priority=0, status_before=None, status_after=AFTER[move], attempts=attempts,
                    deliveries=token, max_attempts=3, lease_token=token, worker_id="w", lease_until=None,
                    visible_at=None, error=None, payload_bytes=0, trace_id=None,
                )
            )  # fmt: skip
    return events


def good() -> Evidence:
    events = log_of(LIVES)
    listed: dict[str, dict[str, str]] = {"acme": {}, "globex": {}}
    for event in events:
        listed[event.tenant][event.task_id] = event.status_after
    return Evidence(
        acknowledged=[acknowledged(task_id, end) for task_id, end in ENDS.items()],
        repeats=[RepeatedEnqueue("acme", "key", "t-done", "t-done")],
        events=events,
        followed=list(events),
        listed=listed,
    )


def acknowledged(task_id: str, end: FinalState) -> AcknowledgedTask:
    return AcknowledgedTask(tenant_of(task_id), task_id, PlannedTask(NewTask(command="work"), end), end)


def broken(evidence: Evidence) -> dict[str, list[str]]:
    return {check.promise: check.ids for check in audit(evidence) if not check.is_kept}


def relog(evidence: Evidence, **lives: Sequence[str]) -> None:
    named = {f"t-{name}": moves for name, moves in lives.items()}
    evidence.events = evidence.followed = log_of({**LIVES, **named})


def lose_a_task(evidence: Evidence) -> None:
    relog(evidence, late=())


def hide_a_task(evidence: Evidence) -> None:
    del evidence.listed["acme"]["t-late"]


def leave_a_task_open(evidence: Evidence) -> None:
    relog(evidence, late=("enqueue", "claim"))


def end_it_otherwise(evidence: Evidence) -> None:
    relog(evidence, late=("enqueue", "cancel"))


def list_it_otherwise(evidence: Evidence) -> None:
    evidence.listed["acme"]["t-late"] = "IN_PROGRESS"


def complete_twice(evidence: Evidence) -> None:
    relog(evidence, late=("enqueue", "claim", "complete", "complete"))


def work_on_after_the_end(evidence: Evidence) -> None:
    relog(evidence, late=("enqueue", "claim", "complete", "claim", "complete"))


def take_a_late_result(evidence: Evidence) -> None:
    events = list(evidence.events)
    at = next(n for n, event in enumerate(events) if event.task_id == "t-late" and event.move == "complete")
    events[at] = msgspec.structs.replace(events[at], lease_token=1)
    evidence.events = evidence.followed = events


def make_two_of_one_key(evidence: Evidence) -> None:
    evidence.repeats = [RepeatedEnqueue("acme", "key", "t-done", "t-late")]


def make_one_too_many(evidence: Evidence) -> None:
    evidence.acknowledged = [one for one in evidence.acknowledged if one.task_id != "t-late"]


def answer_two_enqueues_with_one_task(evidence: Evidence) -> None:
    evidence.acknowledged = [*evidence.acknowledged, acknowledged("t-late", FinalState.COMPLETED)]


def show_it_to_another_tenant(evidence: Evidence) -> None:
    evidence.cross_tenant_reads = [("globex", "t-late")]


def list_it_for_another_tenant(evidence: Evidence) -> None:
    evidence.listed["globex"]["t-late"] = "COMPLETED"


def log_it_for_another_tenant(evidence: Evidence) -> None:
    evidence.events = evidence.followed = [
        msgspec.structs.replace(event, tenant="globex") if event.task_id == "t-late" else event
        for event in evidence.events
    ]


def forget_what_was_read(evidence: Evidence) -> None:
    evidence.followed = [*evidence.followed, msgspec.structs.replace(evidence.events[-1], seq=99, task_id="t-late")]


def leave_a_wrong_result(evidence: Evidence) -> None:
    evidence.wrong_results = ["t-late"]


def leave_a_wrong_file(evidence: Evidence) -> None:
    evidence.wrong_artifacts = ["t-late"]


def test_a_run_without_fault_passes() -> None:
    assert broken(good()) == {}


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (lose_a_task, "every acknowledged task is there"),
        (hide_a_task, "every acknowledged task is there"),
        (leave_a_task_open, "every task reached its expected final state"),
        (end_it_otherwise, "every task reached its expected final state"),
        (list_it_otherwise, "every task reached its expected final state"),
        (complete_twice, "no task ended twice"),
        (work_on_after_the_end, "no task ended twice"),
        (take_a_late_result, "results were accepted from the newest lease only"),
        (make_two_of_one_key, "a repeated key gave the same task"),
        (make_one_too_many, "no task exists that nobody enqueued"),
        (answer_two_enqueues_with_one_task, "no task exists that nobody enqueued"),
        (show_it_to_another_tenant, "no tenant saw a task of another"),
        (list_it_for_another_tenant, "no tenant saw a task of another"),
        (log_it_for_another_tenant, "no tenant saw a task of another"),
        (forget_what_was_read, "events read before a crash are unchanged after it"),
        (leave_a_wrong_result, "results are what the handlers returned"),
        (leave_a_wrong_file, "artifacts are what the handlers attached"),
    ],
)
def test_a_planted_fault_is_reported_with_its_task(plant: Callable[[Evidence], None], promise: str) -> None:
    evidence = good()
    plant(evidence)
    found = broken(evidence)
    assert promise in found
    assert found[promise] == ["t-late"]


def test_a_gap_in_the_log_is_reported() -> None:
    evidence = good()
    evidence.events = [event for event in evidence.events if event.seq != 5]
    evidence.followed = evidence.events
    assert "the event log has no gap" in broken(evidence)


def test_a_call_that_was_never_answered_may_have_made_a_task() -> None:
    evidence = good()
    make_one_too_many(evidence)
    evidence.unanswered = 1
    assert broken(evidence) == {}


def test_the_figures_are_those_of_the_log() -> None:
    counted = figures.count(log_of(LIVES), acknowledged=7)
    assert (counted.tasks, counted.acknowledged, counted.events) == (7, 7, 25)
    assert (counted.completed, counted.failed, counted.dead, counted.cancelled) == (4, 1, 1, 1)
    assert (counted.leases_expired, counted.redeliveries, counted.replays) == (1, 1, 1)
    assert (counted.wait_ms_p50, counted.wait_ms_p99) == (1000, 1000)


def test_the_states_of_tasks_and_their_holders_follow_the_log() -> None:
    states = TaskStates()
    for event in log_of({"t-done": DONE, "t-late": ("enqueue", "claim"), "t-other": ("enqueue",)}):
        states.apply(event)
    assert states.queues["acme", "work"]["completed"] == 1
    assert (states.total("running"), states.total("ready"), states.open_tasks, states.ended_tasks) == (1, 1, 2, 1)
    assert (states.held["w"], states.done_by["w"]) == (1, 1)


def report_of(evidence: Evidence) -> DemoReport:
    checks = audit(evidence)
    ok = all(check.is_kept for check in checks)
    return DemoReport(ok=ok, figures=figures.count(evidence.events, acknowledged=7), findings=checks, timeline=[])


def test_the_report_of_a_good_run_says_so() -> None:
    console = Console(file=io.StringIO(), record=True, width=120)
    print_report(console, report_of(good()), timeline=True)
    printed = console.export_text()
    assert "ALL IS WELL" in printed
    assert "BROKEN" not in printed


@pytest.mark.parametrize("options", [["--plain"], ["--json"]])
def test_a_broken_promise_names_the_tasks_and_ends_with_1(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = good()
    complete_twice(evidence)
    monkeypatch.setattr("codeq.demo.run.run", lambda *_: report_of(evidence))
    ended = CliRunner().invoke(app, ["demo", *options])
    assert ended.exit_code == 1
    assert "t-late" in ended.output
