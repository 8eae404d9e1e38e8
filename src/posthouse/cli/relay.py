"""posthouse relay: the relay alone, and which keys may connect to it."""

from __future__ import annotations

from typing import Any

import click

from . import option, up
from .option import pass_session
from .root import Group
from .session import Session
from .text import short_instant


@click.group(cls=Group, invoke_without_command=True)
@up.options
@click.pass_context
def relay(context: click.Context, /, **given: Any) -> None:
    """The relay: run it alone, and say which keys may connect.

    Without a command it starts the relay and keeps it running until SIGTERM or Ctrl-C, as `posthouse up` does with
    everything that is configured. SIGHUP makes it read its certificate again.
    """
    session = context.find_object(Session)
    assert session is not None
    if context.invoked_subcommand is not None:
        return
    up.alone(session, "relay", "posthouse relay")
    up.serve(session, **given)


@relay.group("keys", cls=Group)
def keys() -> None:
    """Keys of agents: list, approve, revoke."""


@keys.command("ls")
@click.option("--state", type=click.Choice(["pending", "approved", "revoked"]), help="Only keys in this state.")
@click.option("--after", metavar="KEY", help="Only keys behind this one: the last of the page before.")
@option.limit(50, "How many at most.")
@pass_session
def ls(session: Session, state: str | None, after: str | None, limit: int) -> None:
    """List the keys that registered or that an operator named."""
    found = session.call("relay.keys", state=state, after=after or "", limit=limit)
    if session.json:
        session.emit(found)
        return
    session.table(
        ["STATE", "REGISTERED", "CHANGED", "BY", "CODE", "ADDRESS"],
        [
            (
                key["state"],
                short_instant(key["registered_at"]),
                short_instant(key["changed_at"]),
                key["by"],
                key["claim_code"] or "",
                key["address"],
            )
            for key in found["keys"]
        ],
        "No key has registered.",
    )
    if not found["locked"]:
        session.say("The relay is open: every key may connect that is not revoked (relay.locked).")


@keys.command("approve")
@click.argument("key")
@pass_session
def approve(session: Session, key: str) -> None:
    """Let a key connect; KEY is an address, or the public key in base64 or hex."""
    _say(session, session.call("relay.approve", key=key), "may connect")


@keys.command("revoke")
@click.argument("key")
@pass_session
def revoke(session: Session, key: str) -> None:
    """Let a key connect no more, and close its connection at once."""
    _say(session, session.call("relay.revoke", key=key), "may connect no longer")


def _say(session: Session, done: dict[str, object], what: str) -> None:
    if session.json:
        session.emit(done)
    else:
        was = f"it was {done['was'] or 'unknown'}" if done["changed"] else "as before"
        session.say(f"{done['address']} {what} ({was}).")
