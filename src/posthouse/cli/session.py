"""A session: one call of the command line, from its flags to its exit code.

In: flags and the environment. Out: one JSON document or tables on stdout, everything else on stderr.
Exit codes: 0 done, 1 refused or not found, 2 usage or configuration, 3 store, 4 a check found something.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..errors import ConfigError, InvalidInput, MissingExtra, PosthouseError
from .text import inert

if TYPE_CHECKING:
    from rich.console import Console

    from ..config import Config, Given
    from ..control.operator import Operator, Report

REFUSED = 1
USAGE = 2
STORE = 3
FOUND = 4

Json = dict[str, Any]


class Failure(Exception):
    """Ends the command with an exit code and one line (or JSON) on stderr."""

    def __init__(self, code: str, message: str, exit_code: int, detail: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code
        self.detail = detail or {}


def failure_of(error: PosthouseError | OSError) -> Failure:
    """What an error means for the exit code."""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return Failure("system", f"{error.strerror or error}{where}", REFUSED)
    ours = isinstance(error, InvalidInput | MissingExtra)
    return Failure(error.code, str(error), USAGE if ours else STORE)


@dataclass
class Session:
    """What the flags said, and the means to answer."""

    file: str | None = None
    flags: dict[str, Given] = field(default_factory=dict)
    json: bool = False

    def set(self, name: str, text: str, flag: str) -> None:
        """Note a flag that sets something."""
        from ..config import Given

        self.flags[name] = Given(text, flag)

    def config(self) -> Config:
        """The configuration; ConfigError if it is wrong."""
        from ..config import load

        return load(os.environ, Path.cwd(), self.flags, self.file)

    @contextlib.contextmanager
    def operator(self) -> Iterator[Operator]:
        """A connection to the server that holds the store, or the store itself."""
        from ..control.operator import Operator

        with contextlib.closing(Operator.connect(self.config())) as operator:
            yield operator

    def call(self, name: str, **parameters: Any) -> Json:
        """One operation by itself; a refusal ends the command."""
        with self.operator() as operator:
            return self.ask(operator, name, **parameters)

    def ask(self, operator: Operator, name: str, **parameters: Any) -> Json:
        """One operation of several on the same connection, with a progress bar if it takes long."""
        from ..control.operation import Refused

        with self.progress() as report:
            answer = operator.call(name, parameters, report)
        if isinstance(answer, Refused):
            raise Failure(answer.code, answer.message, REFUSED, answer.detail)
        return answer

    # Output

    def emit(self, document: Json) -> None:
        """The one JSON document of --json. ASCII, so that nothing in it can move a terminal."""
        click.echo(json.dumps(document, indent=2))

    @property
    def now(self) -> datetime.datetime:
        """For ages."""
        return datetime.datetime.now(datetime.UTC)

    def console(self) -> Console:
        """Where tables go. Not a terminal: wide, so that no cell is cut."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else 400
        return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False, soft_wrap=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
        """A table; columns that begin with ">" are numbers. Every cell is made inert."""
        if not rows:
            self.say(empty)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for column in columns:
            table.add_column(
                Text(column.removeprefix(">")), justify="right" if column.startswith(">") else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*(Text(inert(str(cell))) for cell in row))
        self.console().print(table)

    def facts(self, pairs: Sequence[tuple[str, object]]) -> None:
        """Names and values below each other; those without a value are left out."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in pairs:
            if value is not None and value != "":
                table.add_row(Text(inert(name)), Text(inert(str(value))))
        self.console().print(table)

    def say(self, text: str) -> None:
        """A line for people, made inert."""
        click.echo(inert(text))

    @contextlib.contextmanager
    def progress(self) -> Iterator[Report]:
        """A bar on stderr that appears with the first report, on a terminal only."""
        if self.json or not sys.stderr.isatty():
            yield lambda done, total, doing: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task("", total=None, visible=False)

        def report(done: int, total: int | None, doing: str) -> None:
            bar.update(task, completed=done, total=total, description=doing, visible=True)

        with bar:
            yield report

    def must_ask(self, yes: bool) -> bool:
        """Whether to ask before much is changed; a failure where nobody can be asked."""
        if yes:
            return False
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Failure("not_confirmed", "there is nobody to ask here: say --yes to do it without being asked", USAGE)
        return True

    def confirm(self, question: str) -> None:
        """Ask; "no" ends the command."""
        if not click.confirm(inert(question), err=True):
            raise Failure("not_confirmed", "nothing was done", REFUSED)


def end(failure: Failure, as_json: bool) -> NoReturn:
    """Say what went wrong on stderr in one line, and exit."""
    if as_json:
        document = {"error": {"code": failure.code, "message": str(failure), **failure.detail}}
        click.echo(json.dumps(document), err=True)
    else:
        click.echo(f"posthouse: {inert(str(failure))}", err=True)
    sys.exit(failure.exit_code)


def parse_set(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set takes NAME=VALUE, not {text[:80]!r}")
    return name.strip(), value
