"""posthouse config: what is in force and why."""

from __future__ import annotations

import click

from .option import pass_session
from .root import Group
from .session import Session


@click.group(cls=Group)
def config() -> None:
    """The configuration: each value and where it came from."""


@config.command("explain")
@click.option("--all", "everything", is_flag=True, help="Also the fields of desks that nobody changed.")
@pass_session
def explain(session: Session, everything: bool) -> None:
    """Show every setting, its value, and whether a default, the file, the environment or a flag set it."""
    found = session.config()
    rows = found.explain()
    if session.json:
        session.emit({"file": str(found.file) if found.file else None, "settings": rows})
        return
    session.say(f"File: {found.file or 'none'}")
    shown = [row for row in rows if everything or not row["name"].startswith("desk.") or row["source"] != "default"]
    session.table(
        ("SETTING", "VALUE", "FROM", "WHERE"),
        [(row["name"], _value(row["value"]), row["source"], row["where"] or "") for row in shown],
        "",
    )
    if not everything:
        session.say(f"Desks: {', '.join(sorted(found.policies))} (--all shows their fields)")


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)
