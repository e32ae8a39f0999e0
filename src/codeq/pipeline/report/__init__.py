"""One page for people: what the queue did, how long it took, what went wrong, and whether its promises held."""

import msgspec

from codeq.pipeline.report.data import ReportData
from codeq.pipeline.report.page import render
from codeq.pipeline.report.query import collect

__all__ = ["ReportData", "collect", "render", "to_json"]


def to_json(data: ReportData) -> bytes:
    """The same data as the page shows."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2)
