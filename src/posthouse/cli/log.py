"""A server's log: text for people at a terminal, otherwise one JSON object a line, always on stderr.

A thread of its own writes it. Whoever reads stderr may stop reading; the server goes on then, and when there is
room again the log says how many lines it lacks.
"""

from __future__ import annotations

import atexit
import collections
import datetime
import json
import logging
import sys
import threading
from typing import TextIO

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


LINES_MAX = 10_000
"""Lines that wait for whoever reads stderr."""
LAST_S = 1.0
"""How long the end of the process waits for the last lines."""


class SparingHandler(logging.Handler):
    """Hands lines to a thread that writes them; never waits for the reader."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: collections.deque[str] = collections.deque()
        self._lacking = 0
        self._some = threading.Condition()
        self._closing = False
        self._writer = threading.Thread(target=self._write, name="posthouse-log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Line up a record, or count it where too many wait."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._some:
            if len(self._lines) >= LINES_MAX:
                self._lacking += 1
                return
            self._lines.append(line)
            self._some.notify()

    def _write(self) -> None:
        while True:
            with self._some:
                while not self._lines:
                    if self._closing:
                        return
                    self._some.wait()
                lines = [*self._lines]
                self._lines.clear()
                lacking, self._lacking = self._lacking, 0
            if lacking:
                lost = logging.LogRecord(
                    "posthouse.log", logging.WARNING, "", 0, "%d lines were not written: nobody read", (lacking,), None
                )
                lines.append(self.format(lost))
            try:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # There is no one to tell: stderr is gone.
                return

    def close(self) -> None:
        """Write what waits, within reason."""
        with self._some:
            self._closing = True
            self._some.notify_all()
        self._writer.join(LAST_S)
        super().close()


def set_up(format: str, level: str) -> str:
    """Log to stderr; returns the format that "auto" led to."""
    if format == "auto":
        format = "text" if sys.stderr.isatty() else "json"
    handler = SparingHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger("posthouse")
    for former in root.handlers:
        former.close()
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    atexit.register(handler.close)
    return format
