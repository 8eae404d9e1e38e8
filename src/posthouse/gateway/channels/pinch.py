"""The channel ``pinch``: an agent of a relay, with end-to-end encrypted messages.

In: what the agent's inbox holds; an item is done when the gateway has it. Out: the agent's outbox, which keeps a part
until its recipient confirms it and knows a repeated one by its id. So a part counts as sent when the outbox has it,
and nothing is ever unclear. Parts are taken only while the relay is there: what waits longer waits in the gateway,
where it can expire.
"""

from __future__ import annotations

import hashlib
import logging
import uuid

from ...agent.client import Agent, Item, relay_url
from ...agent.contact import Standing
from ...agent.happening import Connected, Disconnected, Happening
from ...errors import InvalidInput, OutboxFull, PosthouseError, RelayRefused, StoreError
from ...settings import Kind, Setting
from ..channel import Offline, Permanent, Reconciled, Sending, Sent, Setup, Transient
from ..letter import Inbound
from .account import Account, Lost

log = logging.getLogger("posthouse.gateway")

OPTIONS: tuple[Setting, ...] = (
    Setting("relay", Kind.TEXT, "ws://127.0.0.1:8080", "The relay's URL, `ws://…` or `wss://…`."),
    Setting(
        "relay_host",
        Kind.TEXT,
        None,
        "The name that the relay must have.",
        derived="the one it had before, else that of the URL",
    ),
    Setting(
        "folder",
        Kind.PATH,
        ".posthouse/agents/gateway",
        "The agent's folder, with its key and its store; made the first time. No other program may use it meanwhile.",
    ),
    Setting(
        "accept",
        Kind.TEXT,
        None,
        "The addresses of those who are accepted when they ask to be a contact; `*` is everybody.",
        derived="nobody",
    ),
    Setting("strangers", Kind.SWITCH, False, "Whether messages of agents that are no contacts are handed over."),
)
REFUSED_S = 60.0
"""The pause after a relay did not admit us."""


def make(setup: Setup) -> Pinch:
    """The factory."""
    return Pinch(setup)


class Pinch(Account):
    """One agent."""

    idempotent = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, OPTIONS)
        options = self.options
        try:
            self._relay = relay_url(options.text("relay"))
        except InvalidInput as error:
            raise options.wrong("relay", f"is none: {error}") from None
        self._accepted, self._strangers = frozenset(options.texts("accept")), options.switch("strangers")
        self._agent: Agent | None = None
        self._link: Link | None = None

    @property
    def agent(self) -> Agent | None:
        """The agent, while it is open."""
        return self._agent

    def connection(self) -> Link | None:
        """The outbox, while the relay is there."""
        return self._link if self.is_up else None

    async def live(self) -> None:
        """The agent, open for as long as it works; it connects again by itself."""
        folder, host = self.options.path("folder"), self.options.text_or_none("relay_host")
        try:
            async with Agent(folder, self._relay, host=host, on_happening=self._happened) as agent:
                self._agent = agent
                try:
                    async for item in agent.receive():
                        await self._item(agent, item)
                finally:
                    self._agent = self._link = None
        except RelayRefused as error:
            raise Lost(str(error), "closed", REFUSED_S) from None
        except (StoreError, InvalidInput) as error:
            raise Lost(str(error)) from None

    def _happened(self, happening: Happening) -> None:
        if isinstance(happening, Connected):
            assert self._agent is not None
            self._link = Link(self, self._agent)
            self.came_up(happening.address)
        elif isinstance(happening, Disconnected):
            self._link = None
            self.went_down("cut", happening.reason)

    def is_live(self, link: Link) -> bool:
        """Whether a connection is the present one."""
        return self._link is link

    # In.

    async def _item(self, agent: Agent, item: Item) -> None:
        if item.kind == "message":
            contact = agent.book.contact(item.peer)
            if self._strangers or (contact is not None and contact.standing is Standing.ACCEPTED):
                await self.keep(self._inbound(item))
            else:
                log.warning("%r: a message of %s, who is no contact, is not taken", self, item.peer)
        elif item.kind == "connection_request" and self._accepted & {"*", item.peer}:
            try:
                await agent.accept(item.peer)
            except InvalidInput as error:
                log.info("%r: %s is not accepted: %s", self, item.peer, error)
        await item.done()

    def _inbound(self, item: Item) -> Inbound:
        # The sender chooses the id: with his own mark before it, it can be no other's.
        mark = hashlib.sha256(item.peer.encode()).hexdigest()[:12]
        told = ("name", "content_type", "data", "sequence")
        return Inbound(
            id=f"{mark}-{item.id}",
            channel=self.kind,
            conversation=item.peer,
            sender=item.peer,
            text=item.text,
            account=self.account,
            metadata={name: item.plain[name] for name in told if item.plain.get(name)},
            tenant=self.tenant,
        )

    # Out.

    async def reconcile(self, sending: Sending) -> Reconciled:
        """Ask the outbox."""
        agent = self._agent
        if agent is None:
            raise Offline("the agent is not open")
        try:
            known = agent.book.sent(agent.book.resolve(sending.outbound.to), id_of(sending.key))
        except InvalidInput:
            return Reconciled.NOT_SENT
        return Reconciled.NOT_SENT if known is None else Reconciled.SENT


class Link:
    """The agent's outbox during one connection with the relay."""

    def __init__(self, account: Pinch, agent: Agent) -> None:
        self._account = account
        self._agent = agent

    async def send(self, sending: Sending) -> Sent:
        """Put one part into the outbox."""
        if not self._account.is_live(self):
            raise Offline("the relay is not there")
        part = sending.part
        text = "\n".join([*([part.text] if part.text else []), *(medium.url for medium in part.media)])
        if not text:
            raise Permanent("a part for pinch needs text or media")
        try:
            return Sent(await self._agent.send(sending.outbound.to, text, id=id_of(sending.key)))
        except OutboxFull as error:
            raise Transient(str(error)) from None
        except InvalidInput as error:
            raise Permanent(self._account.scrub(error)) from None
        except PosthouseError as error:
            # Repeating it is safe: the outbox knows its id.
            raise Transient(self._account.scrub(error)) from None


def id_of(key: str) -> str:
    """The message's id: a UUID that follows from the part's key."""
    raw = bytearray(hashlib.sha256(key.encode()).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))
