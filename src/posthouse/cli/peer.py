"""posthouse peer: the peer alone, its id, and what it sends, keeps and is connected with."""

from __future__ import annotations

import click

from ..config import Given
from . import option, up
from .option import pass_session
from .root import Group
from .session import Session
from .text import age, short_instant

_SHORT = "Short for --set "


@click.group(cls=Group)
def peer() -> None:
    """The peer: trade messages over direct streams to their other party."""


@peer.command("run")
@click.option("--listen", metavar="ADDRESS", help=f"{_SHORT}peer.listen=ADDRESS.")
@click.option("--handler", metavar="HANDLER", help=f"{_SHORT}peer.handler=HANDLER.")
@click.option("--metrics-port", metavar="PORT", help=f"{_SHORT}metrics.port=PORT; 0 takes any free one.")
@click.option("--no-metrics", is_flag=True, help=f"{_SHORT}metrics.enabled=false.")
@click.option("--log-format", metavar="FORMAT", help=f"{_SHORT}log.format=FORMAT: auto, text or json.")
@click.option("--log-level", metavar="LEVEL", help=f"{_SHORT}log.level=LEVEL: debug, info, warning or error.")
@pass_session
def run(
    session: Session,
    listen: str | None,
    handler: str | None,
    metrics_port: str | None,
    no_metrics: bool,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Start the peer and keep it running until SIGTERM or Ctrl-C."""
    if listen is not None:
        session.set("peer.listen", listen, "--listen")
    if handler is not None:
        session.set("peer.handler", handler, "--handler")
    up.alone(session, "peer", "posthouse peer run")
    # Each message of a trade waits for the one before: what counts is how soon a commit is done.
    session.flags.setdefault("engine.linger_s", Given("0", "posthouse peer run"))
    up.serve(
        session,
        relay_port=None,
        metrics_port=metrics_port,
        no_metrics=no_metrics,
        log_format=log_format,
        log_level=log_level,
    )


@peer.command("id")
@pass_session
def id_(session: Session) -> None:
    """Print our peer id; makes the key file if there is none."""
    from ..libp2p.peer_id import PeerId
    from ..peer.setup import key_of

    config = session.config()
    text = str(PeerId.of(key_of(config).public))
    if session.json:
        session.emit({"id": text, "key": str(config.path("peer.key"))})
    else:
        session.say(text)


@peer.command("send")
@click.argument("peer_id", metavar="PEER")
@click.argument("trade")
@click.argument("type", metavar="TYPE")
@click.argument("payload", default="null")
@click.option("--order", metavar="ID", default="", help="The order that the trade is of.")
@click.option("--id", "id_", metavar="ID", default="", help="The message's id; with it the command may be repeated.")
@click.option(
    "--timeout-at", metavar="SECONDS", type=int, default=0, help="When the trade ends, in seconds since 1970."
)
@pass_session
def send(
    session: Session, peer_id: str, trade: str, type: str, payload: str, order: str, id_: str, timeout_at: int
) -> None:
    """Put a message of TRADE into the outbox for PEER; PAYLOAD is JSON.

    It is sent by the peer that runs on this store, now or when one runs. The first message of a trade says who its
    other party is.
    """
    from ..errors import BadFrame, InvalidInput
    from ..peer import frame
    from ..peer.node import check_peer

    if type not in frame.PRIVATE_TYPES:
        raise InvalidInput(f"{type!r} is no type of a direct message: {', '.join(sorted(frame.PRIVATE_TYPES))}")
    check_peer(peer_id, "")
    try:
        body = frame.dumps(frame.loads(payload.encode(errors="surrogateescape")))
    except BadFrame as error:
        raise InvalidInput(f"the payload cannot be sent: {error}") from None
    done = session.call(
        "peer.send",
        peer=peer_id,
        trade=trade,
        kind=type,
        payload=body.decode(),
        order=order,
        id=id_,
        timeout_s=timeout_at,
        stop_s=int(session.config().seconds("peer.stop_s")),
        direct_only=session.config().text("peer.direct") == "require",
    )
    if session.json:
        session.emit(done)
    else:
        session.say(f"{done['id']}  {'is in the outbox already' if done['duplicate'] else 'is in the outbox'}")


@peer.command("trades")
@click.option("--peer", "peer_id", metavar="PEER", default="", help="Only trades with this peer.")
@click.option("--after", metavar="TRADE", default="", help="Only trades behind this one: the last of the page before.")
@option.limit(50, "How many at most.")
@pass_session
def trades(session: Session, peer_id: str, after: str, limit: int) -> None:
    """List trades: the last numbers each way, what waits, and when they end."""
    found = session.call("peer.trades", peer=peer_id, after=after, limit=limit)
    if session.json:
        session.emit(found)
        return
    session.table(
        ("TRADE", "PEER", ">SENT", ">HEARD", ">WAITING", ">UNPROCESSED", "SIGNED", "ENDS"),
        [
            (
                t["trade"], t["peer"], t["local_sequence"], t["remote_sequence"], t["waiting"], t["unprocessed"],
                "yes" if t["signed"] else "no", short_instant(t["timeout_at"]) if t["timeout_at"] else "–",
            )
            for t in found["trades"]
        ],
        "There are no trades.",
    )  # fmt: skip


@peer.command("orders")
@option.limit(50, "How many at most.")
@pass_session
def orders(session: Session, limit: int) -> None:
    """List what is offered, by us and by others, as far as the running peer has heard of it."""
    found = session.call("peer.orders", limit=limit)
    if session.json:
        session.emit(found)
        return
    if not found["running"]:
        session.say("No peer that takes part in the market runs here.")
        return
    session.table(
        ("ORDER", "MAKER", ">OFFERS", "OF", ">WANTS", "OF", "METHODS", "ENDS"),
        [
            (
                o["id"], "us" if o["ours"] else o["maker"], o["offer_amount"], o["offer_chain"], o["request_amount"],
                o["request_chain"], ", ".join(o["methods"]), short_instant(o["expires_at"]),
            )
            for o in found["orders"]
        ],
        "Nothing is offered.",
    )  # fmt: skip


@peer.command("outbox")
@click.option("--peer", "peer_id", metavar="PEER", help="Only messages for this peer.")
@click.option("--trade", metavar="TRADE", help="Only messages of this trade.")
@click.option("--waiting", is_flag=True, help="Only what is not finished.")
@click.option("--after", metavar="NUMBER", type=int, default=0, help="Only what is behind the page before.")
@option.limit(50, "How many at most.")
@pass_session
def outbox(session: Session, peer_id: str | None, trade: str | None, waiting: bool, after: int, limit: int) -> None:
    """List what was sent and what waits to be: status, attempts, and why it failed."""
    found = session.call("peer.outbox", peer=peer_id, trade=trade, waiting=waiting, after=after, limit=limit)
    if session.json:
        session.emit(found)
        return
    session.table(
        ("ID", "TRADE", ">NUMBER", "TYPE", "STATUS", ">ATTEMPTS", "AGE", "ERROR"),
        [
            (
                m["id"], m["trade"], m["sequence"], m["kind"], m["status"], m["attempts"],
                age(m["posted_at"], session.now), m["error"] if m["status"] != "acked" and m["error"] else "",
            )
            for m in found["messages"]
        ],
        "The outbox is empty.",
    )  # fmt: skip


@peer.command("peers")
@pass_session
def peers(session: Session) -> None:
    """Who is connected, and what was sent and received since the peer started."""
    found = session.call("peer.peers")
    if session.json:
        session.emit(found)
        return
    if not found["running"]:
        session.say("No peer runs here.")
        return
    session.say(f"We are {found['id']}")
    for address in found["addresses"]:
        session.say(f"  {address}")
    session.table(
        ("PEER", "PROGRAM", "DIRECT", "SYNC"),
        [(p["peer"], p["agent"], "yes" if p["direct"] else "no", "yes" if p["sync"] else "no") for p in found["peers"]],
        "Nobody is connected.",
    )
    counts = found["counts"]
    session.say(
        f"Sent {sum(found['sent'].values())}: {counts['acked']} acknowledged, {counts['rejected']} rejected, "
        f"{counts['unconfirmed']} unanswered, {counts['away']} to a peer that was away; "
        f"{counts['whispered']} published by gossip, {counts['left']} left at a relay."
    )
    session.say(
        f"Received {sum(found['received'].values())}: {counts['processed']} processed, "
        f"{counts['refused_by_handler']} rejected, {counts['duplicates']} copies, "
        f"{sum(found['refused'].values())} refused at the door."
    )
