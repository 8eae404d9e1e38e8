"""Operations on the books: how they stand, what they say in short, their findings, and bringing them up to date.

In: a span of time, a desk, a kind. Out: plain values read from the lake, without Spark; where a server keeps the books,
a turn of its own process. What was read is kept for as long as the tables are the same, so that a page that is looked
at again costs nothing.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..errors import BadFile, InvalidInput, MissingExtra
from ..mailbox.command import Keep
from ..mailbox.message import check_name
from . import view
from .operation import PAGE_MAX, Answer, Context, Json, Refused, operation

SHELF = "books"
DIGESTS_MAX = 32
REMOTE_S = 30.0
"""How long what was read of a lake elsewhere is believed: its tables cannot be looked at for nothing."""

Report = Callable[[int, int | None, str], None]


class Keeper(Protocol):
    """Whoever keeps the books beside a server."""

    def standing(self) -> Json:
        """``running``, ``every_s``, ``well_at``, ``failed`` and what became of the ``last`` turn; from any thread."""

    def run_now(self, report: Report) -> Json:
        """Bring the books up to date, on a thread that may wait; what was done."""


_keepers: weakref.WeakKeyDictionary[Any, Keeper] = weakref.WeakKeyDictionary()
_lacking: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_digests: OrderedDict[tuple[Any, ...], Json] = OrderedDict()
_reading = threading.Lock()


def keeping(access: object, keeper: Keeper | None) -> None:
    """A keeper of the books runs beside this engine; None: no more."""
    if keeper is None:
        _keepers.pop(access, None)
    else:
        _keepers[access] = keeper


def not_keeping(access: object, lacking: str) -> None:
    """The books were to be kept beside this engine and cannot be: what they lack, in one line."""
    _lacking[access] = lacking


@operation("books.status")
def status(context: Context) -> Answer:
    """Where the books are, whether this server keeps them or what they lack, and what became of the last turn."""
    keeper = _keepers.get(context.access)
    found: Json = {"running": False, "every_s": None, "last": None} if keeper is None else keeper.standing()
    last = found["last"]
    return {
        "lake": context.config.text("books.lake"),
        "kept": keeper is not None,
        "lacking": _lacking.get(context.access),
        "running": found["running"],
        "every_s": found["every_s"],
        "last": None if last is None else {**_done(last["done"]), **_told(last)},
    }


@operation("books.summary")
def summary(context: Context, *, since: int | None = None, until: int | None = None, desk: str | None = None) -> Answer:
    """What the books say of a span: outcomes that add up, findings, latency, waits, and replays."""
    if desk is not None:
        check_name("desk", desk)
    _check_span(since, until)
    lake = context.config.text("books.lake")
    key = (lake, since, until, desk, _mark(lake))
    with _reading:
        found = _digests.get(key)
        if found is None:
            try:
                from ..pipeline.digest import digest
                from ..pipeline.lake import Lake

                found = digest(Lake(lake), since, until, desk)
            except (BadFile, MissingExtra) as error:
                return Refused("no_books", str(error))
            _digests[key] = found
            while len(_digests) > DIGESTS_MAX:
                _digests.popitem(last=False)
    return {"lake": lake, **found}


@operation("books.findings")
def findings(
    context: Context,
    *,
    kind: str | None = None,
    desk: str | None = None,
    since: int | None = None,
    until: int | None = None,
    limit: int = 50,
) -> Answer:
    """Findings of a span with the ids and the offsets that prove them; those without a time are of every span."""
    for field, value in (("kind", kind), ("desk", desk)):
        if value is not None:
            check_name(field, value)
    _check_span(since, until)
    limit = min(limit, PAGE_MAX)
    try:
        from ..pipeline.digest import findings as read
        from ..pipeline.lake import Lake

        found = read(Lake(context.config.text("books.lake")), kind, desk, limit + 1, since, until)
    except (BadFile, MissingExtra) as error:
        return Refused("no_books", str(error))
    return {"findings": found[:limit], "more": len(found) > limit}


@operation("books.run")
def run(context: Context) -> Answer:
    """Export what the journal has, and bring the books up to date; the process of the server's keeper does it."""
    from . import journal

    keeper = _keepers.get(context.access)
    if keeper is None:
        why = _lacking.get(context.access, "set books.enabled, or run `posthouse books run` yourself")
        return Refused("not_kept", f"this server does not keep the books: {why}")
    asked = {"at": context.access.now(), "by": context.by}
    context.apply(Keep(SHELF, "asked", json.dumps(asked, separators=(",", ":")).encode()))
    context.report(0, None, "exporting the journal")
    exported = journal.export_now(context)
    assert isinstance(exported, dict)
    return {"exported": exported["events"], **_done(keeper.run_now(context.report))}


def _check_span(since: int | None, until: int | None) -> None:
    if since is not None and until is not None and since >= until:
        raise InvalidInput("since must be before until")


def _done(done: Json | None) -> Json:
    """What a turn did, without the names of every file."""
    return {
        "events": 0 if done is None else done["events"],
        "segments": 0 if done is None else done["segments"],
        "rejected": 0 if done is None else len(done["rejected"]),
    }


def _told(last: Json) -> Json:
    return {"at": view.instant(last["at"]), "took_s": round(last["took_s"], 3), "error": last["error"]}


def _mark(lake: str) -> tuple[Any, ...]:
    """What changes when a table of the lake does: the newest entries of their logs."""
    if "://" in lake and not lake.startswith("file://"):
        return (int(time.monotonic() / REMOTE_S),)
    folder = Path(lake.removeprefix("file://"))
    return tuple(_newest(log) for log in sorted(folder.glob("*/_delta_log")))


def _newest(log: Path) -> tuple[str, int, int]:
    """The newest entry of a table's log. In a lake that was made again it may have the same name, and is another file.

    A copy may come with the time of what it was made of; that of its last change is its own.
    """
    name = max((entry.name for entry in log.glob("*.json")), default="")
    try:
        told = (log / name).stat()
    except OSError:
        # The lake is being removed at this moment.
        return name, 0, 0
    return name, told.st_ino, told.st_ctime_ns
