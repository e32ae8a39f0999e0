"""What workers call: claim, heartbeat, abandon, nack, result."""

from collections.abc import Sequence
from typing import Any

from codeq.domain.errors import CodeqError, InvalidRequest
from codeq.domain.limits import BACKOFF_MS_MAX, CLAIM_WAIT_MS_MAX, LEASE_MS_MIN
from codeq.domain.requests import Claim, Outcome
from codeq.domain.task import Holder, Status, Task
from codeq.server.auth.principal import EVERY_COMMAND
from codeq.server.calls import BatchParser, Call, Parser, Reply, json_value
from codeq.server.lane import Shared
from codeq.server.parts import Parts
from codeq.usecases import giveback
from codeq.usecases.claim import claim
from codeq.usecases.heartbeat import heartbeat as extend
from codeq.usecases.submit import Submitted, submit
from codeq.wire import tasks as wire
from codeq.wire import times
from codeq.wire.errors import Forbidden


def _nested(asked: wire.SubmitOf) -> bytes:
    result = bytes(asked.result)
    return result if not asked.artifacts else b"[%b]%b" % (b",".join([bytes(raw) for raw in asked.artifacts]), result)


CLAIM = Parser(wire.Claim)
CLAIM_MANY = Parser(wire.ClaimBatch)
HEARTBEAT = Parser(wire.Heartbeat)
LEASE_CALL = Parser(wire.LeaseCall)
NACK = Parser(wire.Nack)
SUBMIT = Parser(wire.Submit, wire.PackedSubmit)
SUBMIT_MANY = BatchParser(
    Parser(wire.SubmitBatch),
    Parser(wire.SubmitOf, wire.PackedSubmitOf),
    Parser(wire.ReadSubmits, wire.ReadPackedSubmits),
    nested=_nested,
)

_NOTHING = Reply(204)
_STATUSES = {status.value: status for status in Status}


async def claim_one(parts: Parts, call: Call) -> Reply:
    views = await _claim(parts, call, call.read(CLAIM), 1)
    return call.answer(200, views[0]) if views else _NOTHING


async def claim_many(parts: Parts, call: Call) -> Reply:
    asked = call.read(CLAIM_MANY)
    views = await _claim(parts, call, asked, asked.count)
    return call.answer(200, wire.ClaimedTasks(tasks=views)) if views else _NOTHING


async def heartbeat(parts: Parts, call: Call) -> Reply:
    asked = call.read(HEARTBEAT)
    task_id = call.params["id"]
    await _check_commands(parts, call, [task_id])
    with parts.tracing.verb("heartbeat", task_id=task_id, worker_id=call.principal.subject):
        task = await extend(
            parts.core,
            call.tenant,
            task_id,
            _holder(call, asked),
            extend_ms=_ms(asked.extend_seconds) or None,
            progress=asked.progress,
        )
    return call.answer(200, wire.HeartbeatAnswer(ok=True, lease_until=times.text(task.lease_until_ms)))


async def abandon(parts: Parts, call: Call) -> Reply:
    asked = call.read(LEASE_CALL)
    task_id = call.params["id"]
    await _check_commands(parts, call, [task_id])
    with parts.tracing.verb("abandon", task_id=task_id, worker_id=call.principal.subject):
        task = await giveback.abandon(parts.core, call.tenant, task_id, _holder(call, asked))
    return call.answer(200, wire.GiveBackAnswer(status="dlq" if task.is_dead else "requeued"))


async def nack(parts: Parts, call: Call) -> Reply:
    asked = call.read(NACK)
    task_id = call.params["id"]
    await _check_commands(parts, call, [task_id])
    delay_ms = None if asked.delay_seconds is None else min(_ms(asked.delay_seconds), BACKOFF_MS_MAX)
    with parts.tracing.verb("nack", task_id=task_id, worker_id=call.principal.subject):
        task = await giveback.nack(
            parts.core,
            call.tenant,
            task_id,
            _holder(call, asked),
            delay_ms=delay_ms,
            reason=asked.reason,
            is_last=asked.dead,
        )
    waits_ms = task.visible_ms - task.updated_ms if task.visible_ms else 0
    status = "dlq" if task.is_dead else "requeued"
    return call.answer(200, wire.GiveBackAnswer(status=status, delay_seconds=waits_ms / 1000))


async def submit_one(parts: Parts, call: Call) -> Reply:
    asked = call.read(SUBMIT)
    task_id = call.params["id"]
    await _check_commands(parts, call, [task_id])
    with parts.tracing.verb("submit_result", task_id=task_id, worker_id=call.principal.subject):
        [answer] = await submit(parts.core, call.tenant, [_outcome(call, asked, task_id)])
    if isinstance(answer, CodeqError):
        raise answer
    return _submitted(call, answer)


