"""Checks of a lake: the journal's files against what was taken in, and what they still hold of a mailbox.

In: a journal, and the segments that the lake has. Out: what does not agree, as kind, place and sentence. Nothing is
changed. ``proof`` holds the table of events against the segments, ``agreement`` the other tables against it and each
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import InvalidInput
from .bronze import File, Journal, Listing, Segment, arrow_fs, open_place
from .finding import findings
from .ledger import Plan, State
from .lineage import Lineage

Discrepancy = tuple[str, str, str]
FORGOTTEN_MAX = 10
"""How many mailboxes that are forgotten are told by their names."""


class Verified(NamedTuple):
    """What a check came to."""

    found: list[Discrepancy]
    untold: list[str]
    """What could not be checked, and who is forgotten, as sentences."""


def need_journal(place: str) -> None:
    """InvalidInput where there is no folder with a journal; nothing is listed or made."""
    system, root = open_place(place)
    if system.get_file_info(root).type != arrow_fs().FileType.Directory:
        raise InvalidInput(f"{place.rstrip('/')} is no folder with a journal")


def lacking(journal: Journal, files: Sequence[File], taken: Sequence[Segment] | None) -> int:
    """How many of the segments that were taken in are not among a journal's files; None: nobody knows which they are.

    InvalidInput where the journal has no file at all: so looks a folder on which the journal's disk is not mounted.
    """
    if not files and (taken is None or taken):
        many = len(taken) if taken else "some"
        raise InvalidInput(
            f"there is no segment in {journal.place}, and the lake has taken in {many}: is that the journal, and is it"
            " mounted?"
        )
    there = {(file.node, file.name) for file in files}
    return sum((segment.node, segment.name) not in there for segment in taken or ())


def held_by_segments(journal: Journal, files: Iterable[File], mailbox: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Which of these files still hold rows of a mailbox, and those of which nobody can tell."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found, unread = [], []
    for file in files:
        try:
            with journal.open(file) as source:
                column = pq.read_table(source, columns=["mailbox"]).column("mailbox")
            # A column of something else than texts is not compared: that is no segment that could be read.
            rows = pc.sum(pc.equal(column, mailbox)).as_py() or 0
        except (pa.ArrowException, OSError, ValueError, KeyError):
            unread.append(f"node={file.node}/{file.name}")
            continue
        if rows:
            found.append({"segment": f"node={file.node}/{file.name}", "events": rows})
    return found, unread


def forgotten(state: State) -> list[str]:
    """Who is forgotten, in a sentence, if anybody is: what the books leave out of them is held against nothing."""
    names = state.forgotten
    if not names:
        return []
    if len(names) == 1:
        return [f"The mailbox {names[0]} is forgotten: the books leave out its rows, also those to come."]
    whom = f"{len(names)} mailboxes" if len(names) > FORGOTTEN_MAX else f"The mailboxes {', '.join(names)}"
    return [f"{whom} are forgotten: the books leave out their rows, also those to come."]


def unfinished(state: State, plan: Plan | None) -> Iterator[Discrepancy]:
    """A batch that was begun and not committed: the tables may be of two minds."""
    if plan is not None and plan.batch > state.batch:
        yield "unfinished", "lake", f"batch {plan.batch} was begun and not committed: run the books"


def verify_files(
    journal: Journal, taken: Sequence[Segment], lineage: Lineage, listing: Listing, looked: Sequence[Segment]
) -> Iterator[Discrepancy]:
    """The journal's files as they are now, against those that were taken in."""
    known = {(segment.node, segment.name): segment for segment in taken}
    for each in findings(looked, listing.foreign, lineage):
        yield each.kind, f"node {each.node}" if each.node else journal.place, each.detail
    for segment in looked:
        before = known.pop((segment.node, segment.name), None)
        if before is not None and not _is_same(before, segment):
            sizes = before.size_bytes, segment.size_bytes
            more = "" if sizes[0] == sizes[1] else f": it had {sizes[0]} bytes, and has {sizes[1]}"
            yield "altered", f"node={segment.node}/{segment.name}", f"it is not the file that was taken in{more}"
    for node, name in known:
        yield "missing", f"node={node}/{name}", "it was taken in and is not there any more"


def as_taken(taken: Iterable[Segment], files: Iterable[File], looked: Iterable[Segment]) -> dict[tuple[str, str], File]:
    """The files that are as they were when they were taken in, as far as that can be seen, by node and name."""
    known = {(segment.node, segment.name): segment for segment in taken}
    found = {}
    for file, segment in zip(files, looked, strict=True):
        before = known.get((file.node, file.name))
        if before is not None and _is_same(before, segment):
            found[file.node, file.name] = file
    return found


def _is_same(before: Segment, now: Segment) -> bool:
    """Whether a file is the one that was taken in. Where it has no chain, only its size and its offsets tell."""
    told = [(each.chain, each.ranges, each.size_bytes) for each in (before, now)]
    # A chain that did not hold then is among its faults.
    return told[0] == told[1] and (now.broken is None or now.broken in before.faults)
