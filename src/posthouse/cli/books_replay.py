"""posthouse books replay: what another policy would have done with what was recorded."""

from __future__ import annotations

import click

from .books_place import Place, open_job, place_options
from .option import pass_session
from .root import Command
from .session import Failure, Session


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
    from ..pipeline.replay import Policy, policy_of, run

    tried = [Policy(), *dict.fromkeys(map(policy_of, policies))]
    with open_job(session, at) as job:
        rows = run(job.spark, job.ledger, desk, tried)
    if session.json:
        session.emit({"replays": rows})
        return
    if not rows[0]["posted"]:
        raise Failure("not_found", f"the books know no message of the desk {desk}", 3)
    most = max(row["posted"] for row in rows)
    session.table(
        ("POLICY", "", "DELIVERED", "EXPIRED", "DEAD", "REFUSED", "ATTEMPTS", "WAIT", ""),
        [
            (
                row["policy"],
                "exact" if row["exact"] else "modelled",
                str(row["delivered"]),
                str(row["expired"]),
                str(row["dead"]),
                str(row["refused"]),
                str(row["attempts"]),
                "–" if row["wait"] is None else f"{row['wait'] / 1e6:.3f} s",
                "█" * round(20 * row["delivered"] / most),
            )
            for row in rows
        ],
        "",
    )
