"""Options that several commands share."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..mailbox.message import State
from .session import Session
from .text import parse_instant

F = TypeVar("F", bound=Callable[..., Any])

pass_session = click.make_pass_decorator(Session)


class When(click.ParamType[int]):
    """An ISO 8601 date or time, or a duration before (or after) now; becomes microseconds since 1970."""

    name = "time"

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it, or fail with an example."""
        if isinstance(value, int):
            return value
        found = parse_instant(value, datetime.datetime.now(datetime.UTC), ahead=self._ahead)
        if found is None or found < 0:
            self.fail(f"{value!r} is no time: write 2026-01-31, 2026-01-31T12:00:00Z, or 2h, 3d", param, ctx)
        return found


def desk(function: F) -> F:
    """--desk."""
    return click.option("--desk", metavar="NAME", help="Its desk, where several have one of that name.")(function)


def yes(function: F) -> F:
    """--yes."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(function)


def limit(default: int, what: str) -> Callable[[F], F]:
    """--limit with a default."""
    return click.option(
        "--limit", type=click.IntRange(1, 1_000), default=default, show_default=True, metavar="N", help=what
    )


def message_options(function: F) -> F:
    """What tells apart messages of the same id."""
    for name, what in (("sender", "sender"), ("mailbox", "mailbox"), ("desk", "desk")):
        function = click.option(f"--{name}", metavar="NAME", help=f"Its {what}, where several messages have that id.")(
            function
        )
    return function


_FILTERS: tuple[tuple[str, Any, str], ...] = (
    ("--desk", None, "Only of this desk."),
    ("--mailbox", None, "Only of this mailbox."),
    ("--lane", None, "Only of this lane."),
    ("--kind", None, "Only of this kind."),
    ("--sender", None, "Only from this sender."),
    ("--id", None, "Only with this id."),
    ("--reason", None, "Only with this reason code, such as attempts or deadline."),
    ("--error", None, "Only with an error like this one; numbers and ids in it do not matter."),
    ("--since", When(), "Only posted at or after this time (ISO 8601), or in the last 2h, 3d …"),
    ("--until", When(), "Only posted before this time (ISO 8601), or longer ago than 2h, 3d …"),
)


def filter_options(states: tuple[State, ...], *, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """The options that select messages, gathered into one parameter ``where``."""

    def add(function: F) -> F:
        added = [
            click.option(name, type=kind, metavar="TIME" if kind else "TEXT", help=what)
            for name, kind, what in _FILTERS
            if name not in without
        ]
        added.append(
            click.option(
                "--state",
                "states",
                type=click.Choice([str(state) for state in states]),
                multiple=True,
                help="Only in this state; may be repeated.",
            )
        )
        for option in reversed(added):
            function = option(function)
        return function

    return add


def where(values: dict[str, Any]) -> dict[str, Any]:
    """The filter options as the ``where`` of an operation: what was not given is left out."""
    plain = {name: value for name, value in values.items() if value is not None and value != ()}
    if "states" in plain:
        plain["states"] = list(plain["states"])
    return plain
