"""Which secrets sign the webhooks of a tenant."""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256

from codeq.wire.webhooks import keys_of


class Secrets:
    """A tenant's own secrets; else one derived for it from the master secrets; else the secrets for all.

    Whoever verifies webhooks has the secret, and could sign with it. So tenants that do not trust each other need
    secrets of their own, or the master secret, from which nobody can derive another tenant's.
    """

    def __init__(self, *, shared: str = "", master: str = "", tenants: Mapping[str, str] | None = None) -> None:
        """Several secrets are separated by spaces, the current one first. Raises InvalidRequest if one is unusable."""
        self._shared = keys_of(shared)
        self._master = keys_of(master)
        self._tenants = {tenant: keys_of(secrets) for tenant, secrets in (tenants or {}).items()}

    def keys(self, tenant: str) -> Sequence[bytes]:
        """Returns the tenant's keys, the current one first; none if its webhooks are not signed."""
        own = self._tenants.get(tenant)
        if own is not None:
            return own
        if self._master:
            return tuple(hmac.digest(key, b"codeq webhooks of " + tenant.encode(), sha256) for key in self._master)
        return self._shared

    def __repr__(self) -> str:
        return "Secrets(...)"
