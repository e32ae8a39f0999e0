"""Checks that the store accepts writes, by writing to the disk of every shard."""

from codeq.domain.queue import QueueKey
from codeq.usecases.core import Core

_NO_QUEUE = QueueKey("", "")
"""No tenant and no command have an empty name, so deleting this policy changes nothing."""


async def probe(core: Core) -> None:
    """Writes a change without effect and forces it to disk. Raises the StoreError that a caller would get."""
    await core.store.set_policy(_NO_QUEUE, None, replacing=None)
    await core.store.flush()
