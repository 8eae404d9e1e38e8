"""posthouse alerts: how alert rules stand, and whether anybody would hear of them."""

from __future__ import annotations

import base64
import difflib
import secrets
import time

import click

from ..config import Config
from .option import pass_session
from .root import Group
from .session import REFUSED, Failure, Json, Session
from .text import age, span

_LOOK_S = 0.2
_OVER = ("delivered", "dead", "expired", "cancelled", "parked", "uncertain")


@click.group(cls=Group)
def alerts() -> None:
    """Alert rules: how each stands, and a trial of who is told."""


@alerts.command("ls")
@pass_session
def ls(session: Session) -> None:
    """List the rules with what each sees now and how it stands.

    A rule that names no desk looks at each by itself. Rules are judged while a gateway runs; without one they stand as
    the last one left them.
    """
    found = session.call("alerts.ls")
    if session.json:
        session.emit(found)
        return
    session.table(
        ("RULE", "ON", "DESK", "MAILBOX", ">VALUE", ">ABOVE", "STATE", "SINCE", "TOLD", "BY"),
        [
            (
                row["rule"],
                row["on"],
                row["desk"] or "",
                row["mailbox"] or "",
                _amount(row["on"], row["value"]),
                _amount(row["on"], row["above"]),
                row["state"],
                age(row["since"], session.now),
                age(row["told_at"], session.now),
                f"{row['account']} to {row['to']}",
            )
            for row in found["alerts"]
        ],
        "No alert rules are configured: write [alert.NAME] with on = …",
    )
    for row in found["alerts"]:
        if row["trouble"]:
            session.say(f"{row['rule']} cannot be judged: {row['trouble']}")


def _amount(on: str, value: float | None) -> str:
    if value is None:
        return "?"
    return span(value) if on == "age" else f"{value:.0f}"


@alerts.command("test")
@click.argument("rule", required=False)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3_600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for it to be delivered.",
)
@pass_session
def test(session: Session, rule: str | None, wait_s: float) -> None:
    """Send a notice that says it is a trial, the way that a rule's would go; without RULE to `gateway.alert`.

    It is a durable message like any other. Exit code 1 if it came to nothing.
    """
    notice = _notice(session.config(), rule)
    with session.operator() as operator:
        session.ask(operator, "message.post", **notice)
        named = {name: notice[name] for name in ("desk", "mailbox", "id", "sender")}
        until = time.monotonic() + wait_s
        while True:
            found = session.ask(operator, "message.show", **named)
            if found["state"] in _OVER or time.monotonic() >= until:
                break
            time.sleep(_LOOK_S)
    answer: Json = {**named, "state": found["state"], "attempts": found["attempts"], "error": found["error"]}
    if found["state"] in _OVER and found["state"] != "delivered":
        raise Failure("not_told", f"{notice['id']} is {found['state']}: {found['error'] or found['reason']}", REFUSED)
    if session.json:
        session.emit(answer)
    elif found["state"] == "delivered":
        session.say(f"{notice['id']} was told by {notice['mailbox']}.")
    else:
        failed = f" after {found['attempts']} attempts ({found['error']})" if found["error"] else ""
        session.say(
            f"{notice['id']} is kept and not delivered yet{failed}; it goes out while a gateway runs: "
            f"`posthouse message show {notice['id']}`"
        )


def _notice(config: Config, name: str | None) -> Json:
    """A message that tells of nothing, as ``message.post`` takes it."""
    from ..control.rule import DEFAULT_ACCOUNT, Measure, Rule, rules_of
    from ..gateway.watch import message

    known = {rule.name: rule for rule in rules_of(config)}
    if name is not None and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise Failure("not_found", f"there is no alert rule {name[:80]!r}; {hint}", REFUSED)
    rule = Rule("test", Measure.DEPTH, 0.0) if name is None else known[name]
    accounts = {f"{section.kind}/{section.account}" for section in config.channels}
    if config.text_or_none("gateway.alert") is not None:
        accounts.add(DEFAULT_ACCOUNT)
    if rule.account not in accounts:
        what = "gateway.alert is not set" if rule.account == DEFAULT_ACCOUNT else f"no channel is {rule.account}"
        raise Failure("nobody", f"nobody would be told: {what}", REFUSED)
    text = f"This is a trial of the alert {rule.name}: nothing is wrong."
    extra: Json = {"type": "alert", "state": "test", "rule": rule.name, "on": str(rule.on), "desk": rule.desk}
    at = time.time_ns() // 1_000
    made = message(rule, f"test\0{secrets.token_hex(16)}", text, extra, at).message()
    return {
        "desk": made.desk,
        "mailbox": made.mailbox,
        "id": made.id,
        "body": base64.b64encode(made.body).decode(),
        "sender": made.sender,
        "lane": made.lane,
        "kind": made.kind,
        "expires_at": made.expires_at,
    }
