"""Whether the store takes writes, asked of the disk itself."""

from codeq.domain.queue import QueueKey
from codeq.usecases.core import Core

_NOBODY = QueueKey("", "")
"""No tenant and no command have an empty name, so deleting this policy changes nothing for anybody."""


async def probe(core: Core) -> None:
    """Writes something that changes nothing and forces it to disk. Raises the StoreError that a caller would get."""
    await core.store.set_policy(_NOBODY, None)
    await core.store.flush()
