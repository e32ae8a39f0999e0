"""Remembers who works, in the registry of the store: a worker is listed for a while after each claim and heartbeat.

Claims are many, so a registration is written when it is new, when what the worker tells has changed, and otherwise
every WORKER_REFRESH_MS. It is advice: it is not flushed, and a claim does not fail because of it.

A worker that leaves stays off the list: what is being stored of it is waited for, and its calls that began before list
it no more. That is known to the process that it leaves at; a call that another server of the same Redis is still busy
with at that time may list it once more, until its time is over.
"""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from codeq.domain.errors import StoreError
from codeq.domain.limits import (
    CLAIM_COMMANDS_MAX,
    WORKER_CHANGE_MS,
    WORKER_REFRESH_MS,
    WORKER_TTL_MS,
    WORKERS_KNOWN_MAX,
    WORKERS_MAX,
)
from codeq.domain.task import Task
from codeq.domain.workers import WorkerInfo, WorkerStatus
from codeq.store.interface import Registration, Store

KIND = "worker"

_encode = msgspec.msgpack.Encoder().encode
decode_worker = msgspec.msgpack.Decoder(WorkerStatus).decode

_Place = tuple[str, str, str]
"""Tenant, the name that the worker gave itself (empty if it gave none), and the subject of its token."""


class _Written(Struct):
    """What this process has written of a worker last."""

    info: WorkerInfo | None
    commands: Sequence[str] | None
    first_seen_ms: int
    at_ms: int
    ttl_ms: int
    asked: Sequence[str] | None = ()
    """The commands of its last claim."""
    is_listed: bool = True
    """False if the tenant had too many workers."""

    def is_fresh(self, now_ms: int) -> bool:
        return now_ms - self.at_ms < WORKER_REFRESH_MS

    def tells(self, asked: Sequence[str] | None, info: WorkerInfo | None) -> bool:
        """Returns whether a claim with these tells nothing new. One that found no place on the list does not."""
        return not self.is_listed or (self.asked == asked and self.info == info)

    def is_known(self, now_ms: int) -> bool:
        """Whether the registry still has it."""
        return self.is_listed and now_ms - self.at_ms < self.ttl_ms


