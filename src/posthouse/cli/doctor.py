"""posthouse doctor: is everything well?"""

from __future__ import annotations

import click

from ..errors import StoreError
from .option import pass_session
from .root import Command
from .session import FOUND, Json, Session


@click.command("doctor", cls=Command)
@click.option("--quick", is_flag=True, help="Leave out what reads the whole file and the whole journal.")
@pass_session
def doctor(session: Session, quick: bool) -> None:
    """Check the store, its journal, disk, clock, permissions and socket.

    Exit code 4 if something is broken.
    """
    found = _examine(session, quick)
    if session.json:
        session.emit(found)
    else:
        session.table(
            ("", "CHECK", "DETAIL"),
            [(each["status"], each["check"], each["detail"]) for each in found["checks"]],
            "",
        )
    if not found["ok"]:
        click.get_current_context().exit(FOUND)


def _examine(session: Session, quick: bool) -> Json:
    from ..control.doctor import of_surroundings, summary

    config = session.config()
    # Looked at first: opening the store clears a dead server's socket away.
    around = of_surroundings(config)
    try:
        found = session.call("doctor", quick=quick)
    except StoreError as error:
        # A store that cannot be opened is what a doctor is called for.
        return summary(None, [{"check": "open", "status": "fail", "detail": str(error)}, *around])
    stale = [each for each in around if each["check"] == "socket" and each["status"] == "warn"]
    found["checks"] = [each for each in found["checks"] if not stale or each["check"] != "socket"] + stale
    return found
