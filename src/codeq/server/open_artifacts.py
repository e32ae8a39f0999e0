"""Opens the place where artifacts are stored: a bucket, or a directory."""

from functools import partial
from pathlib import Path
from uuid import uuid4

from codeq.server.settings import Settings
from codeq.store.data_dir import ARTIFACTS
from codeq.store.object_storage import DirectoryObjects, open_objects
from codeq.store.objects import Objects
from codeq.usecases.artifact_storage import ArtifactStorage, SharedBytes, TenantBytes

_OWNER = "artifacts-owner"


def open_artifacts(settings: Settings) -> ArtifactStorage | None:
    """Returns None if there is no place for artifacts: servers that share a Redis share no directory by themselves."""
    wanted, data = settings.artifacts, Path(settings.store.path)
    limits = wanted.limits(settings.limits.tenant.artifact_bytes_max)
    objects: Objects
    owner = None
    if wanted.url:
        objects = open_objects(wanted.url)
        owner = partial(_owner, settings)
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


async def _owner(settings: Settings) -> str:
    """Returns the name under which this installation owns its artifacts."""
    if settings.store.url:
        from codeq.store.redis.artifact_owner import agree_on_owner  # noqa: PLC0415 - needs the extra `redis`

        return await agree_on_owner(settings.store.url, settings.store.prefix, uuid4().hex)
    file = Path(settings.store.path) / _OWNER
    if not file.exists():
        file.write_text(uuid4().hex)
    return file.read_text()
