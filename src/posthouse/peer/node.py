"""A peer: one identity whose outbox is sent, whose inbox is handed out, and whose trades are kept in step.

    async with open_peer("alice", listen=["/ip4/127.0.0.1/tcp/4001"]) as peer:
        await peer.send(bob, "trade-1", "pubkey_exchange", {"pubkey": "02…"})
        async for message in peer.messages():
            print(message.type, message.payload)
            await message.done()

In: an engine with the desks ``outbox`` and ``inbox``, a network. Out: a running whole, and a clean end: what was posted
is kept, what was leased goes back. ``send`` returns when the message is on disk, whether or not its peer is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..control import peer as control
from ..control import presence
from ..control.trade import HEARD, INBOX_DESK, OUTBOX_DESK, STOP_S, TIMEOUT_S, TRADES, outgoing
from ..engine.engine import Engine
from ..errors import ConfigError, EngineClosed, InvalidInput, OutboxFull
from ..libp2p.errors import BadInput
from ..libp2p.host import Connected, Disconnected, Event, Host, Identified
from ..libp2p.keeper import Keeper
from ..libp2p.key import PrivateKey
from ..libp2p.peer_id import PeerId
from ..libp2p.settings import Settings as HostSettings
from ..mailbox.command import Command, Keep, Note, Post, Together
from ..mailbox.event import CONNECTED, DISCONNECTED
from ..mailbox.message import SECOND, Ref
from ..mailbox.outcome import Outcome, Refused
from ..mailbox.policy import DAY_S, INBOX, OUTBOX
from ..mailbox.store import MessageView
from . import frame
from .courier import Courier, SendLimits
from .frame import Direct
from .inbox import Handler, Inbox, Incoming, WorkLimits
from .port import Network, Office
from .receiver import Receiver, TakeLimits
from .session import Rules, Session
from .stats import Stats
from .sync import MARK, StateHook, Sync
from .tasks import Tasks

log = logging.getLogger("posthouse.peer")

STORE_NAME = "peer.db"
KEY_NAME = "node.key"
TRADE_KEEP_S = 7 * DAY_S
"""How long after its end a trade is remembered: as long as the ids of its messages."""
FORGET_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit of a peer."""

    rules: Rules = field(default_factory=Rules)
    send: SendLimits = field(default_factory=SendLimits)
    take: TakeLimits = field(default_factory=TakeLimits)
    work: WorkLimits = field(default_factory=WorkLimits)
    timeout_s: int = TIMEOUT_S
    """How long a trade lasts where nobody says."""
    stop_s: int = STOP_S
    """How long before a trade's end sending is given up."""


