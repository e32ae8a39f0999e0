"""Errors of the HTTP edge, the HTTP status of each error of codeQ, and the error of each code.

EdgeError
├── Unauthenticated   401 unauthenticated     no token, or one that is not accepted
├── Forbidden         403 forbidden           the token does not allow this
├── NoRoute           404 not-found           there is nothing at this path
├── WrongMethod       405 method-not-allowed  the path is right, the method is not
├── TooSlow           408 timeout             the request did not arrive in time
├── Conflict          409 conflict            what is asked for exists already, or is under way
├── TooLarge          413 too-large           a body, a header or an address is over its limit
├── WrongMedia        415 unsupported-media   the body is neither JSON nor MessagePack
├── RateLimited       429 rate-limited        more calls than this token or tenant is allowed
├── Unavailable       503 unavailable         no keys to check tokens with, or too many large bodies at once
├── Unreachable           unreachable         seen by a client: no connection, or no answer in time
└── Unexpected            unexpected          seen by a client: an answer it does not know; has the code it came with
"""

from codeq.domain import errors as domain
from codeq.domain.errors import CodeqError


class EdgeError(CodeqError):
    pass


class Unauthenticated(EdgeError):
    code = "unauthenticated"


class Forbidden(EdgeError):
    code = "forbidden"


class NoRoute(EdgeError):
    code = "not-found"


class WrongMethod(EdgeError):
    code = "method-not-allowed"


class TooSlow(EdgeError):
    code = "timeout"


class Conflict(EdgeError):
    code = "conflict"


class TooLarge(EdgeError):
    code = "too-large"


class WrongMedia(EdgeError):
    code = "unsupported-media"


class RateLimited(EdgeError):
    code = "rate-limited"

    def __init__(self, message: str, *, scope: str = "", operation: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.scope = scope
        self.operation = operation
        self.retry_after_s = retry_after_s


class Unavailable(EdgeError):
    code = "unavailable"


class Unreachable(EdgeError):
    code = "unreachable"


class Unexpected(EdgeError):
    code = "unexpected"

    def __init__(self, message: str, code: str = "unexpected") -> None:
        super().__init__(message)
        self.code = code


STATUS: dict[type[CodeqError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NoRoute: 404,
    WrongMethod: 405,
    TooSlow: 408,
    Conflict: 409,
    TooLarge: 413,
    WrongMedia: 415,
    RateLimited: 429,
    Unavailable: 503,
    domain.InvalidRequest: 400,
    domain.IdempotencyMismatch: 422,
    domain.WebhookRefused: 400,
    domain.ArtifactTooLarge: 413,
    domain.DigestMismatch: 400,
    domain.NotFound: 404,
    domain.QuotaExceeded: 429,
    domain.NotOwner: 403,
    domain.NotInProgress: 409,
    domain.Cancelled: 409,
    domain.NotDead: 409,
    domain.AlreadyFinal: 409,
    domain.NotFinal: 409,
    domain.StaleTask: 409,
    domain.UploadOffset: 409,
    domain.PolicyChanged: 412,
    domain.StoreBusy: 503,
    domain.StoreFull: 507,
    domain.StoreUnavailable: 503,
    domain.StoreFailed: 503,
    domain.StoreClosed: 503,
    domain.StoreLocked: 503,
    domain.StoreCorrupt: 503,
    domain.StoreMismatch: 503,
}


def status_of(fault: CodeqError) -> int:
    for kind in type(fault).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


_KINDS: list[type[CodeqError]] = [Unreachable, *STATUS]
_BY_CODE = {kind.code: kind for kind in _KINDS}
"""Where two errors share a code, the later one in the table: that of the domain."""


def error_of(code: str, message: str) -> CodeqError:
    """Returns the error that was sent as this code."""
    kind = _BY_CODE.get(code)
    return kind(message) if kind is not None else Unexpected(message, code or "unexpected")
