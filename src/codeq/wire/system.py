"""Messages of every route: refusals, and the state of the server."""

from typing import Annotated

from msgspec import Meta

from codeq.wire.message import Request, WireStruct


class Health(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    status: str
    durability: str | None = None
    """In force: fsync, process or replicated; on Redis without persistence, none."""
    store: str | None = None
    """The engine: rocksdb or redis."""
    survives: str | None = None
    """What an acknowledged write survives."""
    warnings: tuple[str, ...] = ()
    """Settings of the store that may lose acknowledged tasks."""
    error: str | None = None


class Problem(WireStruct, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    """The body of every refusal."""

    error: str
    code: str
    field: str | None = None
    scope: str | None = None
    operation: str | None = None
    limit: str | None = None
    """The limit of the tenant that was reached: its setting below `limits.tenant`, without `_max`."""
    retry_after_seconds: int | None = None
    offset: int | None = None
    """Where an upload continues."""
    request_id: str | None = None


class BackUp(Request, frozen=True, kw_only=True, gc=False):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}\Z")]
    """Of the new directory below the server's `backup.path`."""


class Backup(WireStruct, frozen=True, kw_only=True, gc=False):
    name: str
    bytes: int
    seconds: float
    tasks: int
    """Tasks that wait, run or are dead when the copy begins."""
