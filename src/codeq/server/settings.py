"""How the service is set up: one frozen value, made of defaults, a YAML file, the environment and flags."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta, Struct

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.domain.queue import OnExpiry, QueuePolicy
from codeq.server.ratelimit import Rate


def described(description: str, **bounds: Any) -> Meta:
    return Meta(description=description, **bounds)


class HttpSettings(Struct, frozen=True, kw_only=True):
    host: Annotated[str, described("Address to listen on. 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, described("Port to listen on; 0 picks a free one.", ge=0, le=65_535)] = 8080
    connections_max: Annotated[int, described("Connections held at once; more are refused.", ge=1, le=1_000_000)] = (
        20_000
    )
    header_timeout_seconds: Annotated[float, described("How long a request's headers may take.", gt=0, le=600)] = 5.0
    body_timeout_seconds: Annotated[float, described("How long a request's body may take.", gt=0, le=600)] = 30.0
    idle_timeout_seconds: Annotated[float, described("How long a connection may idle between requests.", gt=0)] = 65.0
    wait_max_seconds: Annotated[
        float, described("Longest long poll; claims wait 30 s at most all the same.", ge=0, le=60)
    ] = 60.0
    shutdown_seconds: Annotated[float, described("How long calls under way may take at shutdown.", gt=0, le=600)] = 10.0


class StoreSettings(Struct, frozen=True, kw_only=True):
    path: Annotated[str, described("Data directory.")] = "./data"
    shards: Annotated[
        int, described("Shards of a new data directory; an existing one keeps its own.", ge=1, le=4096)
    ] = 1
    durability: Annotated[
        str,
        described(
            "fsync: an acknowledged call survives power loss. process: it survives kill -9.",
            pattern=r"^(fsync|process)\Z",
        ),
    ] = "fsync"


class ProviderSettings(Struct, frozen=True, kw_only=True):
    provider: Annotated[str, described("jwks, static, multi, or the name of a plugin.")] = ""
    config: Annotated[dict[str, Any], described("What the provider needs (JSON in the environment).")] = {}


class AuthSettings(Struct, frozen=True, kw_only=True):
    producer: ProviderSettings = ProviderSettings()
    worker: ProviderSettings = ProviderSettings()
    producers_may_work: Annotated[bool, described("Accept a producer's token on worker routes, for every command.")] = (
        False
    )


class LeaseSettings(Struct, frozen=True, kw_only=True):
    default_seconds: Annotated[float, described("Lease of a claim that names none.", ge=0.1, le=43_200)] = 300.0
    grace_seconds: Annotated[float, described("What every lease has left at least after a restart.", ge=0, le=3600)] = (
        10.0
    )
    on_expiry: Annotated[
        str, described("backoff: as a nack. immediate: at once.", pattern=r"^(backoff|immediate)\Z")
    ] = "backoff"


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


class RateLimits(Struct, frozen=True, kw_only=True):
    """Per bearer token; `tenant_*` per tenant. Both numbers above 0 switch a limit on. A batch costs one per item."""

    producer: Rate = Rate()
    worker: Rate = Rate()
    admin: Rate = Rate()
    tenant_producer: Rate = Rate()
    tenant_worker: Rate = Rate()


class TracingSettings(Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, described("Send spans.")] = False
    service_name: Annotated[str, described("Name of this service in traces.")] = "codeq"
    endpoint: Annotated[str, described("OTLP gRPC collector.")] = "http://localhost:4317"
    insecure: Annotated[bool, described("Without TLS.")] = True
    sample_ratio: Annotated[float, described("Share of new traces that are kept.", gt=0, le=1)] = 1.0


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
    auth: AuthSettings = AuthSettings()
    leases: LeaseSettings = LeaseSettings()
    retry: RetrySettings = RetrySettings()
    retention: RetentionSettings = RetentionSettings()
    rate_limit: RateLimits = RateLimits()
    tracing: TracingSettings = TracingSettings()
    log: LogSettings = LogSettings()

    def policy(self) -> QueuePolicy:
        """What holds for queues without a policy of their own."""
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


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings. Raises InvalidRequest that lists everything that is wrong, not only the first."""
    faults: list[str] = []
    given = _from_file(file, faults)
    known = dict(leaves(Settings))
    for name, text in environ.items():
        if name.startswith("CODEQ_"):
            path = next((path for path in known if variable(path) == name), None)
            if path is not None:
                _put(given, path, text)
            elif name not in _OTHER_VARIABLES:
                faults.append(f"{name}: there is no such setting")
    for path, value in (flags or {}).items():
        if value is not None:
            _put(given, path, value)
    settings = _build(Settings, given, "", faults)
    if settings is not None and settings.retry.backoff_policy not in list(BackoffKind):
        faults.append(f"retry.backoff_policy: {settings.retry.backoff_policy!r} is none of {', '.join(BackoffKind)}")
    if faults or settings is None:
        raise InvalidRequest("the settings are not usable:\n  " + "\n  ".join(faults))
    return settings  # type: ignore[no-any-return]


