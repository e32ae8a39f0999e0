"""How the service is configured: one frozen value, with a default and a description for every setting."""

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Struct

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.limits import (
    BATCH_BYTES_MAX,
    BATCH_TASKS_MAX,
    INSPECT_TASKS_MAX,
    PROMOTE_TASKS_MAX,
    TENANT_ARTIFACT_BYTES_MAX,
    TENANT_PAYLOAD_BYTES_MAX,
)
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.domain.tenants import TenantLimits
from codeq.server.artifact_settings import ArtifactSettings
from codeq.server.auth.claims import provider_name
from codeq.server.described import described
from codeq.server.ratelimit import Rate
from codeq.server.webhooks.settings import WebhookSettings
from codeq.usecases.core import Sweeping


class HttpSettings(Struct, frozen=True, kw_only=True):
    host: Annotated[str, described("Address to listen on. 0.0.0.0 for all.", min_length=1)] = "127.0.0.1"
    port: Annotated[int, described("Port to listen on; 0 picks a free one.", ge=0, le=65_535)] = 8080
    connections_max: Annotated[
        int,
        described(
            "Connections held at once; more are refused. Lowered to what the limit on open files allows.",
            ge=1,
            le=1_000_000,
        ),
    ] = 20_000
    connections_per_address_max: Annotated[
        int,
        described(
            "Connections that one address (IPv6: one /64) may hold; 0 for a quarter of all, and 64 at least. Behind a "
            "proxy all clients have its address: set it to `connections_max`.",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    header_timeout_seconds: Annotated[float, described("How long a request's headers may take.", gt=0, le=600)] = 5.0
    body_timeout_seconds: Annotated[float, described("How long a request's body may take.", gt=0, le=600)] = 30.0
    idle_timeout_seconds: Annotated[
        float,
        described(
            "How long a connection may idle between requests. In each such time 64 KB of an answer must be read.",
            gt=0,
            le=86_400,
        ),
    ] = 65.0
    bodies_bytes_max: Annotated[
        int,
        described("Bytes of all request bodies over 64 KB that are held at once; 503 past it.", ge=2 * BATCH_BYTES_MAX),
    ] = 256 << 20
    tenant_bodies_bytes_max: Annotated[int, described("The same for one tenant.", ge=2 * BATCH_BYTES_MAX)] = 128 << 20
    answers_bytes_max: Annotated[
        int,
        described(
            "Bytes of all answers over 256 KB that clients have not read yet; 503 past it.", ge=2 * BATCH_BYTES_MAX
        ),
    ] = 512 << 20
    tenant_answers_bytes_max: Annotated[int, described("The same for one tenant.", ge=2 * BATCH_BYTES_MAX)] = 128 << 20
    wait_max_seconds: Annotated[
        float, described("Longest long poll; claims wait 30 s at most all the same.", ge=0, le=60)
    ] = 60.0
    trusted_proxies: Annotated[
        str,
        described(
            "Networks of proxies whose X-Forwarded-For says who calls, comma separated, such as 127.0.0.1, ::1; it is "
            "used to limit failed tokens. Empty: ignored."
        ),
    ] = ""
    shutdown_seconds: Annotated[float, described("How long calls under way may take at shutdown.", gt=0, le=600)] = 10.0


class IdempotencyFilterSettings(Struct, frozen=True, kw_only=True):
    items: Annotated[
        int, described("Idempotency keys that a period of the filter holds. 0: no filter.", ge=0, le=1_000_000_000)
    ] = 1_000_000
    error_rate: Annotated[float, described("Share of false positives; each costs a read.", gt=0, lt=1)] = 0.01
    seconds: Annotated[float, described("How long a period is.", gt=0, le=604_800)] = 1800.0


class GhostFilterSettings(Struct, frozen=True, kw_only=True):
    items: Annotated[
        int,
        described(
            "Tasks cancelled while pending that a period of the filter holds. 0: no filter.", ge=0, le=1_000_000_000
        ),
    ] = 2_000_000
    error_rate: Annotated[float, described("Share of false positives; each costs a read.", gt=0, lt=1)] = 1e-12
    seconds: Annotated[float, described("How long a period is.", gt=0, le=604_800)] = 21_600.0


class CleanupFilterSettings(Struct, frozen=True, kw_only=True):
    items: Annotated[
        int, described("Purged tasks that a period of the filter holds. 0: no filter.", ge=0, le=1_000_000_000)
    ] = 2_000_000
    error_rate: Annotated[float, described("Share of false positives; each costs a read.", gt=0, lt=1)] = 0.01
    seconds: Annotated[float, described("How long a period is.", gt=0, le=604_800)] = 21_600.0


class FilterSettings(Struct, frozen=True, kw_only=True):
    """Bloom filters of a server on Redis: each remembers for one to two periods."""

    idempotency: IdempotencyFilterSettings = IdempotencyFilterSettings()
    ghost: GhostFilterSettings = GhostFilterSettings()
    cleanup: CleanupFilterSettings = CleanupFilterSettings()


class StoreSettings(Struct, frozen=True, kw_only=True):
    path: Annotated[str, described("Data directory.", min_length=1)] = "./data"
    url: Annotated[
        str,
        described(
            "Stores tasks in Redis instead: redis://, rediss:// (TLS), redis+cluster:// or redis+sentinel://. Any "
            "number of servers may share one. Empty: RocksDB in `path`."
        ),
    ] = ""
    prefix: Annotated[
        str, described("Begins every key in Redis; keeps installations apart.", pattern=r"^[A-Za-z0-9_-]{1,32}\Z")
    ] = "codeq"
    shards: Annotated[int, described("Shards of a new store; an existing one keeps its own.", ge=1, le=4096)] = 1
    durability: Annotated[
        str,
        described(
            "fsync: an acknowledged call survives power loss. process: it survives kill -9. With Redis, its own "
            "settings decide, and `replicated` waits for replicas besides.",
            pattern=r"^(fsync|process|replicated)\Z",
        ),
    ] = "fsync"
    replicas: Annotated[int, described("How many replicas must have a write with `replicated`.", ge=1, le=16)] = 1
    replicas_timeout_seconds: Annotated[
        float, described("How long they may take; then the answer is 503, and the outcome unknown.", gt=0, le=60)
    ] = 1.0
    strict: Annotated[
        bool, described("Refuse a Redis whose settings may lose acknowledged tasks, instead of a warning.")
    ] = False
    filters: FilterSettings = FilterSettings()


class BackupSettings(Struct, frozen=True, kw_only=True):
    path: Annotated[
        str, described("Directory for backups of the running server, best on the data's file system; empty: none.")
    ] = ""


class ProviderSettings(Struct, frozen=True, kw_only=True):
    provider: Annotated[
        str, described("jwks (the default where `config` names a key set), static, multi, or a plugin.")
    ] = ""
    config: Annotated[dict[str, Any], described("What the provider needs (JSON in the environment).")] = {}

    @property
    def name(self) -> str:
        return provider_name(self.provider, self.config)


class AuthSettings(Struct, frozen=True, kw_only=True):
    producer: ProviderSettings = ProviderSettings()
    worker: ProviderSettings = ProviderSettings()
    producers_may_work: Annotated[bool, described("Accept a producer's token on worker routes, for every command.")] = (
        False
    )
    failures_per_minute: Annotated[
        int, described("Tokens of one address that may fail per minute before it gets 429; 0 for no limit.", ge=0)
    ] = 3000


class LeaseSettings(Struct, frozen=True, kw_only=True):
    default_seconds: Annotated[float, described("Lease of a claim that names none.", ge=0.1, le=43_200)] = 300.0
    grace_seconds: Annotated[float, described("What every lease has left at least after a restart.", ge=0, le=3600)] = (
        10.0
    )
    on_expiry: Annotated[
        str, described("backoff: as a nack. immediate: at once.", pattern=r"^(backoff|immediate)\Z")
    ] = "backoff"


class SweepSettings(Struct, frozen=True, kw_only=True):
    inspect_limit: Annotated[
        int, described("Due tasks, and expired leases, of its own commands that a claim moves first.", ge=1, le=10_000)
    ] = INSPECT_TASKS_MAX
    promote_limit: Annotated[
        int, described("Due tasks that are promoted at once in the background.", ge=1, le=10_000)
    ] = PROMOTE_TASKS_MAX
    promote_interval_seconds: Annotated[
        float, described("How often due tasks are promoted in the background.", ge=0.01, le=60)
    ] = 0.1

    def sweeping(self) -> Sweeping:
        return Sweeping(
            inspect_limit=self.inspect_limit,
            promote_limit=self.promote_limit,
            promote_every_s=self.promote_interval_seconds,
        )


class RetrySettings(Struct, frozen=True, kw_only=True):
    max_attempts: Annotated[int, described("Failed deliveries before a task is dead.", ge=1, le=100)] = 5
    max_deliveries: Annotated[int, described("Deliveries of any kind before a task is dead.", ge=1, le=10_000)] = 100
    backoff_policy: Annotated[str, described("fixed, linear, exponential, exp_equal_jitter or exp_full_jitter.")] = (
        "exp_full_jitter"
    )
    backoff_base_seconds: Annotated[float, described("First delay.", ge=0, le=86_400)] = 5.0
    backoff_max_seconds: Annotated[float, described("Longest delay.", ge=0, le=86_400)] = 900.0


class RetentionSettings(Struct, frozen=True, kw_only=True):
    seconds: Annotated[int, described("How long ended tasks are kept.", ge=0, le=31_622_400)] = 86_400
    dead_seconds: Annotated[int, described("How long dead tasks are kept.", ge=0, le=31_622_400)] = 86_400
    events_seconds: Annotated[int, described("How long events are kept.", ge=60)] = 604_800
    events_max: Annotated[int, described("How many events a shard keeps at most.", ge=1000)] = 100_000_000


class IdempotencySettings(Struct, frozen=True, kw_only=True):
    strict: Annotated[
        bool, described("Refuse a repeated key with another command or payload (422) instead of returning its task.")
    ] = False


class RateLimits(Struct, frozen=True, kw_only=True):
    """`ratelimit.SCOPES`, per subject of a token and per tenant. Both numbers above 0 switch a limit on."""

    producer: Rate = Rate()
    worker: Rate = Rate()
    lease: Rate = Rate()
    admin: Rate = Rate()
    read: Rate = Rate()
    tenant_producer: Rate = Rate()
    tenant_worker: Rate = Rate()
    tenant_lease: Rate = Rate()
    tenant_admin: Rate = Rate()
    tenant_read: Rate = Rate()

    def faults(self) -> Iterator[str]:
        """Yields why limits cannot be used: workers could never submit a batch of results larger than the burst."""
        for name in ("lease", "tenant_lease"):
            rate = getattr(self, name)
            if rate.is_on and rate.burst_size < BATCH_TASKS_MAX:
                yield f"rate_limit.{name}.burst_size: at least {BATCH_TASKS_MAX}, the results of one batch"


class TenantLimitSettings(Struct, frozen=True, kw_only=True):
    """Each number is far above what a tenant in its right mind needs, and what a server can hold for many of them."""

    connections_max: Annotated[int, described("Connections of a tenant at once; 0 for no limit.", ge=0)] = 5_000
    long_polls_max: Annotated[int, described("Calls of a tenant that wait at once; 0 for no limit.", ge=0)] = 2_000
    queues_max: Annotated[
        int, described("Queues in which a tenant has tasks; each takes memory. 0 for no limit.", ge=0)
    ] = 10_000
    policies_max: Annotated[int, described("Policies of a tenant; 0 for no limit.", ge=0)] = 1_000
    tasks_max: Annotated[
        int, described("Tasks of a tenant that have not ended: pending, delayed, in progress. 0 for no limit.", ge=0)
    ] = 10_000_000
    payload_bytes_max: Annotated[
        int, described("Payload bytes of a tenant's tasks, until they are purged; 0 for no limit.", ge=0)
    ] = TENANT_PAYLOAD_BYTES_MAX
    artifact_bytes_max: Annotated[
        int,
        described(
            "Bytes of a tenant's artifacts; 0 for no limit. Servers that share a Redis count them there.",
            ge=0,
        ),
    ] = TENANT_ARTIFACT_BYTES_MAX
    uploads_max: Annotated[int, described("Uploads of a tenant at once; 0 for no limit.", ge=0)] = 8
    downloads_max: Annotated[int, described("Downloads of a tenant at once; 0 for no limit.", ge=0)] = 32


class LimitSettings(Struct, frozen=True, kw_only=True):
    tenant: TenantLimitSettings = TenantLimitSettings()


class MetricsSettings(Struct, frozen=True, kw_only=True):
    host: Annotated[str, described("Address on which to serve /metrics alone. Empty: with everything else.")] = ""
    port: Annotated[int, described("Port of that address; 0 picks a free one.", ge=0, le=65_535)] = 9464
    token: Annotated[
        str,
        described(
            "Bearer token that /metrics asks for, at least 16 characters. Empty: none.",
            pattern=r"^(?:[!-~]{16,256})?\Z",
        ),
    ] = ""
    queues_max: Annotated[
        int, described("Queues with metrics of their own, the busiest; the rest is summed as `other`.", ge=1, le=5000)
    ] = 1000


class TracingSettings(Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, described("Send spans.")] = False
    service_name: Annotated[str, described("Name of this service in traces.")] = "codeq"
    endpoint: Annotated[str, described("OTLP gRPC collector.")] = "http://localhost:4317"
    insecure: Annotated[bool, described("Without TLS.")] = True
    sample_ratio: Annotated[float, described("Share of new traces that are kept.", ge=0, le=1)] = 1.0


class LogSettings(Struct, frozen=True, kw_only=True):
    level: Annotated[str, described("debug, info, warning or error.", pattern=r"^(debug|info|warning|error)\Z")] = (
        "info"
    )
    format: Annotated[str, described("json or text.", pattern=r"^(json|text)\Z")] = "json"
    access: Annotated[
        str, described("Which requests to log: none, errors or all.", pattern=r"^(none|errors|all)\Z")
    ] = "errors"


class Settings(Struct, frozen=True, kw_only=True):
    http: HttpSettings = HttpSettings()
    store: StoreSettings = StoreSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    backup: BackupSettings = BackupSettings()
    auth: AuthSettings = AuthSettings()
    leases: LeaseSettings = LeaseSettings()
    sweep: SweepSettings = SweepSettings()
    retry: RetrySettings = RetrySettings()
    retention: RetentionSettings = RetentionSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    rate_limit: RateLimits = RateLimits()
    limits: LimitSettings = LimitSettings()
    webhooks: WebhookSettings = WebhookSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    log: LogSettings = LogSettings()

    def policy(self) -> QueuePolicy:
        """Returns the policy of queues without one of their own."""
        return QueuePolicy(
            max_attempts=self.retry.max_attempts,
            max_deliveries=self.retry.max_deliveries,
            lease_ms=round(self.leases.default_seconds * 1000),
            backoff=Backoff(
                BackoffKind(self.retry.backoff_policy),
                round(self.retry.backoff_base_seconds * 1000),
                round(self.retry.backoff_max_seconds * 1000),
            ),
            on_expiry=OnExpiry(self.leases.on_expiry),
            retention_ms=self.retention.seconds * 1000,
            dead_retention_ms=self.retention.dead_seconds * 1000,
        )

    def tenant_limits(self) -> TenantLimits:
        wanted = self.limits.tenant
        return TenantLimits(
            tasks=wanted.tasks_max,
            payload_bytes=wanted.payload_bytes_max,
            queues=wanted.queues_max,
            policies=wanted.policies_max,
        )
