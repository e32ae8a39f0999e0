"""Logs as JSON lines: one event per line, without secrets, and no line that a caller could forge."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

VALUE_CHARS_MAX = 500


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": "codeq",
            "message": record.getMessage()[:VALUE_CHARS_MAX],
        }
        for name, value in getattr(record, "fields", {}).items():
            line[name] = value[:VALUE_CHARS_MAX] if isinstance(value, str) else value
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-4000:]
        return json.dumps(line)


def set_up(level: str, *, json_lines: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if json_lines else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("uvicorn.access", "httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def log(level: int, message: str, *, exc_info: bool | BaseException | None = False, **fields: Any) -> None:
    """Writes one line. `fields` must hold no token, secret or payload."""
    logging.getLogger("codeq").log(level, message, exc_info=exc_info, extra={"fields": fields})
