"""A peer from the configuration.

In: settings that are checked one by one. Out: a service that is ready to start (host, peers to stay connected with, the
peer itself), or ConfigError where the settings do not fit together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..control import peer as control
from ..engine.engine import Engine
from ..errors import BadIdentity, ConfigError, InvalidInput, MissingExtra
from ..libp2p.errors import BadInput
from ..libp2p.gossip.service import Gossip
from ..libp2p.host import Host
from ..libp2p.keeper import Keeper
from ..libp2p.key import PrivateKey
from ..libp2p.mdns import Mdns
from ..libp2p.multiaddr import Multiaddr
from .capability import Mode
from .courier import SendLimits
from .handler import handler_of
from .inbox import WorkLimits
from .node import Limits, Peer
from .orders import Orders
from .session import Rules

if TYPE_CHECKING:
    from .depot import Depot
    from .whisper import Whispers

log = logging.getLogger("posthouse.peer")


class Service:
    """A peer with its own host, from ``start`` to ``close``."""

    def __init__(
        self,
        peer: Peer,
        host: Host,
        listen: Sequence[Multiaddr],
        peers: Sequence[Multiaddr],
        bootstrap: Sequence[Multiaddr],
        mdns: str,
        orders: bool,
        depot: Depot | None = None,
    ) -> None:
        self.peer = peer
        self.host = host
        self.orders: Orders | None = None
        self.depot = depot
        mode = peer.session.rules.direct
        self._gossip = Gossip(host, peer.session.key) if orders or mode is not Mode.REQUIRE else None
        self._whispers = None if self._gossip is None else whispers_of(peer, self._gossip)
        self._trades = orders
        self._listen = listen
        self._peers = peers
        self._bootstrap = bootstrap
        self._mdns = Mdns(host, mdns) if mdns else None
        self._keeper: Keeper | None = None

    async def start(self) -> None:
        """Listen, begin to send and to receive, and look for others."""
        if self._whispers is not None:
            self._whispers.start()
        await self.peer.start()
        if self.depot is not None:
            self.depot.start()
        if self._gossip is not None and self._trades:
            self.orders = Orders(self.peer, self.host, self._gossip)
            self.orders.start()
            control.trading(self.peer.office, self._orders)
        for address in self._listen:
            try:
                await self.host.listen(address)
            except OSError as error:
                raise ConfigError(f"peer.listen: cannot listen on {address}: {error.strerror or error}") from error
        self._keeper = Keeper(self.host)
        for address in self._peers:
            self._keeper.keep(address)
        for address in self._bootstrap:
            self._keeper.keep(address, bootstrap=True)
        if self._mdns is not None:
            await self._mdns.start()

    async def close(self) -> None:
        """End cleanly. Idempotent."""
        if self._keeper is not None:
            self._keeper.close()
        if self._mdns is not None:
            await self._mdns.close()
        control.trading(self.peer.office, None)
        if self.orders is not None:
            await self.orders.close()
        if self.depot is not None:
            await self.depot.close()
        if self._whispers is not None:
            await self._whispers.close()
        if self._gossip is not None:
            await self._gossip.close()
        await self.peer.close()
        await self.host.close()

    def _orders(self) -> list[dict[str, Any]]:
        """What is offered, for ``peer.orders``; from any thread."""
        assert self.orders is not None
        return [{**order._asdict(), "ours": order.maker == self.peer.id} for order in self.orders.open()]


async def make(config: Config, engine: Engine) -> Service:
    """The peer that the configuration describes; in the event loop that it will run in."""
    listen = addresses(config, "peer.listen", named=False)
    peers, bootstrap = addresses(config, "peer.peers"), addresses(config, "peer.bootstrap")
    text = config.text_or_none("peer.handler")
    handler = None if text is None else handler_of(text, config.folder)
    key = await asyncio.to_thread(key_of, config)
    host = Host(key)
    peer = Peer(engine, host, key, limits_of(config), handler=handler)
    return Service(
        peer,
        host,
        listen,
        peers,
        bootstrap,
        config.text_or_none("peer.mdns") or "",
        config.switch("peer.orders"),
        depot_of(config, peer),
    )


def key_of(config: Config) -> PrivateKey:
    """The peer's key, which is made if there is none; BadIdentity says what is wrong with its file."""
    try:
        return PrivateKey.load_or_create(Path(config.path("peer.key")))
    except BadInput as error:
        raise BadIdentity(str(error)) from None


def whispers_of(peer: Peer, gossip: Gossip) -> Whispers | None:
    """The gossip of private messages, where the settings want it and the machine can do it."""
    mode = peer.session.rules.direct
    if mode is Mode.REQUIRE:
        return None
    try:
        from .whisper import Whispers
    except ModuleNotFoundError as error:
        missing = f"private messages by gossip need {error.name}: pip install posthouse[relay]"
        if mode is Mode.OFF:
            raise MissingExtra(missing) from error
        log.warning("%s; nodes that take no streams are not served", missing)
        return None
    return Whispers(peer, gossip)


def depot_of(config: Config, peer: Peer) -> Depot | None:
    """The way over a relay, if there is one; ConfigError if its URL is none."""
    url = config.text_or_none("peer.relay")
    if url is None:
        return None
    try:
        from .depot import Depot
    except ModuleNotFoundError as error:
        raise MissingExtra(f"peer.relay needs {error.name}: pip install posthouse[relay]") from error
    try:
        return Depot(peer, config.path("peer.relay_folder"), url, config.text_or_none("peer.relay_host"))
    except InvalidInput as error:
        raise ConfigError(f"peer.relay: {error}") from None


def limits_of(config: Config) -> Limits:
    """What the peer goes by."""
    return Limits(
        rules=Rules(
            strangers=config.switch("peer.strangers"),
            signed_only=config.switch("peer.signed_only"),
            direct=Mode(config.text("peer.direct")),
            rate_per_s=config.number("peer.rate_per_s"),
            burst=config.whole("peer.burst"),
            gap_s=config.seconds("peer.gap_s"),
        ),
        send=SendLimits(ack_s=config.seconds("peer.ack_s"), sends_per_peer=config.whole("peer.sends")),
        work=WorkLimits(workers=config.whole("peer.workers"), timeout_s=config.seconds("peer.handler_timeout_s")),
        timeout_s=int(config.seconds("peer.timeout_s")),
        stop_s=int(config.seconds("peer.stop_s")),
    )


def addresses(config: Config, name: str, named: bool = True) -> list[Multiaddr]:
    """The addresses that a setting lists; ConfigError names the one that cannot be used."""
    found = []
    for text in (config.text_or_none(name) or "").replace(",", " ").split():
        try:
            address = Multiaddr.parse(text)
        except BadInput as error:
            raise ConfigError(f"{name}: {error}") from None
        if address.endpoint is None or (named and address.peer_id is None):
            form = "/ip4/127.0.0.1/tcp/4001" + ("/p2p/12D3…" if named else "")
            raise ConfigError(f"{name}: an address looks like {form}, not {text}")
        found.append(address)
    return found