def _submitting(_: Parts, call: Call) -> Outcome | None:
    if EVERY_COMMAND not in call.principal.event_types:
        return None  # the task has to be looked at first
    return _outcome(call, call.read(SUBMIT), call.params["id"])


def _submitted(call: Call, answer: Submitted) -> Reply:
    return call.answer(200, wire.result_view(answer.task, answer.result, packed=call.wants_packed))


SUBMITTING = Shared(read=_submitting, size=lambda outcome: len(outcome.result or b""), verb=submit, answer=_submitted)


async def submit_many(parts: Parts, call: Call) -> Reply:
    wants_packed = call.wants_packed
    answers: list[wire.SubmitAnswer | None] = []
    outcomes: list[Outcome] = []
    for asked in SUBMIT_MANY.read(call):
        if isinstance(asked, CodeqError):
            raise asked
        try:
            outcomes.append(_outcome(call, asked, asked.task_id))
            answers.append(None)
        except CodeqError as refusal:
            answers.append(wire.SubmitAnswer(task_id=asked.task_id, error=str(refusal), code=refusal.code))
    await _check_commands(parts, call, [outcome.task_id for outcome in outcomes])
    with parts.tracing.verb("submit_result", batch=len(outcomes), worker_id=call.principal.subject):
        submitted = iter(await submit(parts.core, call.tenant, outcomes))
    asked_ids = iter([outcome.task_id for outcome in outcomes])
    results = []
    for answer in answers:
        if answer is not None:
            results.append(answer)
            continue
        done, task_id = next(submitted), next(asked_ids)
        if isinstance(done, CodeqError):
            results.append(wire.SubmitAnswer(task_id=task_id, error=str(done), code=done.code))
        else:
            view = wire.result_view(done.task, done.result, packed=wants_packed)
            results.append(wire.SubmitAnswer(task_id, view))
    return call.answer(200, wire.SubmitAnswers(results=results))


async def _claim(parts: Parts, call: Call, asked: Any, count: int) -> list[wire.TaskView]:
    authorization = call.headers[b"authorization"].decode("latin-1")
    parts.limiter.spend("worker", "claim", token=authorization, tenant=call.tenant, items=count)
    wait_ms = parts.wait_ms(min(_ms(asked.wait_seconds), CLAIM_WAIT_MS_MAX))
    wanted = Claim(
        worker=call.principal.subject,
        commands=_commands(call, asked.commands),
        limit=count,
        lease_ms=max(_ms(asked.lease_seconds), LEASE_MS_MIN) if asked.lease_seconds > 0 else None,
        wait_ms=wait_ms,
    )
    with parts.tracing.verb("claim", worker_id=wanted.worker, tenant_id=call.tenant):
        claiming = claim(parts.core, call.tenant, wanted)
        deliveries = await (call.unless_gone(claiming) if wait_ms else claiming)
    return [wire.view(delivery.task, delivery.body) for delivery in deliveries]


def _commands(call: Call, asked: list[str] | None) -> Sequence[str] | None:
    allowed = call.principal.event_types
    if EVERY_COMMAND in allowed:
        return list(dict.fromkeys(asked)) if asked else None
    if asked and not allowed.issuperset(asked):
        raise Forbidden("event type not allowed: the token's eventTypes do not include every command asked for")
    return list(dict.fromkeys(asked)) if asked else sorted(allowed)


async def _check_commands(parts: Parts, call: Call, ids: list[str]) -> None:
    """A token that is limited to some commands is limited to their tasks on every verb."""
    if EVERY_COMMAND in call.principal.event_types:
        return
    for task in await parts.core.store.load(call.tenant, ids):
        if isinstance(task, Task) and task.command not in call.principal.event_types:
            raise Forbidden("event type not allowed: the token's eventTypes do not include the task's command")


def _outcome(call: Call, asked: Any, task_id: str) -> Outcome:
    status = _STATUSES.get(asked.status)
    if status is None:
        raise InvalidRequest("invalid status: COMPLETED or FAILED")
    if asked.artifacts:
        raise InvalidRequest("artifacts are not taken by this server yet; send a link inside the result")
    result = json_value(bytes(asked.result), "result") if asked.result else None
    return Outcome(task_id=task_id, holder=_holder(call, asked), status=status, result=result, error=asked.error)


def _holder(call: Call, asked: Any) -> Holder:
    return Holder(call.principal.subject, asked.lease_token)


def _ms(seconds: float) -> int:
    return round(min(max(0.0, seconds), 1e9) * 1000)
