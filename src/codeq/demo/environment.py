"""What the acts play on: server, workers, tenants with their clients, the ledger, the board and the timeline."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

import msgspec

from codeq.demo.ledger import Ledger
from codeq.demo.processes import START_S_MAX, Child, ServerProcess, until
from codeq.demo.task_states import Board
from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.sdk.client import AsyncClient
from codeq.server.dev import make_token

RETRY_S = 120.0
"""How long a call is repeated while the server is away: longer than any restart takes."""
TOKEN_S = 3600
EVENTS_AT_ONCE = 2000
CALM = "business as usual"

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
"""Retries soon, because people are watching; many, so that a slow machine does not change how a task ends."""


class Note(msgspec.Struct, frozen=True):
    """One line of the timeline."""

    at_s: float
    text: str
    style: str = ""


class Hire(msgspec.Struct, frozen=True):
    name: str
    tenant: str
    slow: bool = False
    release: int = 1


class Tenant:
    """One tenant's callers, each with a token of its own."""

    def __init__(self, name: str, url: str, data: Path) -> None:
        self.name = name
        self.producer = AsyncClient(url, _token(data, name, "producer"), retry_for=RETRY_S)
        self.admin = AsyncClient(url, _token(data, name, "admin"), retry_for=RETRY_S)


class Stage:
    """Use it with `async with`: whatever runs at the end is stopped."""

    def __init__(self, folder: Path, *, seconds: float, tasks: int) -> None:
        self.folder = folder
        self.seconds = seconds
        self.tasks = tasks
        self.server = ServerProcess(folder)
        self.ledger = Ledger(folder / "acknowledged.jsonl")
        self.board = Board()
        self.notes: list[Note] = []
        self.kills: list[str] = []
        """The names of those that were killed with kill -9."""
        self.producers: list[asyncio.Task[None]] = []
        self.rush_at_ms = 0
        self.downtime_s = 0.0
        self.crew: dict[str, tuple[Hire, Child]] = {}
        self.tenants: dict[str, Tenant] = {}
        self.platform: AsyncClient
        self.act = CALM
        self._began_s = monotonic()
        self._left = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._left.enter_context(self.ledger)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers = [child for _, child in self.crew.values()]
        try:
            await self._left.aclose()
            if kind is None:
                await asyncio.gather(*[child.stop() for child in workers])
                await self.server.stop()
        finally:
            for child in (*workers, self.server):
                child.kill()

    @property
    def now_s(self) -> float:
        """Since the curtain rose."""
        return monotonic() - self._began_s

    def note(self, text: str, style: str = "") -> None:
        self.notes.append(Note(self.now_s, text, style))

    async def set_up(self, hires: Sequence[Hire]) -> None:
        """Start the server, make the tenants, and hire the workers."""
        await self.server.serve()
        for name, commands in COMMANDS.items():
            tenant = self.tenants[name] = Tenant(name, self.server.url, self.server.data)
            await self._left.enter_async_context(tenant.producer)
            await self._left.enter_async_context(tenant.admin)
            for command in commands:
                await tenant.admin.set_policy(command, POLICY)
        self.platform = AsyncClient(self.server.url, token_of_platform(self.server.data), retry_for=RETRY_S)
        await self._left.enter_async_context(self.platform)
        for hire in hires:
            self.hire(hire)
        await until(lambda: all(child.has_said(" starts") for _, child in self.crew.values()), START_S_MAX)
        self._began_s = monotonic()

    def hire(self, hire: Hire) -> None:
        """Start a worker, which works for one tenant under its own name."""
        child = Child(hire.name, self.folder / f"{hire.name}.log")
        token = _token(self.server.data, hire.tenant, "worker", subject=hire.name)
        options = ["--release", str(hire.release), *(["--slow"] if hire.slow else [])]
        env = {"CODEQ_URL": self.server.url, "CODEQ_TOKEN": token}
        child.start("codeq.demo.handlers:main", hire.name, *options, env=env)
        self.crew[hire.name] = hire, child

    def check(self) -> None:
        """Raise if something ended that should be running."""
        self.server.check()
        for _, child in self.crew.values():
            child.check()

    async def follow(self) -> None:
        """Keep the board up to date with the event log, for ever."""
        offset = 1
        while True:
            page = await self.platform.events(offset=offset, limit=EVENTS_AT_ONCE, wait=1)
            for event in page.events:
                self.board.apply(event)
            offset = page.next_offset
            await asyncio.sleep(0.05 if len(page.events) < EVENTS_AT_ONCE else 0)


def token_of_platform(data: Path) -> str:
    """For who may read the events of all tenants."""
    return _token(data, "auditor", "admin", scopes=["codeq:events", "codeq:admin", "codeq:platform"])


def _token(data: Path, tenant: str, role: str, *, subject: str | None = None, scopes: list[str] | None = None) -> str:
    return make_token(
        data, tenant=tenant, role=role, subject=subject or role, commands=[], scopes=scopes, ttl_s=TOKEN_S
    )
