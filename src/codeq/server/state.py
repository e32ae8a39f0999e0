"""What a handler may use: the core, the settings, and the components of the running service."""

import asyncio
import random
from dataclasses import dataclass, field
from time import perf_counter

from codeq.domain.errors import StoreError
from codeq.server.auth.principal import Authenticator
from codeq.server.backups import Backups
from codeq.server.durability import DurabilityInForce
from codeq.server.metrics import Metrics
from codeq.server.page_reads import PageReads
from codeq.server.ratelimit import RateLimiter
from codeq.server.scrape import Scraper
from codeq.server.settings import Settings
from codeq.server.tenant_slots import TenantSlots
from codeq.server.tracing import Tracing
from codeq.server.transfers import Transfers
from codeq.server.webhooks.dispatcher import Dispatcher
from codeq.server.webhooks.notifier import Notifier
from codeq.server.webhooks.secrets import Secrets
from codeq.usecases.budget import is_short
from codeq.usecases.core import Core
from codeq.usecases.probe import probe

PROBE_EVERY_S = 1.0
"""/readyz needs no token and costs an fsync, so the disk is probed at most this often."""


@dataclass(slots=True)
class AppState:
    core: Core
    settings: Settings
    authenticator: Authenticator
    limiter: RateLimiter
    metrics: Metrics
    tracing: Tracing
    backups: Backups
    durability: DurabilityInForce
    jwks: bytes | None = None
    dispatcher: Dispatcher | None = None
    """Sends webhooks; None if this server does not."""
    notifier: Notifier | None = None
    """Tells subscribers that queues have tasks; None if this server does not."""
    is_stopping: bool = False
    spec: bytes = b""
    docs: bytes = b""
    webhook_secrets: Secrets = field(init=False)
    connections: TenantSlots = field(init=False)
    long_polls: TenantSlots = field(init=False)
    lease_watches: TenantSlots = field(init=False)
    """Apart from the other calls that wait, so that they take no place from claims."""
    page_reads: PageReads = field(default_factory=PageReads)
    uploads: Transfers = field(init=False)
    downloads: Transfers = field(init=False)
    scraper: Scraper = field(init=False)
    _probed_s: float = -PROBE_EVERY_S
    _probe_fault: str | None = None

    def __post_init__(self) -> None:
        self.webhook_secrets = self.settings.webhooks.secrets()
        limits = self.settings.limits.tenant
        self.connections = TenantSlots(limits.connections_max, limit="connections", what="connections")
        self.long_polls = TenantSlots(limits.long_polls_max, limit="long_polls", what="calls that wait")
        self.lease_watches = TenantSlots(limits.long_polls_max, limit="long_polls", what="calls that watch leases")
        files = self.settings.artifacts
        self.uploads = Transfers(files.uploads_max, limits.uploads_max, what="uploads")
        self.downloads = Transfers(files.downloads_max, limits.downloads_max, what="downloads")
        self.scraper = Scraper(self.metrics, self.core)

    def wait_ms(self, requested_ms: int) -> int:
        """Returns how long a call may wait: as requested, at most as configured, and 0 once the server stops."""
        return 0 if self.is_stopping else min(requested_ms, round(self.settings.http.wait_max_seconds * 1000))

    def takes_turns(self, tenant: str, items: int, size: int) -> bool:
        """Returns whether a batch of this size is a long call. If not, it counts as one that others must not delay."""
        if is_short(items, size):
            self.core.turns.note_short_call(tenant, perf_counter())
            return False
        return True

    async def not_ready_because(self) -> str | None:
        """Returns None if a write reaches the disk and tokens can be checked; else the reason."""
        if self.is_stopping:
            return "the server is stopping"
        loop_s = asyncio.get_running_loop().time()
        if loop_s - self._probed_s >= PROBE_EVERY_S:
            self._probed_s = loop_s
            self._probe_fault = await self._probe()
        if self._probe_fault is None and not self.authenticator.is_ready:
            return "the keys to check tokens with have not been fetched"
        return self._probe_fault

    async def _probe(self) -> str | None:
        try:
            await probe(self.core)
        except StoreError as fault:
            return f"{fault.code}: the store does not take writes"
        return None


_random = random.Random()


def request_id() -> str:
    return _random.getrandbits(128).to_bytes(16, "big").hex()
