"""Trade messages a second over direct streams, one stream a message, beside go-libp2p and py-libp2p in the same run.

    ./dev bench peer [--quick] [--folder DIR]

Ours is durable on both sides: a message is on disk before it is sent, and on disk and processed before it is
acknowledged; what the disk takes for a sync is told beside. The peers on Go and on py-libp2p keep nothing. "one after
the other" is one trade, in which each message waits for the acknowledgement of the one before; "32 at once" is 32
trades. "ours → go" is from the first post to the last acknowledgement; "out of the outbox" is from the dial on, when
all are posted. Sender and receiver are processes of their own. Rounds of go → go and ours → go alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402
from _run import make_console, print_place, print_target, work_folder  # noqa: E402
from _server import running  # noqa: E402
from rich.table import Table  # noqa: E402
from tests.interop.libp2p.foreign import Foreign, foreign, python_peer  # noqa: E402
from tests.interop.peer.test_traders import go_trader  # noqa: E402

from posthouse.engine.tuning import tune_interpreter  # noqa: E402
from posthouse.libp2p.host import Host, Identified  # noqa: E402
from posthouse.libp2p.key import PrivateKey  # noqa: E402
from posthouse.libp2p.multiaddr import Multiaddr  # noqa: E402
from posthouse.peer.node import Peer, open_peer  # noqa: E402

WIDE = 32
PAYLOAD = {"offer_nonce": "02" * 66, "request_nonce": "03" * 66}
CALLERS = 320
ROUNDS = 5
DIALS = 30
SYNCS = 100
GO_SHARE_MIN, PY_LEAD_MIN, DIAL_S_MAX = 0.8, 5.0, 0.030


WORDS = ("peer", "run", "--no-metrics", "--handler", "accept", "--listen", "/ip4/127.0.0.1/tcp/0")
SETTINGS = {"peer.rate_per_s": "0", "log.level": "warning"}
"""A peer that accepts everything."""


class Figure(NamedTuple):
    """Messages a second, and the CPU of our own process for each (0: not ours)."""

    per_s: float
    cpu_s: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench peer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer messages")
    parser.add_argument("--folder", type=Path, help="where to write [default: bench/results]")
    options = parser.parse_args()
    console = make_console()
    with work_folder(options.folder, "peer") as folder:
        if not print_place(console, folder):
            return 2
        few, many = (100, 960) if options.quick else (3_000, 6_400)
        tune_interpreter()  # as a server does
        with console.status("measuring"):
            before_s = sync_s(folder)
            rows, share, dial_s = uvloop.run(measure(folder, few, many))
            after_s = sync_s(folder)
    table = Table(title="Direct messages, a stream each", title_justify="left")
    for column in ("from → to", "one after the other", f"{WIDE} at once", "our CPU a message"):
        table.add_column(column, justify="left" if column == "from → to" else "right")
    for name, (one, wide) in rows.items():
        cpu = f"{1e3 * wide.cpu_s:.2f} ms" if wide.cpu_s else "–"
        table.add_row(name, f"{one.per_s:,.0f}/s", f"{wide.per_s:,.0f}/s", cpu)
    console.print(table)
    console.print(f"Dial, with all handshakes: {1e3 * dial_s:.1f} ms (median of {DIALS})", highlight=False)
    console.print(
        f"The disk syncs 4 KiB in {1e3 * before_s:.2f} ms before and {1e3 * after_s:.2f} ms after", highlight=False
    )
    said = f"ours → go is {share:.2f}× go → go, one after the other (≥ {GO_SHARE_MIN}×, middle of {ROUNDS})"
    print_target(console, share >= GO_SHARE_MIN, said)
    lead = rows["ours → go"][0].per_s / rows["py-libp2p → py-libp2p"][0].per_s
    print_target(
        console, lead >= PY_LEAD_MIN, f"ours → go is {lead:.1f}× py → py, one after the other (≥ {PY_LEAD_MIN:g}×)"
    )
    print_target(console, dial_s <= DIAL_S_MAX, f"a dial takes {1e3 * dial_s:.1f} ms (≤ {1e3 * DIAL_S_MAX:g} ms)")
    return 0


def sync_s(folder: Path) -> float:
    """How long the disk takes for a small synced write: the median of some."""
    taken = []
    with (folder / "syncs").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            begun_s = time.perf_counter()
            file.write(bytes(4_096))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begun_s)
    return statistics.median(taken)


async def measure(folder: Path, few: int, many: int) -> tuple[dict[str, tuple[Figure, Figure]], float, float]:
    """The rows of the table, the middle of the rounds' shares (ours → go of go → go), and how long a dial takes."""
    rows: dict[str, tuple[Figure, Figure]] = {}
    go = go_trader()
    async with foreign(go) as one, foreign(go) as other:
        await quiet(one, other)
        await one.do("dial", addr=other.address)
        async with open_peer(folder / "to-go") as peer:
            await meet(peer, other.address)
            rounds = []
            # By turns, so that all have the machine as it is in those seconds; the first is to get warm.
            for number in range(1 + ROUNDS):
                rounds.append(
                    (
                        await theirs(one, other.peer, few, 1),
                        await ours(peer, other.peer, few, 1),
                        await waiting(folder / f"waiting-{number}", other.address, few, 1),
                    )
                )
            del rounds[0]
            rows["go → go"] = (middle(each[0] for each in rounds), await theirs(one, other.peer, many, WIDE))
            rows["ours → go"] = (middle(each[1] for each in rounds), await ours(peer, other.peer, many, WIDE))
            rows["ours → go, out of the outbox"] = (
                middle(each[2] for each in rounds),
                await waiting(folder / "waiting", other.address, many, WIDE),
            )
            share = statistics.median(each[1].per_s / each[0].per_s for each in rounds)
        with running(folder / "from-go", WORDS, SETTINGS) as server:
            address = server.summary["peer_addresses"][0]
            await one.do("dial", addr=address)
            us = Multiaddr.parse(address).peer_id
            rows["go → ours"] = (await theirs(one, str(us), few // 3, 1), await theirs(one, str(us), many, WIDE))
        dial_s = await dials(other.address)
    with running(folder / "receiver", WORDS, SETTINGS) as server:
        address = server.summary["peer_addresses"][0]
        async with open_peer(folder / "sender") as peer:
            await meet(peer, address)
            to = str(Multiaddr.parse(address).peer_id)
            rows["ours → ours"] = (await ours(peer, to, few // 3, 1), await ours(peer, to, many, WIDE))
    words = python_peer()
    async with foreign(words) as one, foreign(words) as other:
        await one.do("dial", addr=other.address)
        rows["py-libp2p → py-libp2p"] = (
            await bare(one, other.peer, max(few // 12, 50), 1),
            await bare(one, other.peer, max(many // 8, 64), WIDE),
        )
    return rows, share, dial_s


def middle(figures: Iterable[Figure]) -> Figure:
    """The figure in the middle of several."""
    return statistics.median_low(figures)


async def quiet(*traders: Foreign) -> None:
    for trader in traders:
        await trader.do("mode", mode="quiet")


async def meet(peer: Peer, address: str) -> None:
    """Connect, and wait until both know what the other speaks: what is measured is messages."""
    network = peer.network
    assert isinstance(network, Host)
    known = asyncio.Event()
    unwatch = network.watch(lambda event: known.set() if isinstance(event, Identified) else None)
    await network.dial(Multiaddr.parse(address))
    await known.wait()
    unwatch()


async def ours(peer: Peer, to: str, count: int, at: int) -> Figure:
    """So many messages over so many trades; each of the trades is served in order, so one is one after the other."""
    done = peer.stats.acked + count
    begun_s, cpu_s = time.perf_counter(), _cpu_s()
    await post(peer, to, count, at)
    await acknowledged(peer, done)
    return Figure(count / (time.perf_counter() - begun_s), (_cpu_s() - cpu_s) / count)


async def waiting(folder: Path, address: str, count: int, at: int) -> Figure:
    """The same where all wait in the outbox for a peer that is away: from the dial to the last acknowledgement."""
    async with open_peer(folder) as peer:
        await post(peer, str(Multiaddr.parse(address).peer_id), count, at)
        begun_s, cpu_s = time.perf_counter(), _cpu_s()
        await meet(peer, address)
        await acknowledged(peer, count)
        return Figure(count / (time.perf_counter() - begun_s), (_cpu_s() - cpu_s) / count)


async def post(peer: Peer, to: str, count: int, at: int) -> None:
    """Callers that each send one message after the other, until all are on disk."""
    run = time.perf_counter()

    async def call(first: int) -> None:
        for number in range(first, count, CALLERS):
            await peer.send(to, f"{run}-{number % at}", "nonce_exchange", PAYLOAD)

    await asyncio.gather(*(call(first) for first in range(CALLERS)))


async def acknowledged(peer: Peer, done: int) -> None:
    # Counters announce themselves to nobody.
    while peer.stats.acked < done:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def theirs(trader: Foreign, to: str, count: int, at: int) -> Figure:
    """The same, sent by a trader on Go."""
    said = await trader.do("bench", peer=to, data=f"run-{time.time_ns()}", payload=PAYLOAD, count=count, at=at)
    return Figure(count // at * at / said["seconds"])


async def bare(peer: Foreign, to: str, count: int, at: int) -> Figure:
    """The same between peers on py-libp2p, which exchange frames and keep nothing."""
    said = await peer.do("bench", peer=to, count=count, at=at, size=500)
    return Figure(count // at * at / said["seconds"])


async def dials(address: str) -> float:
    """How long it takes to connect, handshakes included."""
    taken = []
    for _ in range(DIALS):
        async with Host(PrivateKey.generate()) as host:
            begun_s = time.perf_counter()
            await host.dial(Multiaddr.parse(address))
            taken.append(time.perf_counter() - begun_s)
    return statistics.median(taken)


if __name__ == "__main__":
    raise SystemExit(main())
