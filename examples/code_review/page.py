"""The pages: a list of reviews, and one review with its findings. Every text in them is escaped."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import groupby
from pathlib import Path

from .reviews import Finding, Kind, Review, Status

_STYLE = Path(__file__).with_name("page.css").read_text()
STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {Kind.PULL: "pull request", Kind.PUSH: "push"}
REFRESH_S = 3


def list_page(reviews: Sequence[Review], counts: Mapping[str, int], *, trouble: str, now_ms: int) -> str:
    """Returns the page of all reviews. It loads itself again, without a script."""
    numbers = "".join(
        f'<div class="card"><b>{counts.get(status, 0)}</b><span class="{status}">{status}</span></div>'
        for status in Status
    )
    notice = f'<p class="card notice">Reviews wait in the outbox, none is lost: {_text(trouble)}</p>'
    rows = "".join(_row(review, now_ms) for review in reviews)
    table = (
        '<div class="card"><table><thead><tr><th>Change<th>Kind<th>Status<th class="number">Findings'
        f'<th class="number received">Received</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    body = (
        '<h1>Code reviews</h1><p class="lead soft">Pull requests are reviewed before pushes.</p>'
        f'{notice if trouble else ""}<section class="numbers">{numbers}</section>'
        f"{table if reviews else _EMPTY}"
    )
    return _page("Code reviews", body, refresh=True)


def review_page(review: Review, findings: Sequence[Finding], now_ms: int) -> str:
    """Returns the page of one review: its findings by file."""
    title = (
        f'<a href="{escape(review.url)}" rel="noreferrer">{_text(review.title)}</a>'
        if review.url
        else _text(review.title)
    )
    error = f'<p class="card error">{_text(review.error)}</p>' if review.error else ""
    files = "".join(
        f'<section class="card"><h2>{_text(path or "The whole change")}</h2>'
        f'<table class="findings">{"".join(map(_finding, group))}</table></section>'
        for path, group in groupby(findings, key=lambda finding: finding.file)
    )
    nothing = '<p class="card empty soft">No findings.</p>' if review.status is Status.DONE and not findings else ""
    body = (
        f'<p class="soft"><a href="/">Code reviews</a> / {review.id}</p><h1>{title}</h1>'
        f'<p class="lead soft">{_status(review)} {_facts(review, now_ms)}</p>{error}{files}{nothing}'
    )
    return _page(review.title, body, refresh=review.ended_ms is None)


def message_page(message: str) -> str:
    return _page(message, f'<h1>{_text(message)}</h1><p><a href="/">Code reviews</a></p>')


_EMPTY = (
    '<p class="card empty soft">No reviews yet. Point a webhook at /hooks/github, /hooks/gitlab or /hooks/gitea.</p>'
)


def _page(title: str, body: str, *, refresh: bool = False) -> str:
    again = f'<meta http-equiv="refresh" content="{REFRESH_S}">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def _row(review: Review, now_ms: int) -> str:
    tries = f' <span class="soft">try {review.attempts}</span>' if review.attempts > 1 else ""
    findings = review.findings if review.status is Status.DONE else "-"
    return (
        f'<tr><td class="title"><a href="/reviews/{review.id}">{_text(review.title)}</a>'
        f'<br><span class="soft">{_text(review.repository)} · {_text(review.author)} · {_text(review.provider)}</span>'
        f'<td><span class="chip {review.kind}">{_KINDS[review.kind]}</span><td>{_status(review)}{tries}'
        f'<td class="number">{findings}<td class="number received soft">{_age(now_ms - review.received_ms)}</tr>'
    )


def _finding(finding: Finding) -> str:
    place = f"line {finding.line}" if finding.line else ""
    return (
        f'<tr><td class="place soft">{place}<td class="rule">{_text(finding.rule)}'
        f'<td class="message">{_text(finding.message)}</tr>'
    )


def _status(review: Review) -> str:
    return f'<span class="chip {review.status}">{review.status}</span>'


def _facts(review: Review, now_ms: int) -> str:
    facts = [f"{_KINDS[review.kind]} to {review.repository}", f"by {review.author or 'somebody'}", review.head[:12]]
    facts.append(f"received {_age(now_ms - review.received_ms)}")
    if review.started_ms and review.ended_ms:
        facts.append(f"reviewed in {max(0, review.ended_ms - review.started_ms) / 1000:.1f} s")
    return " · ".join(map(_text, facts))


def _age(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit} ago"
    return "just now"


def _text(text: str) -> str:
    """Escapes the text, and keeps letters of other directions from rearranging what stands around it."""
    return f"<bdi>{escape(text)}</bdi>" if not text.isascii() else escape(text)
