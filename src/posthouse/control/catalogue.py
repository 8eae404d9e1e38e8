"""Every operation there is. A group is loaded when one of it is first asked for: a command waits for no other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from . import operation
from .operation import OPERATIONS, Answer, Context

__all__ = ["GROUPS", "OPERATIONS", "load", "run"]

GROUPS = (
    "alerts",
    "audit",
    "books",
    "dead",
    "doctor",
    "gateway",
    "journal",
    "klingon",
    "lane",
    "mailbox",
    "message",
    "openclaw",
    "peer",
    "pinch",
    "presence",
    "relay",
    "snapshot",
    "token",
)
"""Modules beside this one; an operation's name begins with that of its module."""


def load(group: str | None = None) -> None:
    """Register the operations of a group, or all of them."""
    for name in GROUPS:
        if group in (None, name):
            importlib.import_module(f".{name}", __package__)


def run(context: Context, name: str, parameters: Mapping[str, Any]) -> Answer:
    """Check the parameters and do it. InvalidInput: nothing was done."""
    if name not in OPERATIONS:
        group = name.partition(".")[0]
        # An unknown name is compared with all there are, to tell the nearest.
        load(group if group in GROUPS else None)
        if name not in OPERATIONS:
            load()
    return operation.run(context, name, parameters)
