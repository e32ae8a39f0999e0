"""Everything a handler may use: the core, the settings, and the parts of the running service."""

import asyncio
import random
from dataclasses import dataclass

from codeq.domain.errors import StoreError
from codeq.server.auth.principal import Authenticator
from codeq.server.metrics import Metrics
from codeq.server.ratelimit import RateLimiter
from codeq.server.settings import Settings
from codeq.server.tracing import Tracing
from codeq.usecases.core import Core
from codeq.usecases.probe import probe

PROBE_EVERY_S = 1.0
"""/readyz is open to everyone and costs an fsync, so the disk is probed at most this often."""


@dataclass(slots=True)
class AppState:
    core: Core
    settings: Settings
    authenticator: Authenticator
    limiter: RateLimiter
    metrics: Metrics
    tracing: Tracing
    jwks: bytes | None = None
    is_stopping: bool = False
    spec: bytes = b""
    docs: bytes = b""
    _probed_s: float = -PROBE_EVERY_S
    _probe_fault: str | None = None

    def wait_ms(self, asked_ms: int) -> int:
        """How long a call may wait: as asked, as long as the settings allow, and not at all once the server stops."""
        return 0 if self.is_stopping else min(asked_ms, round(self.settings.http.wait_max_seconds * 1000))

    async def not_ready_because(self) -> str | None:
        """None if a write reaches the disk and tokens can be checked; else the reason."""
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
    return f"{_random.getrandbits(128):032x}"
