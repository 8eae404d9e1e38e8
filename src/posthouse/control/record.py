"""Records of what operators did: who, what and when, kept in the very commit that does it.

In: an operation's name, what it was called with, and who asked. Out: Keep commands for the shelf ``audit``, which the
operation's own commands take with them. A body is never kept, and a long parameter only in part. Reading leaves no
record, and neither does a dry run. The journal has the same operator as the holder of each message he changed.

A record is JSON: {"at", "by", "act", "with", "result", "refused"}. Keys count down as time goes up, so that the shelf's
first page is the newest; what is older than it is kept for is forgotten a few at a time, with the next records.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from ..mailbox.command import Command, Keep
from ..mailbox.message import SECOND, Instant
from ..mailbox.store import Store

SHELF = "audit"
TEXT_MAX = 200
ITEMS_MAX = 10
FORGET_MAX = 20
"""Old records that one action removes at most."""
_CEILING = 10**18
_HIDDEN = frozenset({"body", "headers"})
"""Parameters that may hold what a message says."""

Json = dict[str, Any]


def key_at(at: Instant) -> str:
    """What keys of this instant begin with: keys above it are older."""
    return f"{_CEILING - at:018d}"


class Record:
    """One operation of one operator, from its first change on."""

    def __init__(self, store: Store, by: str, act: str, parameters: Mapping[str, Any], keep_s: float) -> None:
        self._store = store
        self._by = by
        self._act = act
        self._with = {name: _shown(name, value) for name, value in parameters.items() if value is not None}
        self._keep_s = keep_s
        self._key = ""
        self._value: Json = {}

    @property
    def written(self) -> bool:
        """Whether anything was changed."""
        return bool(self._key)

    def keeps(self, commands: tuple[Command, ...], at: Instant) -> list[Keep]:
        """What goes into the commit of these commands; the same record for every step of one operation."""
        if all(getattr(command, "dry_run", False) for command in commands):
            return []
        forgotten: list[Keep] = []
        if not self._key:
            self._key = f"{key_at(at)}-{secrets.token_hex(4)}"
            self._value = {"at": at, "by": self._by, "act": self._act, "with": self._with}
            old = self._store.kept(SHELF, key_at(at - int(self._keep_s * SECOND)), FORGET_MAX)
            forgotten = [Keep(SHELF, key, None) for key, _ in old]
        return [self._keep(), *forgotten]

    def ended(self, result: Mapping[str, Any] | None, refused: str | None) -> Keep:
        """The record with what came of it: the numbers of the answer, or the code of the refusal."""
        if refused is not None:
            self._value["refused"] = refused
        elif result is not None:
            self._value["result"] = {name: value for name, value in result.items() if isinstance(value, int)}
        return self._keep()

    def _keep(self) -> Keep:
        return Keep(SHELF, self._key, json.dumps(self._value, separators=(",", ":")).encode())


def _shown(name: str, value: Any) -> Any:
    if name in _HIDDEN:
        return "(not kept)"
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…"
    if isinstance(value, Mapping) and len(value) <= ITEMS_MAX:
        return {str(key)[:TEXT_MAX]: _shown(str(key), inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list) and len(value) <= ITEMS_MAX and all(isinstance(item, str) for item in value):
        return [_shown("", item) for item in value]
    if isinstance(value, int | float):
        return value
    return f"({len(value)} items)"
