"""Messages of every route: refusals, and the state of the server."""

from codeq.wire.message import Wire


class Health(Wire, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    status: str
    durability: str | None = None
    error: str | None = None


class Problem(Wire, omit_defaults=True, frozen=True, kw_only=True, gc=False):
    """The body of every refusal."""

    error: str
    code: str
    field: str | None = None
    scope: str | None = None
    operation: str | None = None
    retry_after_seconds: int | None = None
    request_id: str | None = None
