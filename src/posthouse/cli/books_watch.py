"""posthouse books watch: the books kept up to date by one process, until a signal ends it.

In: a journal that grows. Out: the lake's tables, and a line for each turn that found something. Ctrl-C and SIGTERM end
it alike and at once: what is under way is left to the next run, which does it again and doubles nothing.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from ..errors import InvalidInput, PosthouseError, StoreFull, StoreHeld, StoreUnavailable
from .books_place import (
    FOUND_MAX,
    Finite,
    Place,
    journal_option,
    journal_place,
    open_job,
    place_options,
    progress,
    summary,
)
from .option import pass_session
from .root import Command
from .session import Session, failure_of
from .text import inert

if TYPE_CHECKING:
    from ..pipeline.finding import Finding
    from ..pipeline.job import Result


EVERY_S_MAX = 86_400
"""Whoever looks less often than once a day has no use for a warm session."""


def attach(group: click.Group) -> None:
    """Add the command to the group of the books."""
    group.add_command(watch)


@click.command("watch", cls=Command)
@journal_option
@place_options
@click.option(
    "--every", type=Finite(1, EVERY_S_MAX), default=60.0, show_default=True, metavar="S", help="Seconds between."
)
@pass_session
def watch(session: Session, journal: str | None, at: Place, every: float) -> None:
    """Keep taking in what is new, with one warm Spark session, until SIGTERM or Ctrl-C.

    With --json each turn that found something is one line, and one that was put off is one on stderr. A turn that finds
    the lake in use is left out; after one that failed in Spark, or for want of room on the disk, Spark is started anew.
    Once a turn has ended well, a journal that cannot be read is waited for, too.
    """
    from ..pipeline import failure

    place = journal_place(session, journal)
    told: set[Finding] = set()
    well = False
    with contextlib.suppress(KeyboardInterrupt), _ended_alike(), progress(session) as report:
        while True:
            try:
                with open_job(session, at, report) as job:
                    while True:
                        try:
                            with failure.told():
                                result = job.run(place)
                        except StoreHeld as error:
                            _put_off(session, error, every)
                        except (InvalidInput, OSError) as error:
                            if not well:
                                raise
                            _put_off(session, error, every)
                        else:
                            well = True
                            _tell(session, result, told)
                        report(0, None, "waiting for more")
                        time.sleep(every)
            except (StoreUnavailable, StoreFull) as error:
                # It may be Spark itself that failed: the next turn has another one.
                _put_off(session, error, every)
                report(0, None, "waiting for more")
                time.sleep(every)


def _put_off(session: Session, error: PosthouseError | OSError, every: float) -> None:
    failure = failure_of(error)
    if session.json:
        document = {"error": {"code": failure.code, "message": str(failure), "again_s": every}}
        click.echo(json.dumps(document), err=True)
        return
    click.echo(f"posthouse: {inert(str(failure))}; trying again in {every:g} s", err=True)


def _tell(session: Session, result: Result, told: set[Finding]) -> None:
    """What a turn did. Gaps in the journal, files that were not taken in and the like are named when first met."""
    news = [each for each in result.findings if each not in told]
    told.clear()
    told.update(result.findings)
    if session.json:
        if result.batches or news:
            click.echo(json.dumps(result.plain()))
        return
    for each in news[:FOUND_MAX]:
        session.say(f"{each.kind}{f' of node {each.node}' if each.node else ''}: {each.detail}")
    if len(news) > FOUND_MAX:
        session.say(f"… and {len(news) - FOUND_MAX} more; `books show anomalies` has all.")
    if result.batches:
        session.say(summary(result))


@contextlib.contextmanager
def _ended_alike() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: Spark has a handler of its own for that, which cancels what is at work."""

    def end(number: int, frame: FrameType | None) -> None:
        usual = signal.getsignal(signal.SIGINT)
        if not callable(usual):
            raise KeyboardInterrupt
        usual(number, frame)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
