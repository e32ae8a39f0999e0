"""Who a caller is and what it may do: the principal of a token, cached while the token is valid."""

import re
import time
from collections import OrderedDict
from enum import StrEnum

from msgspec import Struct

from codeq.domain import validation
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import WORKER_CHARS_MAX
from codeq.domain.queue import is_system
from codeq.server.auth.callers import CALLER, FailureLimit
from codeq.server.auth.claims import Claims, Validator
from codeq.wire.errors import Forbidden, Unauthenticated, Unavailable

WORKER_SCOPES = frozenset(f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe"))
PRODUCER_SCOPES = frozenset({"codeq:create", "codeq:cancel"})
"""What a producer's token may do if it has no scope of codeQ at all. With any, it may do what its scopes say."""
EVERY_COMMAND = "*"
_TENANT_CLAIMS = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What breaks a line of a log, or cannot be written at all."""
_NO_TENANT = "the token's tenant claims are missing, malformed or in conflict"

CACHE_TOKENS_MAX = 10_000
CACHE_BYTES_MAX = 16 << 20
"""Of tokens with their principals: a token has up to eight kilobytes, and its principal about as much."""
CACHE_S = 60.0


class TokenKind(StrEnum):
    """Which tokens a route accepts."""

    __hash__ = str.__hash__  # an enum's own is written in Python, and every request looks one up

    NONE = "none"
    PRODUCER = "producer"
    WORKER = "worker"
    ANY = "any"
    ADMIN = "admin"


class Principal(Struct, frozen=True, kw_only=True, gc=False):
    tenant: str = ""
    subject: str = ""
    scopes: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    """The token's `eventTypes`: the commands that a worker may access."""
    is_worker: bool = False
    is_admin: bool = False
    is_platform: bool = False
    """An admin of the platform, with access to every tenant."""

    def may_see(self, command: str) -> bool:
        """Returns whether tasks of this command may be shown. Those of the system are for admins."""
        if is_system(command):
            return self.is_admin
        return not self.is_worker or EVERY_COMMAND in self.commands or command in self.commands


class Authenticator:
    """Turns tokens into principals. They are cached for a minute at most, and never longer than the token is valid."""

    def __init__(
        self,
        producers: Validator,
        workers: Validator,
        *,
        producers_may_work: bool,
        failures: FailureLimit | None = None,
    ) -> None:
        self._producers = producers
        self._workers = workers
        self._producers_may_work = producers_may_work
        self._failures = failures or FailureLimit()
        self._verdicts: OrderedDict[tuple[TokenKind, str], tuple[Principal, float]] = OrderedDict()
        self._bytes = 0
        self._revision = 0

    async def start(self) -> None:
        await self._producers.start()
        if self._workers is not self._producers:
            await self._workers.start()

    async def close(self) -> None:
        await self._producers.close()
        if self._workers is not self._producers:
            await self._workers.close()

    @property
    def is_ready(self) -> bool:
        return self._producers.is_ready and self._workers.is_ready

    def cached(self, kind: TokenKind, token: str) -> Principal | None:
        """Returns the principal of the token, if it is cached and still valid."""
        revision = self._producers.revision
        if self._workers is not self._producers:
            revision += self._workers.revision
        if revision != self._revision:  # an issuer has withdrawn a key
            self._verdicts.clear()
            self._bytes = 0
            self._revision = revision
        known = self._verdicts.get((kind, token))
        return known[0] if known is not None and time.time() < known[1] else None

    async def authenticate(self, kind: TokenKind, token: str, *, caller: str = "") -> Principal:
        """Returns the principal of the token. `caller` is the address it came from, whose failures are limited."""
        cached = self.cached(kind, token)
        if cached is not None:
            return cached
        self._failures.check(caller)
        CALLER.set(caller)
        now_s = time.time()
        try:
            principal, expires_s = await self._judge(kind, token)
        except (Unauthenticated, Forbidden):
            self._failures.add(caller)
            raise
        until_s = min(now_s + CACHE_S, expires_s if expires_s is not None else now_s + CACHE_S)
        if self._verdicts.pop((kind, token), None) is None:
            self._bytes += _cost_bytes(token)
        self._verdicts[kind, token] = (principal, until_s)
        while len(self._verdicts) > CACHE_TOKENS_MAX or self._bytes > CACHE_BYTES_MAX:
            (_, oldest), _ = self._verdicts.popitem(last=False)
            self._bytes -= _cost_bytes(oldest)
        return principal

    async def _judge(self, kind: TokenKind, token: str) -> tuple[Principal, float | None]:
        if kind is TokenKind.WORKER:
            claims = await self._worker_claims(token)
            return principal_of(claims, is_worker=True), claims.expires_s
        if kind is TokenKind.ANY:
            claims, is_worker = await self._any_claims(token)
            return principal_of(claims, is_worker=is_worker), claims.expires_s
        claims = await self._producers.validate(token)
        principal = principal_of(claims, is_worker=False)
        if kind is TokenKind.ADMIN and not principal.is_admin:
            raise Forbidden("this is for admins: the token needs the scope codeq:admin")
        return principal, claims.expires_s

    async def _any_claims(self, token: str) -> tuple[Claims, bool]:
        """Returns the claims, and whether they are a worker's. While one issuer is down, the other's word is enough."""
        unknown: Unavailable | None = None
        try:
            claims = await self._workers.validate(token)
            if claims.event_types:
                return claims, True
        except Unavailable as fault:
            unknown = fault
        except Unauthenticated:
            pass
        try:
            claims = await self._producers.validate(token)
        except Unauthenticated:
            raise unknown or Unauthenticated("the token is not accepted") from None
        # The workers' issuer might have accepted it too: then it sees its own commands only.
        return claims, unknown is not None and bool(claims.event_types)

    async def _worker_claims(self, token: str) -> Claims:
        try:
            claims = await self._workers.validate(token)
        except Unauthenticated:
            if not self._producers_may_work:
                raise
            claims = await self._producers.validate(token)
            return Claims(
                subject=claims.subject,
                scopes=claims.scopes | WORKER_SCOPES,
                event_types=(EVERY_COMMAND,),
                expires_s=claims.expires_s,
                raw=claims.raw,
            )
        if not claims.event_types:
            raise Unauthenticated("a worker's token needs eventTypes")
        if not claims.scopes:
            raise Unauthenticated("a worker's token needs a scope")
        return claims


def _cost_bytes(token: str) -> int:
    """Returns about what a cached token takes, with its principal."""
    return 3 * len(token) + 1024


def principal_of(claims: Claims, *, is_worker: bool) -> Principal:
    if len(claims.subject) > WORKER_CHARS_MAX:
        raise Unauthenticated("the token is not accepted")
    tenant = tenant_of(claims)
    if _UNPRINTABLE.search(claims.subject):
        raise Unauthenticated("the token is not accepted")
    has_scopes = any(scope.startswith("codeq:") for scope in claims.scopes)
    role = claims.raw.get("role")
    is_admin = (
        "codeq:admin" in claims.scopes
        or claims.raw.get("admin") is True
        or (isinstance(role, str) and role.upper() == "ADMIN")
    )
    return Principal(
        tenant=tenant,
        subject=claims.subject,
        scopes=claims.scopes if is_worker or has_scopes else claims.scopes | PRODUCER_SCOPES,
        commands=frozenset(claims.event_types),
        is_worker=is_worker,
        is_admin=is_admin,
        is_platform="codeq:platform" in claims.scopes,
    )


def tenant_of(claims: Claims) -> str:
    """Returns the tenant that all tenant claims agree on; the subject if there is no such claim.

    A claim that is null or blank says nothing beside another, and is no reason to take the subject instead.
    """
    given = [claims.raw[name] for name in _TENANT_CLAIMS if name in claims.raw]
    tenants = [tenant for tenant in given if not _is_blank(tenant)] or given or [claims.subject]
    try:
        tenant = validation.tenant(tenants[0])
    except InvalidRequest:
        raise Forbidden(_NO_TENANT) from None
    if any(other != tenant for other in tenants):
        raise Forbidden(_NO_TENANT)
    return tenant


def _is_blank(claim: object) -> bool:
    return claim is None or (isinstance(claim, str) and not claim.strip())