class Peer:
    """Runs from ``start`` to ``close``."""

    def __init__(
        self,
        office: Office,
        network: Network,
        key: PrivateKey,
        limits: Limits | None = None,
        *,
        handler: Handler | None = None,
        state: StateHook | None = None,
    ) -> None:
        """``handler`` processes what comes; without one, ``messages`` hands it out. ``state`` tells of trades."""
        for desk in (OUTBOX_DESK, INBOX_DESK):
            if desk not in office.store.policies:
                raise ConfigError(f"the peer needs the desk {desk!r}, and the store has no policy of that name")
        self.limits = limits = limits or Limits()
        self.stats = Stats()
        self.session = Session(key, limits.rules)
        self.office = office
        self.network = network
        self.courier = Courier(office, network, self.session, self.stats, limits.send)
        self._tasks = Tasks("a task of the peer failed")
        self.sync = Sync(office, self.session, self.courier, self.stats, self._tasks.spawn, state)
        self.receiver = self.sync.receiver = Receiver(
            office, self.session, self.stats, limits.take, self.sync.ask, self.sync.answer
        )
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._notes: set[asyncio.Future[list[Outcome]]] = set()
        self._unwatch: Callable[[], None] | None = None
        self.inbox: Inbox

    @property
    def id(self) -> str:
        """Our peer id."""
        return self.session.me

    @property
    def addresses(self) -> list[str]:
        """Where we can be dialled, with our peer id."""
        return [str(address) for address in getattr(self.network, "addresses", ())]

    async def start(self) -> None:
        """Begin to send and to receive."""
        self.session.load(self.office.store)
        self.inbox = Inbox(self.office, self.receiver, self.stats, self.limits.work)
        if self._handler is not None:
            self.inbox.work(self._handler)
        self._unwatch = self.network.watch(self._seen)
        if self.session.takes_streams:
            self.network.handle(frame.PROTOCOL, self.receiver.serve)
            self.network.handle(MARK, _nothing)
        self.courier.start()
        self._tasks.spawn(self._forget())
        if isinstance(self.office, Engine):
            self.office.on_call.append(self._told)
            control.running(self.office, self.live)
            presence.about(self.office, OUTBOX_DESK, self._known)

    async def close(self) -> None:
        """End cleanly. Idempotent."""
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch = None
        if isinstance(self.office, Engine):
            self.office.on_call.remove(self._told)
            control.stopped(self.office)
            presence.about(self.office, OUTBOX_DESK, None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self.courier.close(), self.inbox.close())
        for peer in self.network.peers:
            self._note(DISCONNECTED, peer, "shutdown")
        await asyncio.gather(*self._notes, return_exceptions=True)

    # What a program does.

    async def send(
        self,
        peer: str,
        trade: str,
        type: str,
        payload: Any,
        *,
        order: str = "",
        timeout_s: int | None = None,
        id: str | None = None,
    ) -> str:
        """Send a message of a trade to its other party: its id, once it is in the outbox, on disk.

        ``timeout_s`` is when the trade ends, in seconds since 1970. Who gives an ``id`` may repeat the call: what the
        outbox knows is not sent again.
        """
        now = self.office.now()
        known = self.session.trades.get(trade)
        if known is not None and known.peer != peer:
            raise InvalidInput(f"the other party of trade {trade} is {known.peer}")
        if type not in frame.PRIVATE_TYPES:
            raise InvalidInput(f"{type!r} is no type of a direct message: {', '.join(sorted(frame.PRIVATE_TYPES))}")
        if known is None:
            check_peer(peer, self.id)
        ends_s = timeout_s or (known.timeout_s if known else 0) or now // SECOND + self.limits.timeout_s
        id = id or frame.new_id()
        body = frame.dumps(payload)
        post = outgoing(peer, trade, type, body, id, order, ends_s, now, self.limits.stop_s)
        # Found out now, not when it is sent.
        value = frame.loads(body)
        self.session.check_payload(value)
        if len(body) > frame.SMALL_BYTES:
            self.session.check_size(
                Direct(type, trade, order, self.id, value, now // SECOND, id, frame.NUMBER_MAX, True, ends_s)
            )
        command: Command = post
        if known is None or known.timeout_s != ends_s:
            record = self.session.opened(peer, now, ends_s) if known is None else known._replace(timeout_s=ends_s)
            self.session.know(trade, record)
            command = Together((Keep(TRADES, trade, record.encode()), post))
        outcome = await self._post(peer, trade, command)
        if isinstance(outcome, Refused):
            raise OutboxFull(f"the outbox does not take it: {outcome.detail or outcome.reason}")
        self.courier.posted(peer, trade)
        return id

    async def _post(self, peer: str, trade: str, post: Command) -> Outcome:
        """Post a message; where it can be sent soon, it is taken for that in the same commit."""
        lease = self.courier.wants(peer, trade)
        if lease is None:
            return await self.office.do(post)
        leased: Outcome | None = None
        try:
            outcome, leased = await self.office.apply(post, lease)
            return outcome
        finally:
            self.courier.gets(peer, lease, leased)

    def messages(self) -> AsyncIterator[Incoming]:
        """What has come, as it comes, in order of its trades; settle each with ``done``, ``reject`` or ``retry``."""
        return self.inbox.messages()

    def sent(self, peer: str, id: str) -> MessageView | None:
        """What became of a message that we sent."""
        return self.office.store.message(Ref(OUTBOX_DESK, peer, "", id))

    def live(self) -> dict[str, Any]:
        """How it stands, for ``peer.peers``; from any thread."""
        stats = self.stats
        return {
            "id": self.id,
            "addresses": self.addresses,
            "peers": [self._about(peer) for peer in list(self.network.peers)],
            "sent": dict(stats.sent),
            "received": dict(stats.received),
            "refused": dict(stats.refused),
            "counts": {
                name: getattr(stats, name)
                for name in (
                    "acked", "rejected", "unconfirmed", "away", "duplicates", "held", "skipped", "processed", "failed",
                    "refused_by_handler", "connected", "disconnected", "syncs", "resent", "whispered", "left",
                )
            },
        }  # fmt: skip

    def _about(self, peer: PeerId) -> dict[str, Any]:
        info = self.network.info(peer)
        return {
            "peer": str(peer),
            "agent": info.agent if info else "",
            "direct": bool(info and frame.PROTOCOL in info.protocols),
            "sync": bool(info and MARK in info.protocols),
            "rtt_s": self.network.rtt_s(peer),
        }

    def _known(self, name: str) -> dict[str, Any]:
        """What is known of a peer that is connected, for ``presence``; from any thread."""
        peer = next((each for each in list(self.network.peers) if str(each) == name), None)
        if peer is None:
            return {}
        found = self._about(peer)
        words = (("direct", "direct streams"), ("sync", "sync of trades"))
        can = [word for key, word in words if found[key]] + ([found["agent"]] if found["agent"] else [])
        return {"rtt_s": found["rtt_s"], "can": can}

    # Who comes and goes.

    def _seen(self, event: Event) -> None:
        peer = event.peer
        if isinstance(event, Connected):
            self.stats.connected += 1
            self._note(CONNECTED, peer)
            self.courier.came(peer)
        elif isinstance(event, Identified):
            if MARK in event.info.protocols:
                self.sync.came(peer)
        elif isinstance(event, Disconnected):
            self.stats.disconnected += 1
            self.receiver.plain.discard(str(peer))
            self._note(DISCONNECTED, peer, "closed" if event.error is None else "cut", str(event.error or ""))

    def _note(self, event: str, peer: PeerId, reason: str | None = None, error: str = "") -> None:
        note = Note(event, OUTBOX_DESK, str(peer), str(peer), reason, error[:500] or None)
        try:
            future = self.office.submit(note)
        except EngineClosed:
            return
        self._notes.add(future)
        future.add_done_callback(self._noted)

    def _noted(self, future: asyncio.Future[list[Outcome]]) -> None:
        self._notes.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, EngineClosed):
            log.warning("a connection was not written down: %s", error)

    def _told(self, commands: Sequence[Command]) -> None:
        """An operator has done something; on his thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._operated, commands)

    def _operated(self, commands: Sequence[Command]) -> None:
        for command in commands:
            inner = command.commands if isinstance(command, Together) else (command,)
            for one in inner:
                if isinstance(one, Keep) and one.shelf == TRADES:
                    self.session.reload(one.key, one.value)
                elif isinstance(one, Keep) and one.shelf == HEARD and one.value is not None:
                    self.session.heard[one.key] = max(int(one.value), self.session.heard.get(one.key, 0))
                elif isinstance(one, Post):
                    if one.message.desk == OUTBOX_DESK:
                        self.courier.posted(one.message.mailbox)
                else:
                    self.courier.look()

    async def _forget(self) -> None:
        """Forget trades that ended long ago."""
        while True:
            for name in self.session.over(self.office.now(), TRADE_KEEP_S):
                await self.office.apply(*self.session.forget(name))
            await asyncio.sleep(FORGET_S)


async def _nothing(stream: Any) -> None:
    """The mark says something by being served; nothing is said on it."""


def check_peer(peer: str, me: str) -> None:
    """InvalidInput unless this is the id of another peer."""
    try:
        PeerId.parse(peer).public_key()
    except BadInput as error:
        raise InvalidInput(str(error)) from None
    if peer == me:
        raise InvalidInput("that is our own peer id")


@contextlib.asynccontextmanager
async def open_peer(
    folder: str | os.PathLike[str],
    *,
    listen: Iterable[str] = (),
    peers: Iterable[str] = (),
    limits: Limits | None = None,
    host: HostSettings | None = None,
    handler: Handler | None = None,
    state: StateHook | None = None,
) -> AsyncIterator[Peer]:
    """A peer whose key and store are in a folder (made there the first time), open for as long as the block lasts.

    ``listen`` are addresses to take connections at (/ip4/127.0.0.1/tcp/4001), ``peers`` those of others to stay
    connected with (…/p2p/12D3…).
    """
    from ..stores.sqlite import SqliteStore

    place = Path(folder)
    policies = {policy.name: policy for policy in (OUTBOX, INBOX)}

    def prepare() -> tuple[PrivateKey, SqliteStore]:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            key = PrivateKey.load_or_create(place / KEY_NAME)
        except BadInput as error:
            raise InvalidInput(str(error)) from None
        return key, SqliteStore.open(place / STORE_NAME, policies, f"peer-{key.public.raw().hex()[:16]}")

    key, store = await asyncio.to_thread(prepare)
    async with Engine(store) as engine, Host(key, host) as network:
        peer = Peer(engine, network, key, limits, handler=handler, state=state)
        try:
            await peer.start()
            for address in listen:
                await network.listen(address)
            keeper = Keeper(network)
            for address in peers:
                keeper.keep(address)
            yield peer
        finally:
            await peer.close()
