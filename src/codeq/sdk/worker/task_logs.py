"""Log records of handlers: each says its task, also from child processes, and none is lost for want of a set-up."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

LINE = "%(asctime)s %(levelname)s %(name)s%(codeq_place)s: %(message)s"
RECORD_CHARS_MAX = 32_000
"""Of one message from a child process; a longer one is cut, so that the pipe does not fill with one line."""


@contextlib.contextmanager
def logging_without_setup() -> Iterator[None]:
    """Meanwhile, warnings that no handler of the program takes are printed with their time and task.

    It replaces Python's last resort, which is used for nothing else: whatever a program sets up, before or later, is
    left alone."""
    before = logging.lastResort
    resort = logging.StreamHandler()
    resort.setLevel(logging.WARNING)
    resort.setFormatter(PlaceFormatter(LINE))
    logging.lastResort = resort
    try:
        yield
    finally:
        logging.lastResort = before


class PlaceFormatter(logging.Formatter):
    """Adds `codeq_place`, which names the task, where the message does not."""

    def format(self, record: logging.LogRecord) -> str:
        task_id = getattr(record, "codeq_task_id", "")
        is_missing = task_id and task_id not in record.getMessage()
        record.codeq_place = f" [{record.codeq_command} {task_id}]" if is_missing else ""  # type: ignore[attr-defined]
        return super().format(record)


def logger_levels() -> dict[str, int]:
    """The levels that the program has set, for its child processes; the root logger's has no name."""
    named = {
        name: found.level
        for name, found in logging.root.manager.loggerDict.items()
        if isinstance(found, logging.Logger) and found.level
    }
    return {**named, "": logging.root.level}


def forward_logs(levels: dict[str, int], send: Callable[[dict[str, Any]], None]) -> None:
    """Sends the records of this child process to its parent, unless the program has set up logging here too."""
    if logging.root.handlers:
        return
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.root.addHandler(_Forwarder(send))


class _Forwarder(logging.Handler):
    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._send = send
        self._traceback = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + self._traceback.formatException(record.exc_info)
            if record.stack_info:
                message += "\n" + record.stack_info
            fields = {
                "name": record.name, "levelno": record.levelno, "levelname": record.levelname,
                "pathname": record.pathname, "lineno": record.lineno, "funcName": record.funcName,
                "created": record.created, "msecs": record.msecs, "process": record.process,
                "threadName": record.threadName, "msg": message[:RECORD_CHARS_MAX],
                "codeq_task_id": getattr(record, "codeq_task_id", ""),
                "codeq_command": getattr(record, "codeq_command", ""),
            }  # fmt: skip
            self._send(fields)
        except (OSError, TypeError, ValueError, UnicodeError):
            self.handleError(record)


def log_forwarded(fields: dict[str, Any]) -> None:
    """Logs a record of a child process here, where the program has set up logging."""
    logger = logging.getLogger(str(fields.get("name")))
    record = logging.makeLogRecord(fields)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