class WorkerRegistry:
    """The workers of all tenants. One process remembers what it wrote; what is written, every process sees."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: OrderedDict[_Place, _Written] = OrderedDict()
        self._counted: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """How many workers a tenant has, and when they were counted."""
        self._calls = itertools.count(1)
        self._left: OrderedDict[_Place, int] = OrderedDict()
        """The number of the call by which a worker left."""
        self._storing: dict[asyncio.Task[None], _Place] = {}

    def begin(self) -> int:
        """Numbers a call that begins: those before a worker leaves do not list it again."""
        return next(self._calls)

    async def claims(
        self,
        tenant: str,
        subject: str,
        info: WorkerInfo | None,
        *,
        commands: Sequence[str] | None,
        lease_ms: int,
        call: int,
    ) -> None:
        """Registers the worker that claims, unless that was done lately. `lease_ms` is how long it may be silent."""
        place = (tenant, info.name if info is not None else "", subject)
        last, now_ms = self._written.get(place), self._store.now_ms()
        if last is not None and last.is_fresh(now_ms) and last.tells(commands, info):
            return
        tells_all = info is not None and info.commands is not None
        told = info.commands if info is not None and tells_all else _joined(last, commands)
        if last is not None:
            # Commands that it did not tell of before are few, and nobody should think that no one works on them.
            is_new = not tells_all and last.commands != told
            is_changed = last.info != info or last.commands != told
            age_ms = now_ms - last.at_ms
            if not is_new and age_ms < (WORKER_CHANGE_MS if is_changed else WORKER_REFRESH_MS):
                return
        await self._write(place, _Written(info, told, now_ms, now_ms, max(WORKER_TTL_MS, lease_ms), commands), call)

    async def beats(self, task: Task, *, lease_ms: int, call: int) -> None:
        """Registers the worker that extended its lease on the task, unless that was done lately."""
        place = (task.tenant, task.worker_name or "", task.worker or "")
        last, now_ms = self._written.get(place), self._store.now_ms()
        ttl_ms = max(WORKER_TTL_MS, lease_ms)
        if last is not None and last.is_fresh(now_ms):
            return
        if last is None or not last.is_listed:
            entry = await self._entry(place)
            if entry is None:  # it was silent for too long; its next claim tells the rest
                entry = WorkerStatus(name=place[1], subject=place[2], commands=(task.command,), first_seen_ms=now_ms)
            last = _Written(_info_of(entry), entry.commands, entry.first_seen_ms, entry.last_seen_ms, ttl_ms)
        if now_ms - last.at_ms >= WORKER_REFRESH_MS:
            await self._write(place, msgspec.structs.replace(last, at_ms=now_ms, ttl_ms=ttl_ms), call)

    async def leaves(self, tenant: str, subject: str, name: str) -> bool:
        """Removes a worker that stops. Returns whether it was there."""
        place = (tenant, name, subject)
        self._left[place] = self.begin()
        self._left.move_to_end(place)
        while len(self._left) > WORKERS_KNOWN_MAX:
            self._left.popitem(last=False)
        self._written.pop(place, None)
        if storing := [task for task, stored in self._storing.items() if stored == place]:
            await asyncio.wait(storing)
        [was_there] = await self._store.registry.remove(KIND, tenant, [_key(place)])
        return was_there

    async def _entry(self, place: _Place) -> WorkerStatus | None:
        [entry] = await self._store.registry.get(KIND, place[0], [_key(place)])
        return None if entry is None else decode_worker(entry.value)

    async def _write(self, place: _Place, new: _Written, call: int) -> None:
        """Stores a registration, unless the worker has left since the call began. Remembered before it is stored, as
        many claims may arrive meanwhile.

        A caller that disconnects does not interrupt it: a command that was already sent to Redis might be executed
        after the worker has left.
        """
        if call < self._left.get(place, 0):
            return
        last = self._written.get(place)
        self._remember(place, new)
        if self._store.is_local:  # it does not suspend, so a claim keeps its place before those that come later
            await self._store_it(place, new, last)
            return
        storing = asyncio.get_running_loop().create_task(self._store_it(place, new, last))
        self._storing[storing] = place
        storing.add_done_callback(self._storing.pop)
        await asyncio.shield(storing)

    async def _store_it(self, place: _Place, new: _Written, last: _Written | None) -> None:
        with suppress(StoreError):  # the call itself will say what is wrong with the store
            if last is not None and last.is_known(new.at_ms):
                new.first_seen_ms = last.first_seen_ms
            elif (entry := await self._entry(place)) is not None:
                new.first_seen_ms = entry.first_seen_ms
            elif await self._is_full(place[0], new.at_ms):
                # Without what it tells, which a tenant may give many names to: only that it has been looked at.
                new.is_listed, new.info, new.commands, new.asked = False, None, None, None
                return
            await self._store.registry.put([_registration(place, new)])

    def _remember(self, place: _Place, new: _Written) -> None:
        """Remembers what is written, and forgets two that have been silent for so long that they are not listed."""
        self._written[place] = new
        self._written.move_to_end(place)
        for _ in range(2):
            if len(self._written) <= WORKERS_KNOWN_MAX and self._oldest.at_ms >= new.at_ms - WORKER_TTL_MS:
                break
            self._written.popitem(last=False)

    @property
    def _oldest(self) -> _Written:
        return next(iter(self._written.values()))

    async def _is_full(self, tenant: str, now_ms: int) -> bool:
        """Returns whether the tenant has as many workers as it may have. Counts them now and then only, as a tenant
        may give every claim another name."""
        number, counted_ms = self._counted.get(tenant, (0, -WORKER_REFRESH_MS))
        if now_ms - counted_ms >= WORKER_REFRESH_MS:
            number, counted_ms = len(await self._store.registry.entries(KIND, tenant)), now_ms
        self._counted[tenant] = (number + 1, counted_ms)
        self._counted.move_to_end(tenant)
        while len(self._counted) > WORKERS_KNOWN_MAX:
            self._counted.popitem(last=False)
        return number >= WORKERS_MAX


def _key(place: _Place) -> str:
    """A name has no spaces, so no worker can take the place of one with another subject."""
    _, name, subject = place
    return f"{name} {subject}"


def _joined(last: _Written | None, commands: Sequence[str] | None) -> Sequence[str] | None:
    """Returns the commands of this claim and of those before, as far as they are as many as one claim may name."""
    if last is None or last.commands is None or commands is None:
        return commands
    joined = (*last.commands, *[command for command in commands if command not in last.commands])
    return joined if len(joined) <= CLAIM_COMMANDS_MAX else last.commands


def _info_of(entry: WorkerStatus) -> WorkerInfo | None:
    if not entry.name:
        return None
    return WorkerInfo(name=entry.name, host=entry.host, pid=entry.pid, version=entry.version, slots=entry.slots)


def _registration(place: _Place, new: _Written) -> Registration:
    tenant, name, subject = place
    info = new.info or WorkerInfo(name="")
    status = WorkerStatus(
        name=name, subject=subject, host=info.host, pid=info.pid, version=info.version, slots=info.slots,
        commands=None if new.commands is None else tuple(new.commands),
        first_seen_ms=new.first_seen_ms, last_seen_ms=new.at_ms,
    )  # fmt: skip
    return Registration(
        kind=KIND, tenant=tenant, name=_key(place), value=_encode(status), expires_ms=new.at_ms + new.ttl_ms
    )
