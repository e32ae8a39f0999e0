"""Verifies webhooks that a codeQ server has sent: for receivers."""

import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from codeq.domain.errors import CodeqError
from codeq.domain.limits import WEBHOOK_TOLERANCE_S
from codeq.wire.webhooks import ID, SIGNATURE, TIMESTAMP, key_of, signature


class WebhookInvalid(CodeqError):
    """The request was not sent by a server that has the secret, or long ago. Answer it with 400 or 401."""

    code = "webhook-invalid"


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Sequence[str],
    *,
    tolerance_s: float = WEBHOOK_TOLERANCE_S,
    now_s: float | None = None,
) -> Any:
    """Returns the decoded body of a webhook, or raises WebhookInvalid.

    `body` must be the bytes as they arrived. With several secrets, any of them will do: give both while they rotate. A
    webhook may arrive more than once: remember its `webhook-id`, which is the same each time. It is signed together
    with the time and the body, so neither can be changed, and a copy is of no use after `tolerance_s` seconds.
    """
    found = {name.lower(): value for name, value in headers.items()}
    webhook_id, timestamp, signatures = (_header(found, name) for name in (ID, TIMESTAMP, SIGNATURE))
    if "." in webhook_id:
        raise WebhookInvalid(f"the header {ID} must not contain a dot")
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        raise WebhookInvalid(f"the header {TIMESTAMP} must be a time in Unix seconds")
    age_s = (time.time() if now_s is None else now_s) - int(timestamp)
    if abs(age_s) > tolerance_s:
        raise WebhookInvalid(f"the webhook is from {abs(age_s):.0f} s {'ago' if age_s > 0 else 'in the future'}")
    secrets = [secret] if isinstance(secret, str) else secret
    expected = [signature(key_of(one), webhook_id, timestamp, body=bytes(body)).encode() for one in secrets]
    given = [one.encode() for one in signatures.split(" ")[:10]]
    if not any(hmac.compare_digest(one, other) for one in expected for other in given):
        raise WebhookInvalid("no signature matches: another secret, or a body that was changed on the way")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as fault:
        raise WebhookInvalid(f"the body is not JSON: {fault}") from None


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise WebhookInvalid(f"the header {name} is missing")
    return value
