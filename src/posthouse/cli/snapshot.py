"""posthouse snapshot: a safe copy of a store, and a new store from one."""

from __future__ import annotations

from pathlib import Path

import click

from .option import pass_session
from .root import Group
from .session import REFUSED, Failure, Session
from .text import size


@click.group(cls=Group)
def snapshot() -> None:
    """Snapshots: copy a working store, make a store from a copy."""


@snapshot.command("create")
@click.argument("file", type=click.Path(path_type=Path))
@pass_session
def create(session: Session, file: Path) -> None:
    """Copy the store to FILE while it works: queue, dedup memory and journal as of one moment."""
    done = session.call("snapshot.create", path=str(Path.cwd() / file))
    if session.json:
        session.emit(done)
    else:
        session.say(f"{done['path']}: {size(done['size_bytes'])}, node {done['node']} up to offset {done['offset']}.")


@snapshot.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--node", required=True, metavar="NAME", help="The new store's name: it would reuse the old one's offsets."
)
@click.option("--force", is_flag=True, help="If there is a store, put it aside under another name.")
@pass_session
def restore(session: Session, file: Path, node: str, force: bool) -> None:
    """Make the configured store from a snapshot. No server may run on it.

    Waiting messages and the memory of ids are the snapshot's. The journal begins anew under
    the new name; its first event says which node and offset it continues.
    """
    from ..control.operation import Refused
    from ..control.snapshot import restore as make

    done = make(session.config(), Path.cwd() / file, node, force=force)
    if isinstance(done, Refused):
        raise Failure(done.code, done.message, REFUSED)
    if session.json:
        session.emit(done)
        return
    origin = done["restored_from"]
    session.say(f"{done['path']} is node {node}, restored from {origin['node']} at offset {origin['offset']}.")
    if done["kept"]:
        session.say(f"The former store is kept as {done['kept']}.")
