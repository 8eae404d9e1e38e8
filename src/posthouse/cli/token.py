"""posthouse token: who may use the gateway's HTTP API and the console."""

from __future__ import annotations

import click

from .option import pass_session
from .root import Group
from .session import Session
from .text import age


@click.group(cls=Group)
def token() -> None:
    """Tokens: who may use the gateway's HTTP API and the console, and for what."""


@token.command("add")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="What it allows in the gateway's API: inbound, outbound, status or events; may be repeated.",
)
@click.option("--role", metavar="ROLE", help="What it is in the console and its API: viewer, operator or admin.")
@click.option("--tenant", metavar="NAME", help="Only for messages of this tenant [default: of every one].")
@pass_session
def add(session: Session, name: str, scopes: tuple[str, ...], role: str | None, tenant: str | None) -> None:
    """Make a token and print it. It is shown this once and kept nowhere.

    Give at least one --scope, for the gateway's API, or a --role, for the console.
    """
    answer = session.call("token.add", called=name, scopes=list(scopes), tenant=tenant, role=role)
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
            row["role"] or "",
            row["tenant"] or "every one",
            age(row["made_at"], session.now),
            row["by"],
        )
        for row in answer["tokens"]
    ]
    session.table(("name", "scopes", "role", "tenant", ">made ago", "by"), rows, "There are no tokens.")


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
