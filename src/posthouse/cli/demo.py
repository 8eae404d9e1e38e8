"""posthouse demo: a server with everything in it, and synthetic users and faults, in a folder of its own.

In: a folder, new or of a demo before. Out: what ``posthouse up`` prints, and a word on what to look at. It is one
process: whoever kills it kills the server and its users together, and the next start goes on where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import click

from ..errors import MissingExtra
from . import up
from .option import pass_session
from .root import Command
from .session import USAGE, Failure, Json, Session

_SHORT = "Short for --set "
NOISY = ("agent", "gateway", "peer")
"""Parts that log what the demo's faults make of every message; of them only errors are shown, unless all is."""


@click.command("demo", cls=Command)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("posthouse-demo"),
    show_default=True,
    help="Where the demo keeps everything: a new folder, or that of a demo before, which goes on.",
)
@click.option(
    "--pace",
    metavar="TIMES",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    show_default=True,
    help="How many times as fast as usual people, agents and faults come.",
)
@click.option("--seed", metavar="TEXT", default="demo", show_default=True, help="What chance begins with.")
@click.option(
    "--for", "for_s", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="Stop by itself after so long."
)
@click.option("--no-books", is_flag=True, help=f"{_SHORT}books.enabled=false: no Spark, no Java.")
@click.option("--log-format", metavar="FORMAT", help=f"{_SHORT}log.format=FORMAT: auto, text or json.")
@click.option("--log-level", metavar="LEVEL", help=f"{_SHORT}log.level=LEVEL: debug, info, warning or error.")
@pass_session
def demo(
    session: Session,
    folder: Path,
    pace: float,
    seed: str,
    for_s: float | None,
    no_books: bool,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Start a demo: every part of a server, with synthetic users and faults.

    Agents write to each other and go offline; people talk to a handler that breaks on some of what they say, over a
    channel that breaks, too; traders trade and leave; the books are kept of it all. It runs until SIGTERM or Ctrl-C.
    The same command goes on with the same folder, however the demo ended. Remove the folder to begin anew.
    """
    if session.file is not None:
        raise Failure("usage", "a demo has a configuration file of its own, in its folder: leave --config out", USAGE)
    if no_books:
        session.set("books.enabled", "false", "--no-books")
    try:
        from ..demo import town
        from ..demo.cast import Cast
        from ..demo.place import Place
        from ..demo.rhythm import Rhythm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "posthouse":
            raise
        raise MissingExtra(f"the demo needs {error.name}: pip install posthouse[all]") from error
    place = Place(folder.absolute())
    is_new = place.prepare()
    session.file = str(place.config)
    bound, path = town.bind(), town.new_path()
    place.write_town(bound.getsockname()[1], path)

    @contextlib.asynccontextmanager
    async def beside(summary: Json, end: Callable[[str], None]) -> AsyncIterator[None]:
        if for_s is not None:
            asyncio.get_running_loop().call_later(for_s, end, "its time is over")
        if logging.getLogger("posthouse").level > logging.DEBUG:
            for name in NOISY:
                logging.getLogger(f"posthouse.{name}").setLevel(logging.ERROR)
        if not session.json:
            _introduce(session, folder, is_new)
        async with Cast(place, session.config(), summary, (bound, path), Rhythm(seed, pace)):
            yield

    with bound:
        up.serve(session, log_format=log_format, log_level=log_level, beside=beside)


def _introduce(session: Session, folder: Path, is_new: bool) -> None:
    session.say("")
    session.say(f"The demo {'begins' if is_new else 'goes on'}. Open the console; or, in another terminal:")
    for words, what in (
        (f"cd {folder}", ""),
        ("posthouse mailbox ls", "what waits, and for whom"),
        ("posthouse dead ls", "what could not be handled"),
        ("posthouse books show", "what became of everything, once the books were kept"),
    ):
        session.say(f"  {words:<22}{what}".rstrip())
    session.say("Ctrl-C stops it; the same command goes on, also after a kill.")
