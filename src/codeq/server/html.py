"""Makes a response of an HTML page that may load nothing, run nothing and appear in no frame."""

import re
from base64 import b64encode
from hashlib import sha256

from codeq.server.request import HttpResponse

_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)


def html_response(page: bytes) -> HttpResponse:
    """Returns the response. Of what is inside the page only its `<style>` elements, named by hash, have effect."""
    styles = [f"'sha256-{b64encode(sha256(style).digest()).decode()}'" for style in _STYLE.findall(page)] or ["'none'"]
    policy = (
        f"default-src 'none'; style-src {' '.join(styles)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HttpResponse(
        200,
        page,
        "text/html; charset=utf-8",
        [
            (b"content-security-policy", policy.encode()),
            (b"x-frame-options", b"DENY"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ],
    )
