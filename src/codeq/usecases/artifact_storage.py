"""Where artifacts are stored, how much each tenant has there, and what is known of uploads under way."""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from codeq.domain.artifacts import Artifact, ArtifactLimits
from codeq.domain.errors import ArtifactTooLarge, QuotaExceeded
from codeq.domain.limits import ARTIFACT_PART_BYTES, TASK_ARTIFACTS_MAX
from codeq.domain.task import Move, Task
from codeq.store.interface import Listener
from codeq.store.objects import Objects

if TYPE_CHECKING:
    from hashlib import _Hash

_has_artifacts = attrgetter("artifacts")

TENANTS_MAX = 100_000
"""Tenants whose bytes are known, about 200 bytes each; of more, those that uploaded last."""
DELIVERIES_MAX = 256
"""Deliveries whose uploads are remembered, up to 80 KB each. What is forgotten is read from the object store."""
DELIVERY_PARTS_MAX = 10_000
"""Parts of one delivery where bytes are not limited."""
OBJECTS_PER_FILE = 4
"""Objects of one delivery for each file that a task may have, besides what its bytes need: a last part and a record,
and both again. Files of a byte would not be noticed by limits on bytes."""
PURGED_MAX = 10_000
"""Purged tasks whose files wait to be deleted."""
RETRY_AFTER_S = 30
"""For a tenant with as many bytes as it may have: there will be fewer when tasks are purged."""


class SharedBytes(Protocol):
    """Bytes of artifacts by tenant, counted for all processes that share a store."""

    async def add(self, tenant: str, size: int, most: int) -> tuple[bool, int]:
        """Adds bytes (or removes them, if `size` is less than 0) unless that makes more than `most`; 0 for no limit.
        Returns whether it did, and how many there were before."""

    async def of(self, tenant: str) -> int: ...

    async def all(self) -> dict[str, int]: ...

    async def close(self) -> None: ...


class TenantBytes:
    """Implements `SharedBytes` for one process: what the last walk over all objects found, and was stored since."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, int] = OrderedDict()

    async def add(self, tenant: str, size: int, most: int) -> tuple[bool, int]:
        before = self._bytes.get(tenant, 0)
        after = max(0, before + size)
        if most and before < after > most:
            return False, before
        self._bytes[tenant] = after
        self._bytes.move_to_end(tenant)
        if len(self._bytes) > TENANTS_MAX:
            self._bytes.popitem(last=False)
        return True, before

    async def of(self, tenant: str) -> int:
        return self._bytes.get(tenant, 0)

    async def all(self) -> dict[str, int]:
        return dict(self._bytes)

    async def close(self) -> None:
        pass


@dataclass(slots=True)
class UploadProgress:
    """How far the upload of one artifact is: its whole parts, all of the same size."""

    digests: bytearray = field(default_factory=bytearray)
    """SHA-256 of each part, one behind the other."""
    hasher: "_Hash | None" = None
    """Of all parts so far; None if some of them were stored before this process knew of the upload."""
    complete: Artifact | None = None
    is_active: bool = False
    """A call is writing parts."""

    @property
    def offset(self) -> int:
        return self.complete.size if self.complete else len(self.digests) // 32 * ARTIFACT_PART_BYTES

    def part_digests(self) -> list[str]:
        return [self.digests[start : start + 32].hex() for start in range(0, len(self.digests), 32)]


@dataclass(slots=True)
class DeliveryUploads:
    """What one delivery of a task has uploaded."""

    bytes: int = 0
    objects: int = 0
    by_name: dict[str, UploadProgress] = field(default_factory=dict)
    """By the hash of the name."""

    def has_room(self, name_hash: str, limits: ArtifactLimits) -> bool:
        """Returns whether a file of this name may be uploaded: a task has so many at most."""
        names = limits.task_artifacts
        return not names or name_hash in self.by_name or len(self.by_name) < names

    def add(self, size: int, limits: ArtifactLimits) -> None:
        if limits.task_bytes and self.bytes + size > limits.task_bytes:
            raise ArtifactTooLarge(f"the artifacts of a task have at most {limits.task_bytes} bytes together")
        parts = limits.task_bytes // ARTIFACT_PART_BYTES if limits.task_bytes else DELIVERY_PARTS_MAX
        most = parts + OBJECTS_PER_FILE * (limits.task_artifacts or TASK_ARTIFACTS_MAX)
        if self.objects >= most:
            raise ArtifactTooLarge(
                f"a worker uploads at most {most} parts and files for one task, earlier uploads of a name among them; "
                "delete some of them"
            )
        self.bytes += size
        self.objects += 1


@dataclass(slots=True)
class ArtifactCounts:
    """What happened since the process began, for metrics."""

    uploads: int = 0
    uploaded_bytes: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    deleted_objects: int = 0
    objects: int = 0
    """Found by the last walk over all of them."""
    bytes: int = 0


@dataclass(eq=False)
class ArtifactStorage(Listener):
    objects: Objects
    limits: ArtifactLimits = field(default_factory=ArtifactLimits)
    sweep_every_s: float = 600.0
    owner: Callable[[], Awaitable[str]] | None = None
    """Returns the name of the installation, where others may use the same place; None if nobody else does."""
    usage: SharedBytes = field(default_factory=TenantBytes)
    """What tenants have stored: also by other processes, if these share what they count."""
    counts: ArtifactCounts = field(default_factory=ArtifactCounts)
    deliveries: OrderedDict[tuple[str, int], DeliveryUploads] = field(default_factory=OrderedDict)
    """By task id and lease token; the one used last is the last."""
    purged: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=PURGED_MAX))
    """Tenant and id of tasks that are gone, whose files are to be deleted. The walk over all objects finds the rest."""

    async def reserve(self, tenant: str, size: int) -> None:
        """Counts bytes about to be stored, or raises QuotaExceeded."""
        most = self.limits.tenant_bytes
        is_added, held = await self.usage.add(tenant, size, most)
        if not is_added:
            raise QuotaExceeded(
                f"the tenant has stored {held} bytes of artifacts, and may store {most}",
                limit="artifact_bytes",
                retry_after_s=RETRY_AFTER_S,
            )

    async def release(self, tenant: str, size: int) -> None:
        """Counts bytes that were deleted, or not stored after all."""
        await self.usage.add(tenant, -size, 0)

    def moved(self, tasks: Sequence[Task]) -> None:
        for task in filter(_has_artifacts, tasks):  # which few have
            if task.move is Move.PURGE:
                self.purged.append((task.tenant, task.id))

    def remember(self, task_id: str, token: int, uploads: DeliveryUploads) -> None:
        self.deliveries[task_id, token] = uploads
        self.deliveries.move_to_end((task_id, token))
        if len(self.deliveries) > DELIVERIES_MAX:
            self.deliveries.popitem(last=False)

    def forget(self, task_id: str, token: int) -> None:
        self.deliveries.pop((task_id, token), None)
