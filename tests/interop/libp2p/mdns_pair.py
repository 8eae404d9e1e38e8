"""Our host and a foreign peer that find each other by mDNS, as a program: it runs in a network of its own.

``python -m tests.interop.libp2p.mdns_pair WORDS…`` starts the peer with these words. On the loopback there is nothing
but the two; neither is told where the other is. Exit code 0: each has found the other.
"""

from __future__ import annotations

import asyncio
import sys

from tests.interop.libp2p.foreign import foreign
from tests.libp2p.hosts import hosts
from tests.libp2p.loop import until

from posthouse.libp2p.mdns import Mdns
from posthouse.libp2p.peer_id import PeerId

SERVICE = "klingon-testnet"


async def main() -> None:
    async with hosts(1) as (host,), foreign(sys.argv[1:]) as other:
        found: list[PeerId] = []
        service = Mdns(host, SERVICE, ["127.0.0.1"], connect=False, found=found.append)
        await other.do("mdns", topic=SERVICE)
        await service.start()
        try:
            # It dials us, since we only look; then we have found it, too.
            await other.wait("found", peer=str(host.peer_id))
            await until(lambda: host.is_connected(PeerId.parse(other.peer)))
            await until(lambda: PeerId.parse(other.peer) in found)
        finally:
            await service.close()


if __name__ == "__main__":
    asyncio.run(main())
