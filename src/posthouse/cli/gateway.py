"""posthouse gateway: the gateway alone, how it stands, and a way to try it."""

from __future__ import annotations

from typing import Any

import click

from . import option, up
from .option import pass_session
from .root import Group
from .session import Json, Session
from .text import age

_SHORT = "Short for --set "


@click.group(cls=Group, invoke_without_command=True)
@click.option("--handler", metavar="HANDLER", help=f"{_SHORT}gateway.handler=HANDLER.")
@click.option("--metrics-port", metavar="PORT", help=f"{_SHORT}metrics.port=PORT; 0 takes any free one.")
@click.option("--no-metrics", is_flag=True, help=f"{_SHORT}metrics.enabled=false.")
@click.option("--log-format", metavar="FORMAT", help=f"{_SHORT}log.format=FORMAT: auto, text or json.")
@click.option("--log-level", metavar="LEVEL", help=f"{_SHORT}log.level=LEVEL: debug, info, warning or error.")
@click.pass_context
def gateway(
    context: click.Context,
    handler: str | None,
    metrics_port: str | None,
    no_metrics: bool,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """The gateway: run it alone, see how it stands, try it.

    Without a command it starts the gateway and keeps it running until SIGTERM or Ctrl-C, as `posthouse up` does with
    everything that is configured.
    """
    session = context.find_object(Session)
    assert session is not None
    if context.invoked_subcommand is not None:
        return
    if handler is not None:
        session.set("gateway.handler", handler, "--handler")
    up.alone(session, "gateway", "posthouse gateway")
    up.serve(
        session,
        relay_port=None,
        metrics_port=metrics_port,
        no_metrics=no_metrics,
        log_format=log_format,
        log_level=log_level,
    )


@gateway.command("stats")
@option.limit(20, "Sessions of each desk to show at most.")
@pass_session
def stats(session: Session, limit: int) -> None:
    """Queue lengths, rates and errors, by desk, channel and session.

    Lengths are those of the store. Rates and errors are of the last five minutes, and known only while a gateway runs.
    """
    found = session.call("gateway.stats", sessions=limit)
    if session.json:
        session.emit(found)
        return
    if found["running"]:
        session.say(f"The gateway runs; rates are of the last {found['window_s']:.0f} s.")
        _accounts(session, found)
    else:
        session.say("No gateway runs here: rates are not known.")
    window_s = found["window_s"] or 0.0
    session.table(
        ("DESK", ">WAITING", ">DEAD", ">UNCERTAIN", ">PARKED", "OLDEST", *_RATES),
        [
            (
                desk["desk"],
                sum(desk["counts"].get(state, 0) for state in ("ready", "leased", "received")),
                *(desk["counts"].get(state, 0) for state in ("dead", "uncertain", "parked")),
                age(desk["oldest_at"], session.now),
                *_rates(desk, window_s),
            )
            for desk in found["desks"]
        ],
        "",
    )
    for desk in found["desks"]:
        if desk["channels"]:
            session.table(
                (f"{desk['desk'].upper()} CHANNEL", ">WAITING", ">DEAD", *_RATES),
                [(c["channel"], c["waiting"], c["dead"], *_rates(c, window_s)) for c in desk["channels"]],
                "",
            )
        if desk["sessions"]:
            session.table(
                (f"{desk['desk'].upper()} SESSION", "MAILBOX", ">WAITING", ">DEAD", "OLDEST", "PAUSED", *_RATES),
                [
                    (
                        s["lane"],
                        s["mailbox"],
                        s["waiting"],
                        s["dead"],
                        age(s["oldest_at"], session.now),
                        s["paused"] or "",
                        *_rates(s, window_s),
                    )
                    for s in desk["sessions"]
                ],
                "",
            )
        if not desk["scanned_all"]:
            session.say(f"{desk['desk']}: so much waits that channels and sessions are counted in part only.")


_RATES = (">POSTED/S", ">DONE/S", ">FAILED", ">DIED")


def _rates(counts: Json, window_s: float) -> tuple[str, ...]:
    if counts["posted"] is None or window_s <= 0:
        return ("–", "–", "–", "–")
    per_s = (f"{counts[name] / window_s:.2f}" for name in ("posted", "delivered"))
    return (*per_s, str(counts["failed"]), str(counts["died"]))


def _accounts(session: Session, found: Json) -> None:
    worker: dict[str, Any] | None = found["worker"]
    if worker is not None:
        session.say(
            f"Sessions worked on: {worker['running']}; handled {worker['handled']}, retried {worker['retried']}, "
            f"rejected {worker['rejected']}, timed out {worker['timed_out']}, fenced {worker['fenced']}."
        )
    session.table(
        ("ACCOUNT", "UP", ">RECEIVED", ">SENT", ">RETRIED", ">OFFLINE", ">DIED", ">UNCERTAIN", "LEFT ALONE"),
        [
            (
                a["account"],
                "yes" if a["up"] else "no",
                *(a[name] for name in ("received", "sent", "retried", "offline", "died", "uncertain")),
                ", ".join(a["left_alone"]),
            )
            for a in found["accounts"]
        ],
        "No channel is configured.",
    )


@gateway.command("try")
@click.argument("text", nargs=-1)
@click.option("--handler", metavar="HANDLER", default="echo", show_default=True, help="As gateway.handler.")
@click.option(
    "--crash",
    type=click.Choice(["received", "handling", "sending"]),
    help="Kill the gateway there, once, while it has the (first) message.",
)
@pass_session
def try_(session: Session, text: tuple[str, ...], handler: str, crash: str | None) -> None:
    """Say something to a gateway of your own, and see it go through: inbound, handler, outbound.

    It runs on a store of its own, in a temporary folder, which is gone afterwards. Without TEXT every line that you
    type is a message; "/crash handling" before a text kills the gateway there, as `kill -9` does. It is started again,
    and goes on where it was.
    """
    from .gateway_try import Trial

    Trial(session, handler).run(list(text), crash)
