"""What an acknowledged write survives on the store of this server, as `/readyz`, the banner and the log say it."""

import logging
from collections.abc import Sequence

from codeq.server.logs import log
from codeq.server.settings import StoreSettings

_ON_ROCKSDB = {
    "fsync": "kill -9 of codeQ and power loss",
    "process": "kill -9 of codeQ; a power loss may take the last seconds",
}


class DurabilityInForce:
    def __init__(self, store: StoreSettings) -> None:
        self.engine = "redis" if store.url else "rocksdb"
        self.level = store.durability
        """In the words of the setting; of Redis, what its own settings come to."""
        self.survives = "" if store.url else _ON_ROCKSDB.get(store.durability, _ON_ROCKSDB["fsync"])
        """Empty until Redis has told its settings."""
        self.warnings: tuple[str, ...] = ()

    def told(self, level: str, survives: str, warnings: Sequence[str]) -> None:
        """Takes over and logs what the store tells at its opening, and whenever it has changed."""
        self.level, self.survives, self.warnings = level, survives, tuple(warnings)
        log(logging.INFO, f"an acknowledged write survives {survives}")
        for warning in warnings:
            log(logging.WARNING, warning)
