"""mDNS: peers on the same network find each other without knowing an address.

In: a host that listens. Out: what others announce goes into the host's address book, and they are dialled. What is
announced proves nothing: whoever answers a dial must still be the peer that was named. How many are dialled at once and
how many addresses one may announce is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from zeroconf import InterfaceChoice, RecordUpdate, RecordUpdateListener, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from .errors import BadInput, BadMultiaddr, Libp2pError
from .host import Host
from .multiaddr import Multiaddr
from .peer_id import PeerId

log = logging.getLogger(__name__)

SERVICE = "_p2p._udp"
"""The name under which libp2p peers look for each other; networks of their own use another."""
DIALS_MAX = 32
ADDRESSES_MAX = 16
_ENTRY_BYTES_MAX = 255
_KEY = b"dnsaddr="
_TEXT = 16
"""The kind of record that a service's text is."""


class _Texts(RecordUpdateListener):
    """Hears what every service of a type says of itself; that comes with the answer to who is there.

    (The library's own way looks up each service, and passes over types without underscores and over long names.)
    """

    def __init__(self, service_type: str, heard: Callable[[bytes], None]) -> None:
        super().__init__()
        self._end = f".{service_type}".lower()
        self._heard = heard

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        for update in records:
            record = update.new
            if record.type == _TEXT and record.name.lower().endswith(self._end) and not record.is_expired(now):
                text = getattr(record, "text", b"")
                if isinstance(text, bytes):
                    self._heard(text)


class Mdns:
    """Announces a host and looks for others, from ``start`` to ``close``."""

    def __init__(
        self,
        host: Host,
        service: str = SERVICE,
        interfaces: Sequence[str] = (),
        connect: bool = True,
        found: Callable[[PeerId], None] | None = None,
    ) -> None:
        """``interfaces``: IP addresses to use, all if none is given. ``found`` is called for each peer that is seen."""
        if not 0 < len(service) <= 40 or not all(letter.isalnum() or letter in "-_." for letter in service):
            raise BadInput(f"a service's name has 1 to 40 letters, digits, dots, hyphens or underscores: {service!r}")
        self._host = host
        self._type = f"{service}.local."
        self._interfaces = interfaces
        self._connect = connect
        self._found = found
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._dials: dict[PeerId, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Announce what the host listens on now, and begin to look."""
        self._zeroconf = AsyncZeroconf(interfaces=list(self._interfaces) or InterfaceChoice.All)
        # First of all: what others say while we announce ourselves is not said again for us.
        self._zeroconf.zeroconf.async_add_listener(_Texts(self._type, self._heard), None)
        name = f"{secrets.token_hex(8)}.{self._type}"
        texts = [_KEY + str(address).encode() for address in self._host.addresses[:ADDRESSES_MAX]]
        text = b"".join(bytes((len(each),)) + each for each in texts if len(each) <= _ENTRY_BYTES_MAX)
        endpoint = next((found for address in self._host.addresses if (found := address.endpoint)), None)
        info = AsyncServiceInfo(
            self._type,
            name,
            port=endpoint.port if endpoint is not None else 4001,
            properties=text,
            server=f"{name.partition('.')[0]}.local.",
            parsed_addresses=list(self._interfaces) or ["127.0.0.1"],
        )
        announced = await self._zeroconf.async_register_service(info, strict=False)
        await announced
        # It asks; the listener hears the answers.
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, self._type, handlers=[_no_matter])

    async def close(self) -> None:
        """Say goodbye and look no more."""
        tasks = list(self._dials.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
            self._browser = None
        if self._zeroconf is not None:
            await self._zeroconf.async_close()
            self._zeroconf = None

    def _heard(self, text: bytes) -> None:
        by_peer: dict[PeerId, list[Multiaddr]] = {}
        for address in announced(text):
            peer = address.peer_id
            if peer is not None and peer != self._host.peer_id:
                by_peer.setdefault(peer, []).append(address)
        for peer, addresses in by_peer.items():
            self._host.book.add(peer, addresses)
            if self._found is not None:
                self._found(peer)
            if self._connect and peer not in self._dials and len(self._dials) < DIALS_MAX:
                self._dials[peer] = self._host.spawn(self._dial(peer))

    async def _dial(self, peer: PeerId) -> None:
        try:
            await self._host.dial(peer)
        except Libp2pError as error:
            log.debug("%s was announced but cannot be reached: %s", peer, error)
        finally:
            self._dials.pop(peer, None)


def _no_matter(**_: object) -> None:
    pass


def announced(text: bytes) -> list[Multiaddr]:
    """The addresses in an announcement's text; what is none is passed over."""
    found: list[Multiaddr] = []
    at = 0
    while at < len(text) and len(found) < ADDRESSES_MAX:
        size = text[at]
        entry = text[at + 1 : at + 1 + size]
        at += 1 + size
        if len(entry) == size and entry.startswith(_KEY):
            try:
                address = Multiaddr.parse(entry[len(_KEY) :].decode())
            except (BadMultiaddr, UnicodeDecodeError):
                continue
            if address.endpoint is not None:
                found.append(address)
    return found
