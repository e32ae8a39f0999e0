"""`codeq.verify_webhook`: accepts what a server with the secret has signed lately, and nothing else."""

from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

import codeq
from codeq.errors import InvalidRequest
from codeq.wire.webhooks import secret_of, signed_headers

SECRET, OTHER = secret_of(b"s" * 32), secret_of(b"o" * 32)
NOW_S = 1_794_976_400
BODY = '{"taskId":"ü"}'.encode()


def headers(body: bytes = BODY, *, keys: tuple[bytes, ...] = (b"s" * 32,), **changes: str | None) -> dict[str, str]:
    signed = signed_headers(keys, "msg_1", body, now_s=NOW_S)
    changed = {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in {**signed, **changed}.items() if value is not None}


def verify(given: dict[str, str], body: bytes = BODY, secret: Any = SECRET, **options: Any) -> Any:
    return codeq.verify_webhook(given, body, secret, now_s=options.pop("now_s", NOW_S), **options)


def test_what_was_signed_is_returned_decoded() -> None:
    assert verify(headers()) == {"taskId": "ü"}
    assert verify({name.upper(): value for name, value in headers().items()}) == {"taskId": "ü"}


def test_what_standard_webhooks_signs_is_accepted() -> None:
    signature = Webhook(SECRET).sign("msg_1", datetime.fromtimestamp(NOW_S, UTC), BODY.decode())
    assert verify(headers(webhook_signature=signature)) == {"taskId": "ü"}


def test_any_of_the_secrets_will_do_while_they_rotate() -> None:
    both = headers(keys=(b"s" * 32, b"o" * 32))
    assert verify(both) == verify(both, secret=OTHER) == verify(headers(), secret=[OTHER, SECRET])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"webhook_signature": None}, "webhook-signature is missing"),
        ({"webhook_id": None}, "webhook-id is missing"),
        ({"webhook_timestamp": None}, "webhook-timestamp is missing"),
        ({"webhook_timestamp": ""}, "missing"),
        ({"webhook_timestamp": "soon"}, "Unix seconds"),
        ({"webhook_timestamp": "1e9"}, "Unix seconds"),
        ({"webhook_timestamp": "9" * 5000}, "Unix seconds"),
        ({"webhook_timestamp": "٣"}, "Unix seconds"),
        ({"webhook_timestamp": str(NOW_S + 1)}, "no signature matches"),
        ({"webhook_id": "msg_2"}, "no signature matches"),
        ({"webhook_id": "msg.1"}, "dot"),
        ({"webhook_signature": "v1,AAAA"}, "no signature matches"),
        ({"webhook_signature": "v2,AAAA ü"}, "no signature matches"),
        ({"webhook_signature": "v1,AAAA " * 1000}, "no signature matches"),
    ],
)
def test_whatever_else_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(codeq.WebhookInvalid, match=reason):
        verify(headers(**changes))


def test_a_changed_body_or_another_secret_is_refused() -> None:
    with pytest.raises(codeq.WebhookInvalid, match="no signature"):
        verify(headers(), b"{}")
    with pytest.raises(codeq.WebhookInvalid, match="no signature"):
        verify(headers(), secret=OTHER)
    with pytest.raises(codeq.WebhookInvalid, match="no signature"):
        verify(headers(), secret=[])


def test_check_65_a_copy_is_of_no_use_later_nor_before() -> None:
    verify(headers(), now_s=NOW_S + 299)
    with pytest.raises(codeq.WebhookInvalid, match="400 s ago"):
        verify(headers(), now_s=NOW_S + 400)
    with pytest.raises(codeq.WebhookInvalid, match="in the future"):
        verify(headers(), now_s=NOW_S - 400)
    verify(headers(), now_s=NOW_S + 400, tolerance_s=500)


def test_the_signature_of_the_original_alone_does_not_do() -> None:
    """It does not cover the id: with it, a copy could be passed off as another delivery."""
    with pytest.raises(codeq.WebhookInvalid):
        verify(headers(webhook_signature=None))


def test_a_signed_body_that_is_not_json_is_refused() -> None:
    with pytest.raises(codeq.WebhookInvalid, match="not JSON"):
        verify(headers(b"\xff"), b"\xff")


@pytest.mark.parametrize("secret", ["short", "whsec_???", "whsec_AAAA", "x" * 65, ""])
def test_an_unusable_secret_is_a_mistake_of_the_receiver(secret: str) -> None:
    with pytest.raises(InvalidRequest):
        verify(headers(), secret=secret)
