"""Opens the place where artifacts are stored: a bucket, or a directory."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from codeq.server.settings import Settings
from codeq.store.data_dir import ARTIFACTS
from codeq.store.object_storage import DirectoryObjects, fault_of, open_objects, start_threads
from codeq.store.objects import Objects
from codeq.usecases.artifact_storage import ArtifactStorage, SharedBytes, TenantBytes

_OWNER = "artifacts-owner"


async def open_artifacts(settings: Settings) -> ArtifactStorage | None:
    """Returns None if there is no place for artifacts: servers that share a Redis share no directory by themselves."""
    wanted, data = settings.artifacts, Path(settings.store.path)
    limits = wanted.limits(settings.limits.tenant.artifact_bytes_max)
    objects: Objects
    owner = None
    if wanted.url:
        objects = open_objects(wanted.url)
        await start_threads()
        owner = _owner(settings)
    elif settings.store.url:
        return None
    else:
        objects = DirectoryObjects(data / ARTIFACTS)
    return ArtifactStorage(objects, limits, wanted.sweep_interval_seconds, owner=owner, usage=_usage(settings))


def _usage(settings: Settings) -> SharedBytes:
    if not settings.store.url:
        return TenantBytes()
    from codeq.store.redis.artifact_bytes import RedisArtifactBytes  # noqa: PLC0415 - needs the extra `redis`

    return RedisArtifactBytes(settings.store.url, settings.store.prefix)


def _owner(settings: Settings) -> Callable[[], Awaitable[str]]:
    """Returns what finds out the name under which this installation owns its artifacts."""
    if settings.store.url:
        from codeq.store.redis.artifact_owner import agree_on_owner  # noqa: PLC0415 - needs the extra `redis`

        return partial(agree_on_owner, settings.store.url, settings.store.prefix, lambda: uuid4().hex)
    return partial(_owner_of, Path(settings.store.path))


async def _owner_of(data: Path) -> str:
    file = data / _OWNER
    try:
        if not file.exists():
            file.write_text(uuid4().hex)
        return file.read_text()
    except OSError as fault:
        raise fault_of(str(fault)) from None
