"""Starts and holds what a demo runs on: server, workers, one set of clients per tenant, and what was recorded."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Self

import msgspec

from codeq.demo.acknowledged import AcknowledgedTasks
from codeq.demo.callbacks import CallbackReceiver
from codeq.demo.processes import START_S_MAX, ChildProcess, ServerProcess, wait_until
from codeq.demo.redis_store import DemoStore
from codeq.demo.task_states import TaskStates
from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.queue import OnExpiry
from codeq.sdk.client import AsyncClient
from codeq.sdk.queue_policies import QueuePolicy
from codeq.server.dev import make_token

RETRY_S = 120.0
"""How long clients retry while the server is down: longer than any restart takes."""
TOKEN_S = 3600
EVENTS_PAGE = 2000
NO_STEP = "no fault injected"
"""The name shown between two steps of the scenario."""

COMMANDS = {
    "acme": ("charge_card", "send_receipt"),
    "globex": ("render_video", "make_thumbnail"),
    "initech": ("import_row", "file_report"),
}
POLICY = QueuePolicy(
    max_attempts=20,
    backoff=Backoff(BackoffKind.EXP_FULL_JITTER, 300, 2_000),
    on_expiry=OnExpiry.IMMEDIATE,
)
"""Short delays, because people are watching; many attempts, so that a slow machine changes no final state."""


class TimelineEntry(msgspec.Struct, frozen=True):
    at_s: float
    text: str
    style: str = ""


class WorkerSpec(msgspec.Struct, frozen=True):
    name: str
    tenant: str
    slow: bool = False
    release: int = 1


class TenantClients:
    """One tenant's clients, each with a token of its own."""

    def __init__(self, name: str, url: str, data: Path) -> None:
        self.name = name
        self.producer = AsyncClient(url, _token(data, name, "producer"), retry_for=RETRY_S)
        self.admin = AsyncClient(url, _token(data, name, "admin"), retry_for=RETRY_S)


class DemoEnvironment:
    """Use it with `async with`: leaving it ends every process that it started."""

    def __init__(self, folder: Path, *, seconds: float, tasks: int, store: DemoStore | None = None) -> None:
        self.folder = folder
        self.seconds = seconds
        self.tasks = tasks
        self.callbacks = CallbackReceiver()
        self.server = ServerProcess(folder, store, settings=self.callbacks.server_settings)
        self.acknowledged = AcknowledgedTasks(folder / "acknowledged.jsonl")
        self.states = TaskStates()
        self.timeline: list[TimelineEntry] = []
        self.kills: list[str] = []
        """The names of the processes that were killed with kill -9."""
        self.producers: list[asyncio.Task[None]] = []
        self.rush_at_ms = 0
        self.downtime_s = 0.0
        self.workers: dict[str, tuple[WorkerSpec, ChildProcess]] = {}
        self.tenants: dict[str, TenantClients] = {}
        self.platform: AsyncClient
        self.step = NO_STEP
        self._started_s = monotonic()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._open.callback(self.acknowledged.close)
        self._open.callback(self.callbacks.close)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        workers = [child for _, child in self.workers.values()]
        try:
            await self._open.aclose()
            if kind is None:
                await asyncio.gather(*[child.stop() for child in workers])
                await self.server.stop()
        finally:
            for child in (*workers, self.server):
                child.kill()

    @property
    def now_s(self) -> float:
        """Seconds since everything was started."""
        return monotonic() - self._started_s

    def record(self, text: str, style: str = "") -> None:
        """Adds a line to the timeline."""
        self.timeline.append(TimelineEntry(self.now_s, text, style))

    async def start(self, workers: Sequence[WorkerSpec]) -> None:
        """Starts the server, creates the tenants and starts the workers."""
        await self.server.serve()
        for name, commands in COMMANDS.items():
            tenant = self.tenants[name] = TenantClients(name, self.server.url, self.server.data)
            await self._open.enter_async_context(tenant.producer)
            await self._open.enter_async_context(tenant.admin)
            for command in commands:
                await tenant.admin.set_policy(command, POLICY)
        self.platform = AsyncClient(self.server.url, platform_token(self.server.data), retry_for=RETRY_S)
        await self._open.enter_async_context(self.platform)
        for spec in workers:
            self.start_worker(spec)
        await wait_until(lambda: all(child.has_logged(" starts") for _, child in self.workers.values()), START_S_MAX)
        self._started_s = monotonic()

    def start_worker(self, spec: WorkerSpec) -> None:
        child = ChildProcess(spec.name, self.folder / f"{spec.name}.log")
        token = _token(self.server.data, spec.tenant, "worker", subject=spec.name)
        options = ["--release", str(spec.release), *(["--slow"] if spec.slow else [])]
        env = {"CODEQ_URL": self.server.url, "CODEQ_TOKEN": token}
        child.start("codeq.demo.handlers:main", spec.name, *options, env=env)
        self.workers[spec.name] = spec, child

    def check(self) -> None:
        """Raises DemoFailed if a process ended that should be running."""
        self.server.check()
        for _, child in self.workers.values():
            child.check()

    async def follow_events(self) -> None:
        """Applies the event log to the task states as it grows. Never returns."""
        offset = 1
        while True:
            page = await self.platform.events(offset=offset, limit=EVENTS_PAGE, wait=1)
            for event in page.events:
                self.states.apply(event)
            offset = page.next_offset
            await asyncio.sleep(0.05 if len(page.events) < EVENTS_PAGE else 0)


def platform_token(data: Path) -> str:
    """A token that may read the events of all tenants."""
    return _token(data, "auditor", "admin", scopes=["codeq:events", "codeq:admin", "codeq:platform"])


def _token(data: Path, tenant: str, role: str, *, subject: str | None = None, scopes: list[str] | None = None) -> str:
    return make_token(
        data, tenant=tenant, role=role, subject=subject or role, commands=[], scopes=scopes, ttl_s=TOKEN_S
    )
