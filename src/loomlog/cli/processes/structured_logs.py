"""Log lines of servers on stderr: JSON for machines, text for people.

A field given as `extra={"stream": 3}` becomes a field of the line.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def set_up(form: LogFormat, level: LogLevel, *, server: str) -> None:
    """Send all logging of this process to stderr, marked as of `server` (e.g. vsn-1)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(server) if form is LogFormat.JSON else TextLines(server))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "server": self._server,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(_extra(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """time level server message field=value …"""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _extra(record).items())
        text = f"{_time(record)} {record.levelname:<7} {self._server} {record.getMessage()}{fields}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
