"""posthouse token: who may use the gateway's HTTP API."""

from __future__ import annotations

import click

from .option import pass_session
from .root import Group
from .session import Session
from .text import age


@click.group(cls=Group)
def token() -> None:
    """Tokens: who may use the gateway's HTTP API, and for what."""


@token.command("add")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="What it allows: inbound, outbound, status or events; may be repeated.",
)
@click.option("--tenant", metavar="NAME", help="Only for messages of this tenant [default: of every one].")
@pass_session
def add(session: Session, name: str, scopes: tuple[str, ...], tenant: str | None) -> None:
    """Make a token and print it. It is shown this once and kept nowhere."""
    answer = session.call("token.add", called=name, scopes=list(scopes), tenant=tenant)
    if session.json:
        session.emit(answer)
    else:
        click.echo(answer["token"])


@token.command("ls")
@pass_session
def ls(session: Session) -> None:
    """List the tokens by name, without what they are made of."""
    answer = session.call("token.ls")
    if session.json:
        session.emit(answer)
        return
    rows = [
        (
            row["name"],
            ", ".join(row["scopes"]),
            row["tenant"] or "every one",
            age(row["made_at"], session.now),
            row["by"],
        )
        for row in answer["tokens"]
    ]
    session.table(("name", "scopes", "tenant", ">made ago", "by"), rows, "There are no tokens.")


@token.command("revoke")
@click.argument("name")
@pass_session
def revoke(session: Session, name: str) -> None:
    """Refuse a token from now on, also on a running server."""
    answer = session.call("token.revoke", called=name)
    if session.json:
        session.emit(answer)
    else:
        session.say(f"The token {answer['name']} is refused from now on.")
