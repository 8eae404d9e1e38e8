"""Operations: what an operator can ask, by name, with plain parameters and plain results.

In: a name and JSON-able parameters. Out: a JSON-able result, or a ``Refused`` that says why not.
The same function answers whether it is called through a server's socket or on a store that the command
opened itself. An operation never prints, asks or reads the environment.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from ..config import Config
from ..errors import InvalidInput, StoreError
from ..mailbox.command import Command
from ..mailbox.message import Instant
from ..mailbox.outcome import Outcome
from ..mailbox.store import Store
from .record import Record

Json = dict[str, Any]
T = TypeVar("T")

PAGE_MAX = 1_000
"""Rows that one call may return at most."""
SCAN_PAGE = 100
"""Messages that a scan reads at a time: they come with their bodies."""


class Refused(NamedTuple):
    """Asked for correctly and not done: a stable code and a sentence."""

    code: str
    message: str
    detail: Json = {}  # noqa: RUF012 (never changed)


class Access(Protocol):
    """A store that an operation may read and, by commands, change. An ``Engine`` is one."""

    @property
    def store(self) -> Store:
        """For read queries."""

    @property
    def before_trim(self) -> list[Callable[[], None]]:
        """To be called before journal chunks are trimmed."""

    def call(self, *commands: Command) -> list[Outcome]:
        """Apply commands durably."""

    def maintain(self, job: Callable[[Store], T]) -> T:
        """Run a short job that has the store to itself."""

    def now(self) -> Instant:
        """The clock that commands are stamped by."""


class Changing(Protocol):
    """What changing a record on a shelf needs: an ``Access`` is one, and so is a ``Context``, which leaves its word."""

    @property
    def store(self) -> Store:
        """For read queries."""

    def call(self, *commands: Command) -> list[Outcome]:
        """Apply commands durably."""


class Stopped(StoreError):
    """The operation was told to stop before it was done; what it did so far stays done."""

    code = "stopped"


class Context(NamedTuple):
    """What an operation works with."""

    access: Access
    config: Config
    by: str
    """Who asks: the holder in the journal of what he does."""
    report: Callable[[int, int | None, str], None]
    """Tell how far a long operation is: done, of how many (if known), doing what. Raises Stopped."""
    record: Record | None = None
    """Goes into the commits of what is changed; ``run`` provides it."""

    @property
    def store(self) -> Store:
        """For read queries."""
        return self.access.store

    def apply(self, command: Command) -> Outcome:
        """Apply one command durably."""
        return self.call(command)[0]

    def call(self, *commands: Command) -> list[Outcome]:
        """Apply commands durably, in one commit with the record of who asked for them."""
        keeps = self.record.keeps(commands, self.access.now()) if self.record is not None and commands else []
        return self.access.call(*commands, *keeps)[: len(commands)]


Answer = Json | Refused


class _Parameter(NamedTuple):
    kinds: tuple[type, ...]
    required: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """A named function and what may be passed to it."""

    name: str
    function: Callable[..., Answer]
    parameters: Mapping[str, _Parameter]


OPERATIONS: dict[str, Operation] = {}


def operation(name: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function ``(context, *, …) -> Answer``; its annotations are what a caller may pass."""

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        assert name not in OPERATIONS
        hints = typing.get_type_hints(function)
        parameters = {
            p.name: _Parameter(_kinds(hints[p.name]), p.default is p.empty)
            for p in list(inspect.signature(function).parameters.values())[1:]
        }
        OPERATIONS[name] = Operation(name, function, parameters)
        return function

    return register


def _kinds(hint: Any) -> tuple[type, ...]:
    """The JSON types that an annotation allows; a whole number is allowed where a fraction is."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = tuple(typing.get_origin(member) or member for member in members)
    assert all(kind in (str, int, float, bool, list, dict, type(None)) for kind in kinds), hint
    return (*kinds, int) if float in kinds else kinds


def run(context: Context, name: str, parameters: Mapping[str, Any]) -> Answer:
    """Check the parameters and do it. InvalidInput: nothing was done."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise InvalidInput(f"unknown operation {name[:80]!r}{_near(name, list(OPERATIONS))}")
    for key, value in parameters.items():
        known = operation.parameters.get(key)
        if known is None:
            raise InvalidInput(f"{name}: unknown parameter {key[:80]!r}{_near(key, list(operation.parameters))}")
        # bool is an int to Python, but not to us.
        if type(value) not in known.kinds:
            allowed = ", ".join("null" if kind is type(None) else kind.__name__ for kind in known.kinds)
            raise InvalidInput(f"{name}: {key} must be {allowed}, not {type(value).__name__}")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise InvalidInput(f"{name}: {key} must be a list of texts")
    missing = [key for key, p in operation.parameters.items() if p.required and key not in parameters]
    if missing:
        raise InvalidInput(f"{name}: {', '.join(missing)} must be given")
    if not 1 <= parameters.get("limit", 1) <= 10**9:
        raise InvalidInput(f"{name}: limit must be between 1 and {10**9}: {parameters['limit']}")
    record = Record(context.store, context.by, name, parameters, context.config.seconds("audit.keep_s"))
    answer = operation.function(context._replace(record=record), **parameters)
    if record.written:
        refused = answer.code if isinstance(answer, Refused) else None
        context.access.call(record.ended(answer if isinstance(answer, dict) else None, refused))
    return answer


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
