"""Which lake, and where Spark runs: the options that every command of the books has that computes something.

In: --lake, --master, --remote, --conf and the configuration. Out: one value, and the job that it leads to. Spark is
started when the job first needs it. ``Finite`` is for numbers that other options of these commands take.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ..errors import InvalidInput, MissingExtra
from .session import Session

if TYPE_CHECKING:
    from ..control.operator import Report
    from ..pipeline.job import Job, Result
    from ..pipeline.session import Settings

F = TypeVar("F", bound=Callable[..., Any])
FOUND_MAX = 50
"""How many findings about files are told one by one."""


class Place(NamedTuple):
    """What was said on the command line; None where the configuration says it."""

    lake: str | None
    master: str | None
    remote: str | None
    conf: tuple[str, ...]


class Finite(click.FloatRange):
    """A number between two bounds. What is not a number is neither below the one nor above the other."""

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or fail."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as one argument ``at``."""

    @functools.wraps(function)
    def with_place(
        *arguments: Any,
        lake: str | None,
        master: str | None,
        remote: str | None,
        conf: tuple[str, ...],
        **named: Any,
    ) -> Any:
        return function(*arguments, at=Place(lake, master, remote, conf), **named)

    command: Callable[..., Any] = with_place
    for option in (
        click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark; may be repeated."),
        click.option("--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002."),
        click.option("--master", metavar="URL", help="A cluster's master, local[N] or sc://… [default: books.master]."),
        click.option("--lake", metavar="DIR", help="The lake's folder or URL [default: books.lake]."),
    ):
        command = option(command)
    return command


def journal_option(function: F) -> F:
    """Add --journal."""
    return click.option(
        "--journal", metavar="DIR", help="The folder or URL of the journal's segments [default: journal.dir]."
    )(function)


def journal_place(session: Session, place: str | None) -> str:
    """Where the segments are: as the command said, or as the configuration does."""
    if place is not None and not place.strip():
        raise InvalidInput("--journal is empty: it takes the folder or URL of the journal's segments")
    return place if place is not None else str(session.config().path("journal.dir"))


@contextlib.contextmanager
def progress(session: Session) -> Iterator[Report]:
    """A bar with events done, their rate and the time that is left, on a terminal only."""
    if session.json or not sys.stderr.isatty():
        yield lambda done, total, doing: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, begun = bar.add_task("", total=None, rate=""), time.monotonic()
        under_way = ""

        def report(done: int, total: int | None, doing: str) -> None:
            nonlocal task, begun, under_way
            if doing != under_way:
                # What comes next has a clock of its own, and may have no end that is known.
                bar.remove_task(task)
                task, begun, under_way = bar.add_task(doing, total=total, rate=""), time.monotonic(), doing
            took = time.monotonic() - begun
            rate = f"{done / took:,.0f}/s" if done and took > 0.1 else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield report


def _settings(session: Session, at: Place) -> Settings:
    from ..pipeline.session import Settings

    if at.master and at.remote:
        raise click.UsageError("--master and --remote exclude each other")
    given = {}
    for text in at.conf:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--conf takes NAME=VALUE, not {text[:80]!r}")
        given[name.strip()] = value
    remote, master = at.remote, at.master
    if not master and not remote:
        master = session.config().text_or_none("books.master")
    if is_remote(master):
        remote, master = master, None
    return Settings(master=master, remote=remote, conf=given, environment=dict(os.environ))


def is_remote(master: str | None) -> bool:
    """Whether what is given as a master names a server of Spark Connect."""
    return master is not None and master.startswith("sc://")


def need_packages() -> None:
    """MissingExtra where a package that the books are computed with is not installed."""
    for package in ("pyspark", "deltalake", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"the books need {package}: pip install posthouse[pipeline]")


@contextlib.contextmanager
def open_job(session: Session, at: Place, report: Report | None = None) -> Iterator[Job]:
    """The books of a lake, with a session that starts when it is needed and ends with the command.

    What fails in Spark meanwhile comes out as a StoreError.
    """
    need_packages()
    from ..pipeline import failure
    from ..pipeline import session as spark
    from ..pipeline.job import Job

    if at.lake is not None and not at.lake.strip():
        raise InvalidInput("--lake is empty: it takes the lake's folder or URL")
    settings = _settings(session, at)
    say = report or (lambda done, total, doing: None)
    with failure.told(), contextlib.ExitStack() as stack:

        def start() -> Any:
            say(0, None, "starting Spark")
            return stack.enter_context(spark.start(settings))

        yield Job(at.lake if at.lake is not None else session.config().text("books.lake"), start, report=say)


def summary(result: Result) -> str:
    """What a run did, in one line."""
    if not result.batches:
        return "Nothing is new."
    late = "; late segments came, and what they touch was computed anew" if result.late else ""
    return f"{result.events} events in {result.segments} segments, in {result.batches} batches{late}."
