"""How webhooks are configured."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from codeq.domain.backoff import Backoff, BackoffKind
from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import WEBHOOK_ATTEMPTS_DEFAULT, WEBHOOK_BACKOFF_BASE_MS, WEBHOOK_BACKOFF_MAX_MS
from codeq.domain.queue import QueuePolicy
from codeq.domain.webhooks import WebhookRules, read_allow_list
from codeq.server.described import described
from codeq.server.webhooks.secrets import Secrets
from codeq.server.webhooks.sender import read_proxy
from codeq.server.webhooks.slots import SlotLimits


class WebhookSettings(Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, described("Whether this server sends webhooks. Of servers that share a Redis, one at least must.")
    ] = True
    secret: Annotated[
        str,
        described(
            "Signs the webhooks of tenants without a secret of their own: `whsec_` and base64, or a text of 24 to 64 "
            "bytes. Two are separated by a space while they rotate, the new one first. Empty: no signatures."
        ),
    ] = ""
    master_secret: Annotated[
        str,
        described(
            "Like `secret`, but each tenant's secret is derived from it, and shown to that tenant's admins alone: for "
            "tenants that must not be able to sign for each other."
        ),
    ] = ""
    tenants: Annotated[
        dict[str, Any], described("Secrets of single tenants, by tenant (JSON in the environment).")
    ] = {}
    allow: Annotated[
        str,
        described(
            "Hosts that are not public and that webhooks may reach nevertheless: addresses, networks, host names and "
            "`*.domain`, comma separated. Empty: none."
        ),
    ] = ""
    https_only: Annotated[bool, described("Refuse webhooks with http URLs.")] = False
    proxy: Annotated[
        str,
        described(
            "Egress proxy for all webhooks, http:// or https://. It looks up the hosts, so it must refuse private ones."
        ),
    ] = ""
    ca_file: Annotated[str, described("Certificates to trust, in PEM. Empty: those of the package certifi.")] = ""
    timeout_seconds: Annotated[float, described("For one attempt in all.", ge=0.1, le=300)] = 15.0
    max_attempts: Annotated[int, described("Attempts before a delivery is dead.", ge=1, le=100)] = (
        WEBHOOK_ATTEMPTS_DEFAULT
    )
    backoff_base_seconds: Annotated[
        float, described("First delay; each further one is twice as long.", ge=0, le=86_400)
    ] = WEBHOOK_BACKOFF_BASE_MS / 1000
    backoff_max_seconds: Annotated[float, described("Longest delay.", ge=0, le=86_400)] = WEBHOOK_BACKOFF_MAX_MS / 1000
    concurrency_max: Annotated[int, described("Deliveries under way at once.", ge=1, le=10_000)] = 128
    tenant_concurrency_max: Annotated[int, described("The same of one tenant.", ge=1, le=1000)] = 16
    host_concurrency_max: Annotated[int, described("The same of one tenant to one host.", ge=1, le=1000)] = 8

    def policy(self) -> QueuePolicy:
        """Returns the policy of queues of deliveries without one of their own."""
        base_ms, max_ms = round(self.backoff_base_seconds * 1000), round(self.backoff_max_seconds * 1000)
        return QueuePolicy(max_attempts=self.max_attempts, backoff=Backoff(BackoffKind.EXPONENTIAL, base_ms, max_ms))

    def rules(self) -> WebhookRules:
        return WebhookRules(read_allow_list(self.allow), https_only=self.https_only)

    def limits(self) -> SlotLimits:
        return SlotLimits(
            total=self.concurrency_max, tenant=self.tenant_concurrency_max, host=self.host_concurrency_max
        )

    def secrets(self) -> Secrets:
        for tenant, secrets in self.tenants.items():
            if not isinstance(secrets, str):  # a list would become a text, which is a secret that nobody has
                raise InvalidRequest(f"the secrets of {tenant!r} are one text; two are separated by a space")
        return Secrets(shared=self.secret, master=self.master_secret, tenants=self.tenants)

    def faults(self) -> Iterator[str]:
        """Yields what is wrong with the texts, without the secrets."""
        checks: list[tuple[str, Callable[[], object]]] = [
            ("allow", self.rules),
            ("secret, master_secret or tenants", self.secrets),
            ("proxy", lambda: read_proxy(self.proxy)),
        ]
        for name, check in checks:
            try:
                check()
            except (ValueError, InvalidRequest) as fault:
                yield f"webhooks.{name}: {fault}"
        if self.ca_file and not Path(self.ca_file).is_file():
            yield f"webhooks.ca_file: there is no file {self.ca_file}"
