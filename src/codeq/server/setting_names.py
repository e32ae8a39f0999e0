"""Names that are no settings, and what to say about each: the setting that was meant, or that nobody reads it."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

CLOSE, ALIKE = 0.8, 0.6
"""Likeness (0 to 1) from which a variable is a misspelt setting rather than somebody else's, and from which a setting
is suggested for a name in a file, which is wrong in any case."""

ORIGINAL = {
    "port": "http.port",
    "persistenceConfig": "store.path",
    "tracingEnabled": "tracing.enabled",
    "tracingServiceName": "tracing.service_name",
    "tracingOtlpEndpoint": "tracing.endpoint",
    "tracingOtlpInsecure": "tracing.insecure",
    "tracingSampleRatio": "tracing.sample_ratio",
    "identityJwksUrl": "auth.producer.config.jwksUrl",
    "identityServiceUrl": "auth.producer.config.issuer",
    "identityIssuer": "auth.producer.config.issuer",
    "identityAudience": "auth.producer.config.audience",
    "producerAuthProvider": "auth.producer.provider",
    "producerAuthConfig": "auth.producer.config",
    "workerAuthProvider": "auth.worker.provider",
    "workerAuthConfig": "auth.worker.config",
    "workerJwksUrl": "auth.worker.config.jwksUrl",
    "workerIssuer": "auth.worker.config.issuer",
    "workerAudience": "auth.worker.config.audience",
    "allowedClockSkewSeconds": "auth.producer.config.clockSkewSeconds",
    "allowProducerAsWorker": "auth.producers_may_work",
    "logLevel": "log.level",
    "logFormat": "log.format",
    "defaultLeaseSeconds": "leases.default_seconds",
    "requeueInspectLimit": "sweep.inspect_limit",
    "maxAttemptsDefault": "retry.max_attempts",
    "backoffPolicy": "retry.backoff_policy",
    "backoffBaseSeconds": "retry.backoff_base_seconds",
    "backoffMaxSeconds": "retry.backoff_max_seconds",
    "rateLimit": "rate_limit",
    "webhookHmacSecret": "webhooks.secret",
    "resultWebhookMaxAttempts": "webhooks.max_attempts",
    "resultWebhookBaseBackoffSeconds": "webhooks.backoff_base_seconds",
    "resultWebhookMaxBackoffSeconds": "webhooks.backoff_max_seconds",
    "localArtifactsDir": "artifacts.url",
}
"""The original codeQ's settings, with their names here."""

ORIGINAL_ONLY = frozenset({
    "redisAddr", "redisPassword", "persistenceProvider", "identityServiceApiKey", "timezone", "env",
    "subscriptionMinIntervalSeconds", "subscriptionCleanupIntervalSeconds",
    "sharding",
    "cluster", "raft", "workerStreamAddr", "producerStreamAddr",
})  # fmt: skip
"""The original codeQ's settings that have no counterpart here."""

_KUBERNETES = re.compile(
    r"CODEQ(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_TOO_COMMON = frozenset({"PORT"})
"""Variables of the original that mean something else to others."""


def is_of_kubernetes(name: str, text: str) -> bool:
    """Whether the variable is one that Kubernetes sets in every pod beside a Service called codeq or codeq-something.

    That of a Service called codeq-http has the name of a setting, and an address as its value.
    """
    return bool(_KUBERNETES.fullmatch(name)) or (name.endswith("_PORT") and bool(_ADDRESS.match(text)))


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """Returns what is wrong with a name in a file that is none of the `known` names beside it."""
    if name in ORIGINAL:
        return f"this setting is called {ORIGINAL[name]} here"
    if name in ORIGINAL_ONLY:
        return "there is no such setting; the original codeQ's has no counterpart here"
    meant = _closest(name, known, ALIKE)
    return f"there is no such setting; did you mean {meant}?" if meant else "there is no such setting"


def misspelt_variable(name: str, known: Iterable[str]) -> str | None:
    """Returns what is wrong with a variable `CODEQ_...` that is close to one of the `known` ones; None if none is."""
    if name == "CODEQ_CONFIG_PATH":
        return "this variable is called CODEQ_CONFIG here"
    meant = _closest(name.removeprefix("CODEQ_"), [one.removeprefix("CODEQ_") for one in known], CLOSE)
    return f"there is no such setting; did you mean CODEQ_{meant}?" if meant else None


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Returns a warning for each variable of the original codeQ that is set, and that this one does not read."""
    return [
        f"{name} is not read; this setting is called {path} here"
        for original, path in ORIGINAL.items()
        if (name := re.sub(r"(?=[A-Z])", "_", original).upper()) in environ and name not in _TOO_COMMON
    ]


def _closest(name: str, known: Iterable[str], likeness: float) -> str | None:
    plain = {_plain(one): one for one in known}
    found = get_close_matches(_plain(name), plain, n=1, cutoff=likeness)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
