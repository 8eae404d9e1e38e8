"""Posthouse: durable messaging for when the other side is away.

async with posthouse.open("mail.db") as post:
    await post.send("alice", b"hello")
    async for letter in post.receive("alice"):
        print(letter.body)
        await letter.done()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.engine import Engine
    from .engine.library import MAIL, BlockingLetter, BlockingPosthouse, Letter, Posthouse, open
    from .errors import (
        EngineClosed,
        InvalidInput,
        PosthouseError,
        StoreError,
        StoreFull,
        StoreHeld,
        StoreUnavailable,
    )
    from .mailbox.outcome import Duplicate, LeaseLost, Posted, Refusal, Refused, Settled
    from .mailbox.policy import Policy, exponential, ladder

# Where each name lives. They are loaded when first used: `import posthouse` alone stays a matter of
# a millisecond, and a program that only wants one part does not pay for the others.
_HOMES = {
    ".engine.engine": ("Engine",),
    ".engine.library": ("MAIL", "BlockingLetter", "BlockingPosthouse", "Letter", "Posthouse", "open"),
    ".errors": (
        "EngineClosed",
        "InvalidInput",
        "PosthouseError",
        "StoreError",
        "StoreFull",
        "StoreHeld",
        "StoreUnavailable",
    ),
    ".mailbox.outcome": ("Duplicate", "LeaseLost", "Posted", "Refusal", "Refused", "Settled"),
    ".mailbox.policy": ("Policy", "exponential", "ladder"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "MAIL",
    "BlockingLetter",
    "BlockingPosthouse",
    "Duplicate",
    "Engine",
    "EngineClosed",
    "InvalidInput",
    "LeaseLost",
    "Letter",
    "Policy",
    "Posted",
    "Posthouse",
    "PosthouseError",
    "Refusal",
    "Refused",
    "Settled",
    "StoreError",
    "StoreFull",
    "StoreHeld",
    "StoreUnavailable",
    "exponential",
    "ladder",
    "open",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
