"""Tasks: held, told of when they fail, ended together."""

from __future__ import annotations

import asyncio
import logging

import pytest

from posthouse.engine.tasks import Tasks
from posthouse.errors import EngineClosed

log = logging.getLogger("posthouse.test")


async def fail(error: Exception) -> None:
    raise error


async def ended(tasks: Tasks) -> None:
    """All have ended, and what follows from that has happened."""
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert not tasks


def test_what_fails_is_told_once_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        tasks = Tasks(log, level=logging.CRITICAL)
        tasks.spawn(fail(ValueError("reason")), "the clerk")
        tasks.spawn(fail(EngineClosed("the engine is closed")), "the porter")
        tasks.spawn(asyncio.sleep(0), "the guest")
        await ended(tasks)
        plain = Tasks(log, "a task of the market failed")
        plain.spawn(fail(ValueError("another")))
        await ended(plain)

    asyncio.run(story())
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == log.name]
    assert told == [("CRITICAL", "the clerk has stopped"), ("ERROR", "a task of the market failed")]
    assert "ValueError: reason" in caplog.text


def test_closing_ends_all_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        tasks = Tasks(log)
        cleaned: list[str] = []

        async def wait(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(name)

        for name in ("one", "two"):
            tasks.spawn(wait(name), name)
        await asyncio.sleep(0)
        await tasks.close()
        assert sorted(cleaned) == ["one", "two"]
        assert not tasks
        await tasks.close()

    asyncio.run(story())
    assert not caplog.records
