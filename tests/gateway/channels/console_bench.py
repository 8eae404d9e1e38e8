"""A terminal that is a pair of pipes."""

from __future__ import annotations

import asyncio
import os
from typing import IO, Any

from tests.gateway.channels.setups import setup

from posthouse.gateway.channels.bench import Bench
from posthouse.gateway.channels.console import Console


class ConsoleBench(Bench):
    """Types lines and reads what is printed. Nobody types a line twice, and nothing is ever refused."""

    lacks = frozenset({"told", "again", "permanent", "transient", "rate_limited", "silent", "cut"})

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._values = values or {}
        self._printed = b""

    async def open(self) -> None:
        keys, self._fingers = os.pipe()
        screen, paper = os.pipe()
        self._keys: IO[bytes] = os.fdopen(keys, "rb", buffering=0)
        self._paper: IO[str] = os.fdopen(paper, "w", encoding="utf-8")
        self._screen = screen
        asyncio.get_running_loop().add_reader(screen, self._look)

    def _look(self) -> None:
        self._printed += os.read(self._screen, 65_536)
        self.changes.ring()

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._screen)
        self.hang_up()
        self._keys.close()
        self._paper.close()
        os.close(self._screen)

    def hang_up(self) -> None:
        """The end of what is typed."""
        if self._fingers >= 0:
            os.close(self._fingers)
            self._fingers = -1

    def channel(self) -> Console:
        self.made = Console(setup("console", self._values), self._keys, self._paper)
        return self.made

    async def bring(self, text: str) -> None:
        self.type(text + "\n")

    def type(self, text: str | bytes) -> None:
        """Keys, as they are pressed."""
        os.write(self._fingers, text if isinstance(text, bytes) else text.encode())

    def arrived(self) -> list[str]:
        return self._printed.decode().splitlines()

    def answer(self, how: str) -> None:
        assert how == "ok"
