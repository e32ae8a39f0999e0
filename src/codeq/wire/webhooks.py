"""What a webhook looks like to its receiver: names of headers, the body of a result callback, and the signatures."""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256

from msgspec import Raw

from codeq.domain.errors import InvalidRequest
from codeq.domain.limits import WEBHOOK_SECRET_BYTES_MAX, WEBHOOK_SECRET_BYTES_MIN, WEBHOOK_SECRETS_MAX
from codeq.wire.artifacts import ArtifactView
from codeq.wire.message import WireStruct

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""Those of Standard Webhooks (standardwebhooks.com)."""
CODEQ_TIMESTAMP, CODEQ_SIGNATURE = "x-codeq-timestamp", "x-codeq-signature"
"""Those of the original codeQ."""
SECRET_PREFIX = "whsec_"  # noqa: S105 - not a secret


class CallbackBody(WireStruct, frozen=True, kw_only=True, gc=False):
    """The body of a callback when a task has ended."""

    task_id: str
    event_type: str
    """The task's command."""
    status: str
    result: Raw | None = None
    """As its worker submitted it; null if the task did not end by a result."""
    error: str | None = None
    artifacts: Sequence[ArtifactView] = ()
    """Files of the result, as `GET` of the result shows them."""
    completed_at: str | None = None
    """When the task ended, whatever its status."""
    attempts: int = 0
    last_error: str | None = None
    """What the worker said last, if the task failed by retries."""


def key_of(secret: str) -> bytes:
    """Returns the key that a secret stands for: `whsec_` and base64, as in Standard Webhooks, or any text, which is its
    own key."""
    try:
        key = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True) if secret.startswith(SECRET_PREFIX) else None
    except ValueError:
        raise InvalidRequest(f"a webhook secret that begins with {SECRET_PREFIX} goes on in base64") from None
    key = secret.encode() if key is None else key
    if not WEBHOOK_SECRET_BYTES_MIN <= len(key) <= WEBHOOK_SECRET_BYTES_MAX:
        raise InvalidRequest(
            f"a webhook secret has {WEBHOOK_SECRET_BYTES_MIN} to {WEBHOOK_SECRET_BYTES_MAX} bytes, not {len(key)}; "
            "make one with: codeq webhooks new-secret"
        )
    return key


def keys_of(secrets: str) -> tuple[bytes, ...]:
    """Returns the keys of secrets that are separated by spaces. The first one is the current one."""
    keys = tuple(key_of(secret) for secret in secrets.split())
    if len(keys) > WEBHOOK_SECRETS_MAX:
        raise InvalidRequest(f"at most {WEBHOOK_SECRETS_MAX} webhook secrets are valid at a time, not {len(keys)}")
    return keys


def secret_of(key: bytes) -> str:
    """Returns the key as a secret of Standard Webhooks."""
    return SECRET_PREFIX + b64encode(key).decode()


def signature(key: bytes, webhook_id: str, timestamp: str, *, body: bytes) -> str:
    """Returns one signature of Standard Webhooks: `v1,` and base64."""
    signed = b"%b.%b.%b" % (webhook_id.encode(), timestamp.encode(), body)
    return "v1," + b64encode(hmac.digest(key, signed, sha256)).decode()


def codeq_signature(key: bytes, timestamp: str, body: bytes) -> str:
    """Returns the signature of the original codeQ, in hexadecimal digits."""
    return hmac.digest(key, b"%b.%b" % (timestamp.encode(), body), sha256).hex()


def signed_headers(keys: Sequence[bytes], webhook_id: str, body: bytes, *, now_s: int) -> dict[str, str]:
    """Returns the headers that identify and sign a webhook: with every key, so that receivers may have any of them."""
    timestamp = str(now_s)
    headers = {ID: webhook_id, TIMESTAMP: timestamp, CODEQ_TIMESTAMP: timestamp}
    if keys:
        headers[SIGNATURE] = " ".join([signature(key, webhook_id, timestamp, body=body) for key in keys])
        headers[CODEQ_SIGNATURE] = codeq_signature(keys[0], timestamp, body)
    return headers
