"""What the lake shows to people: one HTML page of load, latency, failures, usage, capacity and audit.

Imports the lake for its gold tables and the audit for its verdicts; reads no files of the lake itself.
"""

import msgspec

from codeq.pipeline.report.data import ReportData
from codeq.pipeline.report.page import render
from codeq.pipeline.report.query import collect

__all__ = ["ReportData", "collect", "render", "to_json"]


def to_json(data: ReportData) -> bytes:
    """Returns the data of the page as JSON."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2)