_OTHER_VARIABLES = frozenset({"CODEQ_CONFIG", "CODEQ_URL", "CODEQ_TOKEN", "CODEQ_PROFILE", "CODEQ_LOCKSTEP"})


def leaves(kind: type[Struct], prefix: str = "") -> Iterator[tuple[str, msgspec.inspect.Field]]:
    """Every setting that is not a group of settings, by its dotted name."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - for the type checker
    hints = get_type_hints(kind)
    for field in info.fields:
        inner = hints[field.name]
        if isinstance(inner, type) and issubclass(inner, Struct):
            yield from leaves(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field


def variable(path: str) -> str:
    return "CODEQ_" + path.replace(".", "_").upper()


def _from_file(file: Path | None, faults: list[str]) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        given = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as fault:
        faults.append(f"{file}: {fault}")
        return {}
    if given is None:
        return {}
    if not isinstance(given, dict):
        faults.append(f"{file}: settings are a mapping, not a {type(given).__name__}")
        return {}
    return given


def _put(given: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        inner = given.get(group)
        given[group] = inner if isinstance(inner, dict) else {}
        given = given[group]
    given[name] = value


def _build(kind: type[Struct], given: Any, prefix: str, faults: list[str]) -> Any:
    """Make the value field by field, so that every fault is found."""
    if not isinstance(given, dict):
        faults.append(f"{prefix.rstrip('.')}: expected a mapping")
        return None
    hints = get_type_hints(kind, include_extras=True)
    faults += [f"{prefix}{unknown}: there is no such setting" for unknown in sorted(set(given) - set(hints), key=str)]
    values = {}
    for name, hint in hints.items():
        if name not in given:
            continue
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(bare, type) and issubclass(bare, Struct):
            values[name] = _build(bare, given[name], f"{prefix}{name}.", faults)
            continue
        try:
            value = given[name]
            if bare == dict[str, Any] and isinstance(value, str):
                value = msgspec.json.decode(value)
            values[name] = msgspec.convert(value, hint, strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError) as fault:
            faults.append(f"{prefix}{name}: {fault}")
    return None if any(value is None for value in values.values()) else kind(**values)


def reference() -> str:
    """The page that lists every setting, for people."""
    lines = [
        "# Settings",
        "",
        "A YAML file (`codeq serve --config FILE`), the environment and flags, the later ones winning. `codeq config",
        "check` reports all that is wrong with them at once. This page is made by `codeq config reference`.",
        "",
        "| setting | environment | default | meaning |",
        "|---|---|---|---|",
    ]
    for path, field in leaves(Settings):
        default = field.default if field.default is not msgspec.NODEFAULT else {}
        meaning = getattr(field.type, "extra_json_schema", None) or {}
        shown = msgspec.json.encode(default).decode() if default != "" else '""'
        lines.append(f"| `{path}` | `{variable(path)}` | `{shown}` | {meaning.get('description', '')} |")
    return "\n".join(lines) + "\n"
