"""posthouse books replay: what another policy would have done with what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ..errors import InvalidInput
from ..pipeline.plot import span
from .books_place import Place, need_packages, open_job, place_options, progress
from .option import pass_session
from .root import Command
from .session import Session

MARKS = {"delivered": "█", "expired": "▒", "dead": "▓", "refused": "░"}
REST = "·"
WIDE = 30


def attach(group: click.Group) -> None:
    """Add the command to the group of the books."""
    group.add_command(replay)


@click.command("replay", cls=Command)
@click.option("--desk", metavar="DESK", required=True, help="The desk whose posts are replayed.")
@click.option(
    "--policy",
    "policies",
    metavar="CHANGES",
    multiple=True,
    required=True,
    help="Such as 'capacity=100, ttl_s=3600, attempts_max=3, retry=[1, 5]'; may be repeated.",
)
@place_options
@pass_session
def replay(session: Session, desk: str, policies: tuple[str, ...], at: Place) -> None:
    """Show what another policy would have made of a desk's recorded posts, side by side with what happened.

    Exact for one change that is tighter than what was recorded, of capacity or ttl_s; everything else is
    modelled, and says so. The rows are kept in the table `replays`.
    """
    need_packages()
    from ..pipeline.replay import Policy, policy_of, run

    changes = dict.fromkeys(map(policy_of, policies))
    if Policy() in changes:
        # What happened has its row in any case.
        raise InvalidInput("a --policy is empty or changes nothing: it takes changes such as 'capacity=100'")
    with progress(session) as report, open_job(session, at, report) as job:
        # Before Spark is started, and the lake locked.
        job.need_books()
        rows = run(job.spark, job.ledger, desk, [Policy(), *changes], report)
    if session.json:
        session.emit({"replays": rows})
        return
    session.table(
        ("POLICY", "", ">DELIVERED", ">EXPIRED", ">DEAD", ">REFUSED", ">ATTEMPTS", ">WAIT", "OF ALL POSTS"),
        [
            (
                row["policy"],
                "exact" if row["exact"] else "modelled",
                *(row[name] for name in (*MARKS, "attempts")),
                "–" if row["wait"] is None else span(row["wait"]),
                bar(row),
            )
            for row in rows
        ],
        "",
    )
    session.say("  ".join(f"{mark} {name}" for name, mark in (*MARKS.items(), ("unfinished or cancelled", REST))))


def bar(row: Mapping[str, Any]) -> str:
    """What became of all posts, as a bar of WIDE characters; whatever happened at all has one of them."""
    posted = max(row["posted"], 1)
    counts = {mark: row[name] for name, mark in MARKS.items()}
    counts[REST] = max(row["posted"] - sum(counts.values()), 0)
    cells = {mark: max(round(WIDE * count / posted), 1) if count else 0 for mark, count in counts.items()}
    most = max(cells, key=lambda mark: cells[mark])
    cells[most] += WIDE - sum(cells.values())
    return "".join(mark * count for mark, count in cells.items())
