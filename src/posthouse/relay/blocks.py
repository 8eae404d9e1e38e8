"""Blocks: who wants nothing from whom.

In: blocks and unblocks of authenticated agents, and at start what was kept. Out: whether a sender is
blocked, at once; and the command that makes it last.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..mailbox.command import Keep

SHELF = "relay.blocks"
"""Where blocks are kept; a key is the blocker, a space, the blocked."""


class Blocks:
    """All blocks of the relay."""

    def __init__(self, each_max: int) -> None:
        self._each_max = each_max
        self._blocked: dict[str, set[str]] = {}

    def load(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """Take in what was kept; what is no pair of addresses is passed over."""
        for key, _ in entries:
            blocker, _, blocked = key.partition(" ")
            if blocker and blocked:
                self._blocked.setdefault(blocker, set()).add(blocked)

    def has(self, blocker: str, blocked: str) -> bool:
        """Whether ``blocker`` wants nothing from ``blocked``."""
        them = self._blocked.get(blocker)
        return them is not None and blocked in them

    def add(self, blocker: str, blocked: str) -> Keep | None:
        """Block from now on; None if the blocker has as many as it may have."""
        them = self._blocked.setdefault(blocker, set())
        if blocked not in them and len(them) >= self._each_max:
            return None
        them.add(blocked)
        return Keep(SHELF, f"{blocker} {blocked}", b"1")

    def remove(self, blocker: str, blocked: str) -> Keep:
        """Block no longer."""
        them = self._blocked.get(blocker)
        if them is not None:
            them.discard(blocked)
            if not them:
                del self._blocked[blocker]
        return Keep(SHELF, f"{blocker} {blocked}", None)

    def __len__(self) -> int:
        return sum(len(them) for them in self._blocked.values())
