"""One sequence of calls with all four kinds of clients: every answer is the same value of the same type.

What remains different, and must: on a server the worker is who the token says; a task that travelled has no `version`,
`previous`, `status_before`, `max_deliveries`, `purge_at` and `backoff` (its history has the first three).
"""

import re
from typing import Any

import msgspec
from tests.sdk.clients import KINDS, WORKER, Clients

import codeq
from codeq import EffectivePolicy, Job, NewTask, QueuePolicy, Task, TaskFailed
from codeq.domain.task import Holder
from codeq.sdk.blocking import BlockingVerbs
from codeq.sdk.tasks import Field
from codeq.sdk.verbs import Verbs

NOT_SENT = {"version", "previous", "status_before", "max_deliveries", "purge_at", "backoff"}
TASK_FIELDS = [name for name, field in vars(Task).items() if isinstance(field, Field)]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def queues_of_users(queue: Any) -> dict[str, Any]:
    """Leaves out deliveries of webhooks, which a server sends and an embedded queue keeps."""
    return {name: info for name, info in queue.queues().items() if not name.startswith("$")}


def story(queue: BlockingVerbs) -> list[Any]:
    told: list[Any] = []
    tell = told.append
    tell(queue.enqueue("a"))
    backoff = codeq.fixed(2)
    tell(queue.enqueue("a", {"x": [1.5]}, priority=3, max_attempts=2, idempotency_key="k", backoff=backoff))
    tell(queue.enqueue("a", {"x": [1.5]}, idempotency_key="k"))
    tell(queue.enqueue("later", "z", delay=60, webhook="https://example.org/"))
    tell(
        queue.enqueue_many(
            [NewTask(command="b", payload=b"[1]"), NewTask(command="?"), NewTask(command="b")], refusals="return"
        )
    )
    tell(queues_of_users(queue))
    first, second = queue.claim("a", worker=WORKER, limit=2, lease=30)
    tell([first, second])
    tell(queue.get(first.id))
    tell(queue.heartbeat(first, 60))
    tell(queue.heartbeat_many([first, Job("x", "a", b"", Holder("w", 1))], 60))
    tell(queue.nack(first, "once", delay=0))
    tell(queue.nack(queue.claim("a", worker=WORKER)[0], "twice"))
    tell(queue.abandon(second))
    third = queue.claim("b", worker=WORKER, limit=2)
    tell(queue.complete_many([*third, second, Job("x", "b", b"", Holder("w", 1))], [{"r": 1}, None, 3, 4]))
    tell([queue.get(job.id) for job in third])
    tell(queue.wait(third[0].id))
    fourth = queue.claim("a", worker=WORKER)[0]
    tell(queue.fail(fourth, "over", [0]))
    try:
        queue.wait(fourth.id)
    except TaskFailed as failed:
        tell([failed, failed.details])
    tell(queue.cancel(queue.list(command="later").tasks[0].id))
    tell(queue.list())
    tell(queue.list(dead=True))
    tell(queue.replay_dead("a", dry_run=True))
    tell(queue.replay(first.id))
    tell(queue.history(first.id))
    tell(queue.set_policy("a", QueuePolicy(max_attempts=3, retention=5)))
    tell(queue.set_policy("a", QueuePolicy(max_attempts=4, backoff=codeq.partial_backoff(base=0.5)), if_match=1))
    tell(queue.policy("a"))
    queue.pause("a")
    tell([queue.policy("a"), queue.effective_policy("a"), queue.effective_policy("none")])
    tell(queues_of_users(queue))
    tell(queue.policy("none"))
    tell(queue.purge_dead())
    tell(queue.cleanup())
    return told


class Plain:
    """Turns answers into what can be compared: ids by the order in which they were met, times as such."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._ids: dict[str, str] = {}

    def of(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Exception):
            said = re.sub(r"[0-9a-f-]{36}", lambda found: self._id(found[0]), str(value))
            return type(value).__name__, "" if isinstance(value, codeq.errors.InvalidRequest) else said
        if isinstance(value, Task):
            fields = {field: getattr(value, field) for field in TASK_FIELDS if field not in NOT_SENT}
            return type(value).__name__, {field: self.of(inner, field) for field, inner in fields.items()}
        if isinstance(value, QueuePolicy | EffectivePolicy):
            return type(value).__name__, {field: self.of(inner, field) for field, inner in vars(value).items()}
        if isinstance(value, msgspec.Struct):
            fields = {field: getattr(value, field) for field in value.__struct_fields__}
            return type(value).__name__, {field: self.of(inner, field) for field, inner in fields.items()}
        if isinstance(value, list):
            return [self.of(item) for item in value]
        if isinstance(value, dict):
            return {self.of(key): self.of(inner) for key, inner in value.items()}
        if name in ("_lease_until_ms", "oldest_seconds", "seq"):
            return type(value), bool(value) or name == "oldest_seconds"
        if isinstance(value, str):
            return type(value), _TIME.sub("time", self._id(value))
        return type(value), None if "datetime" in type(value).__name__ else value

    def _id(self, text: str) -> str:
        if text == self._tenant:
            return "tenant"
        return self._ids.setdefault(text, f"id {len(self._ids)}") if re.fullmatch(r"[0-9a-f-]{36}", text) else text


def test_the_same_story_gives_the_same_answers_in_all_four_ways(clients: Clients) -> None:
    told = {kind: story(clients.queue(kind, f"story-{kind}")) for kind in KINDS}
    plain = {kind: Plain(f"story-{kind}").of(answers) for kind, answers in told.items()}
    for kind in KINDS[1:]:
        for number, (first, other) in enumerate(zip(plain[KINDS[0]], plain[kind], strict=True)):
            assert other == first, f"answer {number} of {kind}"


def test_every_verb_is_there_in_every_way() -> None:
    verbs = {name for name, member in vars(Verbs).items() if callable(member) and name[0] != "_"}
    for kind in (codeq.Client, codeq.AsyncClient, codeq.Queue, codeq.AsyncQueue):
        assert verbs <= set(dir(kind))
