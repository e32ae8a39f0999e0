"""What admins call: queues, policies, pauses, dead letters, cleanup."""

from typing import Any

import msgspec

from codeq.domain.errors import InvalidRequest, NotFound
from codeq.domain.limits import LIST_TASKS_MAX
from codeq.domain.queue import Index, QueueCounts, QueueKey, QueuePolicy
from codeq.domain.requests import Filter
from codeq.server.calls import Call, Parser, Reply, whole_number
from codeq.server.handlers.reading import page_of
from codeq.server.parts import Parts
from codeq.usecases import checks, inspect, operate
from codeq.wire import queues as wire
from codeq.wire import times
from codeq.wire.reading import policy_of

TOPIC = Parser(wire.PutTopic)
CLEANUP = Parser(wire.Cleanup)
SELECTION = Parser(wire.Selection)


async def all_queues(parts: Parts, call: Call) -> Reply:
    """The original's flat map of key names and counts; an admin of the platform sees every tenant's."""
    counts = await inspect.counts(parts.core, None if call.principal.is_platform else call.tenant)
    flat: dict[str, int] = {}
    for (tenant, command), counted in sorted(counts.items()):
        prefix = f"codeq:q:{command}:{tenant}"
        flat[f"{prefix}:pending"] = counted.pending
        flat[f"{prefix}:delayed"] = counted.delayed
        flat[f"{prefix}:inprog"] = counted.in_progress
        flat[f"{prefix}:dlq"] = counted.dead
    return call.answer(200, flat)


async def one_queue(parts: Parts, call: Call) -> Reply:
    key = QueueKey(call.tenant, checks.name(call.params["command"], "command"))
    counts = (await inspect.counts(parts.core, call.tenant)).get(key, QueueCounts())
    now_ms = parts.core.store.now_ms()
    return call.answer(200, wire.queue_view(key, counts, now_ms=now_ms, paused=parts.core.policy(*key).paused))


async def pause(parts: Parts, call: Call) -> Reply:
    return await _set_paused(parts, call, paused=True)


async def resume(parts: Parts, call: Call) -> Reply:
    return await _set_paused(parts, call, paused=False)


async def put_topic(parts: Parts, call: Call) -> Reply:
    key = _topic_key(call)
    asked = call.read(TOPIC).policy
    if len(set(asked.priority_tiers)) < len(asked.priority_tiers):
        raise InvalidRequest("policy.priorityTiers holds a tier twice")
    if asked.dead_letter_topic_ref == key.command:
        raise InvalidRequest("policy.deadLetterTopicRef must name another topic")
    before = parts.core.store.policies().get(key)
    policy = _policy(asked, before, parts.core.store.now_ms())
    if policy != before:
        await _store(parts, key, policy)
    return call.answer(200 if before else 201, wire.topic_view(key, policy))


async def get_topic(parts: Parts, call: Call) -> Reply:
    key = _topic_key(call)
    policy = parts.core.store.policies().get(key)
    if policy is None:
        raise NotFound(f"there is no policy for {key.command!r}; the defaults hold")
    return call.answer(200, wire.topic_view(key, policy))


async def delete_topic(parts: Parts, call: Call) -> Reply:
    if call.query(("deletionPolicy",)).get("deletionPolicy", "Delete") != "Delete":
        raise InvalidRequest("deletionPolicy must be Delete")
    key = _topic_key(call)
    if key in parts.core.store.policies():
        await _store(parts, key, None)
    return Reply(204)


async def list_dead(parts: Parts, call: Call) -> Reply:
    given = call.query(("command", "error", "cursor", "limit"))
    command = given.get("command")
    wanted = Filter(
        command=checks.name(command, "command") if command is not None else None,
        error=given.get("error"),
        index=Index.DEAD,
    )
    limit = whole_number(given.get("limit", "100"), "limit", 1, LIST_TASKS_MAX)
    return await page_of(parts, call, wanted, given.get("cursor"), limit=limit)


async def replay_dead(parts: Parts, call: Call) -> Reply:
    return await _on_dead(parts, call, operate.replay_named, operate.replay_matching)


async def purge_dead(parts: Parts, call: Call) -> Reply:
    return await _on_dead(parts, call, operate.purge_named, operate.purge_matching)


async def cleanup(parts: Parts, call: Call) -> Reply:
    asked = call.read(CLEANUP)
    token = call.headers[b"authorization"].decode("latin-1")
    parts.limiter.spend("admin", "cleanup", token=token, tenant=call.tenant)
    now_ms = parts.core.store.now_ms()
    try:
        before_ms = times.parse(asked.before) if asked.before else now_ms
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"before is {fault}") from None
    deleted = await operate.purge_before(parts.core, call.tenant, before_ms, limit=asked.limit or 1000)
    return call.answer(200, wire.Cleaned(deleted=deleted, before=times.text(before_ms), limit=asked.limit))


async def _on_dead(parts: Parts, call: Call, named: Any, matching: Any) -> Reply:
    asked = call.read(SELECTION)
    chosen = [asked.ids is not None, asked.command is not None or asked.error is not None, asked.all]
    if sum(chosen) != 1:
        raise InvalidRequest("say which dead tasks: ids, or command and error, or all: true; one of these")
    if asked.ids is not None:
        swept = await named(parts.core, call.tenant, asked.ids, dry_run=asked.dry_run)
    else:
        wanted = Filter(command=asked.command, error=asked.error)
        swept = await matching(parts.core, call.tenant, wanted, limit=asked.limit, dry_run=asked.dry_run)
    answer = wire.Selected(
        matched=swept.matched, changed=swept.changed, dry_run=asked.dry_run, ids=swept.ids, refused=swept.refused
    )
    return call.answer(200, answer)


async def _set_paused(parts: Parts, call: Call, *, paused: bool) -> Reply:
    key = QueueKey(call.tenant, checks.name(call.params["command"], "command"))
    await operate.set_paused(parts.core, key, paused=paused)
    return await one_queue(parts, call)


async def _store(parts: Parts, key: QueueKey, policy: QueuePolicy | None) -> None:
    await operate.set_policy(parts.core, key, policy)


def _topic_key(call: Call) -> QueueKey:
    return QueueKey(call.tenant, checks.name(call.params["topic"], "topic name"))


def _policy(asked: wire.PolicyFields, before: QueuePolicy | None, now_ms: int) -> QueuePolicy:
    try:
        wanted = policy_of(asked)
    except ValueError as fault:
        raise InvalidRequest(f"policy: {fault}") from None
    if before is None:
        return msgspec.structs.replace(wanted, created_ms=now_ms, updated_ms=now_ms)
    wanted = msgspec.structs.replace(
        wanted, version=before.version, created_ms=before.created_ms, updated_ms=before.updated_ms
    )
    if wanted == before:
        return wanted
    return msgspec.structs.replace(wanted, version=before.version + 1, updated_ms=now_ms)
