"""The server's log: a reader that stalls does not stop the server."""

from __future__ import annotations

import logging
import os

import pytest

from posthouse.cli import log


def test_a_reader_who_stops_reading_stops_nobody_and_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LINES_MAX", 50)
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
        handler = log.SparingHandler(stream)
        handler.setFormatter(log.TextFormatter())
        logger = logging.Logger("posthouse.test")
        logger.addHandler(handler)
        # Far more than a pipe holds: each call returns, though nobody reads.
        for number in range(2_000):
            logger.warning("line %d %s", number, "x" * 500)
        written, missing = 0, 0
        while written + missing < 2_000:
            line = reader.readline()
            if "were not written" in line:
                missing += int(line.split("posthouse.log: ")[1].split()[0])
            else:
                assert written or "line 0 " in line
                written += 1
        assert missing
        assert written + missing == 2_000
        logger.warning("the last")
        assert "the last" in reader.readline()
        handler.close()


def test_the_last_lines_are_written_before_the_end() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader:
        with os.fdopen(writing, "w") as stream:
            handler = log.SparingHandler(stream)
            logger = logging.Logger("posthouse.test")
            logger.addHandler(handler)
            logger.warning("goodbye")
            handler.close()
        assert reader.read() == "goodbye\n"
