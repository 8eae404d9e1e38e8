"""mDNS: peers on the same network find each other without knowing an address.

In: a host that listens. Out: what others announce goes into the host's address book, and they are dialled. What is
announced proves nothing: whoever answers a dial must still be the peer that was named. How many are looked up at once
and how many addresses one may announce is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from zeroconf import BadTypeInNameException, InterfaceChoice, RecordUpdate, RecordUpdateListener, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from .errors import BadInput, BadMultiaddr, Libp2pError
from .host import Host
from .multiaddr import Multiaddr
from .peer_id import PeerId

log = logging.getLogger(__name__)

SERVICE = "_p2p._udp"
"""The name under which libp2p peers look for each other; networks of their own use another."""
LOOKUPS_MAX = 32
LOOKUP_S = 3.0
ADDRESSES_MAX = 16
_TEXT_MAX = 255
_KEY = b"dnsaddr="
_POINTER = 12
"""The kind of record that names a service."""


class _Pointers(RecordUpdateListener):
    """Hears of every service of a type. (The library's browser passes over types without underscores.)"""

    def __init__(self, service_type: str, heard: Callable[[str], None]) -> None:
        super().__init__()
        self._type = service_type.lower()
        self._heard = heard

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        for update in records:
            record = update.new
            if record.type == _POINTER and record.name.lower() == self._type and not record.is_expired(now):
                self._heard(str(getattr(record, "alias", "")))


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
        if not 0 < len(service) <= 60 or not all(letter.isalnum() or letter in "-_." for letter in service):
            raise BadInput(f"a service's name has 1 to 60 letters, digits, dots, hyphens or underscores: {service!r}")
        self._host = host
        self._type = f"{service}.local."
        self._interfaces = interfaces
        self._connect = connect
        self._found = found
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._lookups: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Announce what the host listens on now, and begin to look."""
        self._zeroconf = AsyncZeroconf(interfaces=list(self._interfaces) or InterfaceChoice.All)
        name = f"{secrets.token_hex(16)}.{self._type}"
        texts = [_KEY + str(address).encode() for address in self._host.addresses[:ADDRESSES_MAX]]
        text = b"".join(bytes((len(each),)) + each for each in texts if len(each) <= _TEXT_MAX)
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
        self._zeroconf.zeroconf.async_add_listener(_Pointers(self._type, self._heard), None)
        # It asks; the listener hears the answers.
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, self._type, handlers=[_no_matter])

    async def close(self) -> None:
        """Say goodbye and look no more."""
        for task in self._lookups:
            task.cancel()
        await asyncio.gather(*self._lookups, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
            self._browser = None
        if self._zeroconf is not None:
            await self._zeroconf.async_close()
            self._zeroconf = None

    def _heard(self, name: str) -> None:
        if self._zeroconf is not None and len(self._lookups) < LOOKUPS_MAX:
            task = self._host.spawn(self._look_up(self._zeroconf.zeroconf, name))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)

    async def _look_up(self, zeroconf: Zeroconf, name: str) -> None:
        try:
            info = AsyncServiceInfo(self._type, name)
        except BadTypeInNameException:
            return
        if not await info.async_request(zeroconf, LOOKUP_S * 1_000):
            return
        by_peer: dict[PeerId, list[Multiaddr]] = {}
        for address in announced(info.text or b""):
            peer = address.peer_id
            if peer is not None and peer != self._host.peer_id:
                by_peer.setdefault(peer, []).append(address)
        for peer, addresses in by_peer.items():
            self._host.book.add(peer, addresses)
            if self._found is not None:
                self._found(peer)
            if self._connect:
                try:
                    await self._host.dial(peer)
                except Libp2pError as error:
                    log.debug("%s was announced but cannot be reached: %s", peer, error)


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
