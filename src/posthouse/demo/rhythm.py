"""When the next thing happens in the demo, and what: chance from a seed, and waits that a pace makes shorter.

In: a seed and a pace. Out: waits and choices. Every actor has a rhythm of its own, so that one that was restarted does
not change what the others do. It synchronises nothing: whoever waits for something waits for that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Rhythm:
    """The chance and the time of one actor."""

    def __init__(self, seed: str, pace: float = 1.0) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self.pace = pace

    def of(self, name: str) -> Rhythm:
        """The rhythm of an actor of this name: always the same for the same seed."""
        return Rhythm(f"{self._seed}/{name}", self.pace)

    def about_s(self, mean_s: float) -> float:
        """Between a half and one and a half of ``mean_s``, at this pace."""
        return mean_s * (0.5 + self._random.random()) / self.pace

    async def pause(self, mean_s: float) -> None:
        """Let about so much time pass."""
        await asyncio.sleep(self.about_s(mean_s))

    def happens(self, one_in: int) -> bool:
        """True about once in so many times."""
        return self._random.randrange(one_in) == 0

    def choose(self, among: Sequence[T]) -> T:
        """One of them."""
        return self._random.choice(among)

    def number(self, most: int) -> int:
        """From 1 to ``most``."""
        return self._random.randint(1, most)
