"""The root of the command line: its groups, loaded when they are used, and what becomes of errors."""

from __future__ import annotations

import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from ..errors import PosthouseError
from .session import USAGE, Failure, Session, end, failure_of, parse_set

BUG = 70
"""The exit code of what nobody foresaw (EX_SOFTWARE)."""
INTERRUPTED = 130

COMMANDS: dict[str, str] = {
    "up": "Start the server and keep it running until SIGTERM or Ctrl-C.",
    "demo": "Start a demo: every part of a server, with synthetic users and faults.",
    "relay": "The relay: run it alone, and say which keys may connect.",
    "gateway": "The gateway: run it alone, see how it stands, try it.",
    "peer": "The peer: trade messages over direct streams to their other party.",
    "agent": "An agent: send and receive encrypted messages through a relay.",
    "mailbox": "Mailboxes: how full, how old, pause, resume, purge.",
    "lane": "Lanes: why one is not moving, and unblocking it.",
    "message": "Single messages: show, history, post, cancel, set aside.",
    "dead": "Dead letters: grouped by error, shown, redriven, set aside, purged.",
    "alerts": "Alert rules: how each stands, and a trial of who is told.",
    "journal": "The journal: export it, verify it, watch it.",
    "books": "The books: was every message delivered, and if not, why; computed on Spark from the journal.",
    "snapshot": "Snapshots: copy a working store, make a store from a copy.",
    "import": "Take over what another program kept: a Pinch relay's queue, OpenClaw's queues, a Klingon node's trades.",
    "token": "Tokens: who may use the gateway's HTTP API and the console, and for what.",
    "doctor": "Check the store, its journal, disk, clock, permissions and socket.",
    "config": "The configuration: each value and where it came from.",
    "completion": "Print the completion script of a shell.",
}
"""Each command, which has a module of its name, and the first line of its help (a test compares them):
so that listing them loads none of them."""


def _session(context: click.Context) -> Session:
    return context.find_root().ensure_object(Session)


def _take_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _session(context).file = value


def _take_store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _session(context).set("store.path", value, "--store")


def _take_sets(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> None:
    for text in value:
        name, setting = parse_set(text)
        _session(context).set(name, setting, "--set")


def _take_json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        _session(context).json = True


def common_options() -> list[click.Option]:
    """The options of every command; they may stand before or behind its name."""
    return [
        click.Option(
            ["--config"],
            metavar="FILE",
            help="The configuration file [default: posthouse.toml, if there is one].",
            expose_value=False,
            callback=_take_file,
        ),
        click.Option(
            ["--store"],
            metavar="FILE",
            help="The store's database file; short for --set store.path=FILE.",
            expose_value=False,
            callback=_take_store,
        ),
        click.Option(
            ["--set"],
            metavar="NAME=VALUE",
            multiple=True,
            help="Set anything that the configuration file can set; may be repeated.",
            expose_value=False,
            callback=_take_sets,
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            help="Print one JSON document and nothing else; errors are JSON on stderr.",
            expose_value=False,
            # Before --version, which obeys it.
            is_eager=True,
            callback=_take_json,
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            help="Show where an unexpected error came from.",
            expose_value=False,
        ),
    ]


class Command(click.Command):
    """A command with the common options behind its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.params += common_options()


class Group(click.Group):
    """A group whose commands have the common options and are listed as they were written."""

    command_class = Command

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.invoke_without_command:
            self.params += common_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The most used ones first, not by the alphabet."""
        return list(self.commands)


class Root(click.Group):
    """Finds commands in their modules, and turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table: the most important ones first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the module of a command when it is asked for."""
        if cmd_name not in COMMANDS:
            return None
        # A word of the language cannot be a module's name as it is.
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = getattr(importlib.import_module(f".{name}", __package__), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of our output that left, as ``head`` does, is no failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # What is still buffered would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "posthouse",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; exits with the code that ``session`` lists."""
        words = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in words
        try:
            code = super().main(words, "posthouse", "_POSTHOUSE_COMPLETE", standalone_mode=False, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except Failure as failure:
            end(failure, as_json)
        except (PosthouseError, OSError) as error:
            end(failure_of(error), as_json)
        except click.exceptions.NoArgsIsHelpError as error:
            if as_json:
                end(Failure("usage", "which command? --help lists them", USAGE), as_json)
            click.echo(error.format_message(), err=True)
            sys.exit(USAGE)
        except click.UsageError as error:
            where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
            end(Failure("usage", error.format_message() + where, USAGE), as_json)
        except click.ClickException as error:
            end(Failure("usage", error.format_message(), USAGE), as_json)
        except (click.Abort, KeyboardInterrupt):
            end(Failure("interrupted", "interrupted", INTERRUPTED), as_json)
        except Exception as error:
            if "--debug" in words:
                raise
            line = f"a mistake in Posthouse ({type(error).__name__}: {error}); --debug shows where"
            end(Failure("internal", line, BUG), as_json)


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    if _session(context).json:
        _session(context).emit({"version": version()})
    else:
        click.echo(f"posthouse {version()}")
    context.exit()


def version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("posthouse")
    except PackageNotFoundError:
        return "unknown"


@click.group(
    cls=Root,
    params=[
        *common_options(),
        click.Option(
            ["--version"],
            is_flag=True,
            help="Print the version.",
            expose_value=False,
            callback=_print_version,
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.pass_context
def main(context: click.Context) -> None:
    """Durable messaging for when the other side is away.

    The commands do the same whether a server (`posthouse up`) holds the store or none does.

    Exit codes: 0 done, 1 refused or not found, 2 usage or configuration, 3 store, 4 a check found something.
    """
    context.ensure_object(Session)
