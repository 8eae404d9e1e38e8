"""A server's log: text for people at a terminal, otherwise one JSON object a line, always on stderr."""

from __future__ import annotations

import datetime
import json
import logging
import sys

from .text import inert

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was added by whoever logged."""


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _at(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


class TextFormatter(logging.Formatter):
    """Time, level, part, message, extras; one line, and nothing in it can move a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """One line (and a traceback, where there is one)."""
        extras = "".join(f" {name}={inert(str(value))}" for name, value in _extras(record).items())
        line = f"{_at(record)} {record.levelname:<7} {record.name}: {inert(record.getMessage())}{extras}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "\n" + "\n".join("    " + inert(part) for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        plain: dict[str, object] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "part": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            plain["traceback"] = self.formatException(record.exc_info)
        return json.dumps(plain, default=str)


def set_up(format: str, level: str) -> str:
    """Log to stderr; returns the format that "auto" led to."""
    if format == "auto":
        format = "text" if sys.stderr.isatty() else "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger("posthouse")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    return format
