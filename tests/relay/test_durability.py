"""What reached the relay is on disk soon, and a slow reader costs neither messages nor memory: a relay as a process.

Kills and cuts in mid-flush, many at a time: tests/faults/test_relay_crashes.py.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.relay.harness import DEADLINE_S, Agent
from tests.relay.process import RelayProcess
from tests.relay.test_store_and_forward import announced, stall

from posthouse.wire.envelope import Envelope, MessageType

MIB = 1_048_576


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path, {"relay.queue_max": "5000"}) as process:
        yield process


def on_disk(relay: RelayProcess) -> Callable[[], int]:
    """How many messages were ever committed, as another process reads it: SQLite shows no commit before its sync."""
    (path,) = relay.folder.glob("**/*.db")
    store = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    return lambda: int(store.execute("SELECT last_number FROM head").fetchone()[0])


def test_a_frame_that_reached_the_relay_is_on_disk_within_20_ms_and_survives_its_kill(
    relay: RelayProcess, record_property: Callable[[str, object], None]
) -> None:
    senders = [relay.agent(f"sender {n}").connect() for n in range(5)]
    online, away = relay.agent("online").connect(), relay.agent("away")
    committed = on_disk(relay)
    took_ms = []
    sent = 0
    for _ in range(30):
        started = time.monotonic()
        for sender in senders:
            for recipient in (online, away):
                for _ in range(5):
                    sender.message(recipient, bytes(1_024))
        sent += 50
        while committed() < sent:
            assert time.monotonic() - started < DEADLINE_S, "it does not come to the disk"
        took_ms.append((time.monotonic() - started) * 1_000)
    relay.kill()
    # From before the first of 50 was sent until the last was on disk. The median is what is promised; the
    # bounds leave room for a machine that does other things, or stands still in one round or two.
    took_ms.sort()
    record_property("on_disk_ms_median", round(statistics.median(took_ms), 2))
    record_property("on_disk_ms_worst", round(took_ms[-1], 2))
    print(f"50 frames on disk: median {statistics.median(took_ms):.1f} ms, worst {took_ms[-1]:.1f} ms")
    assert statistics.median(took_ms) < 100
    assert took_ms[len(took_ms) * 9 // 10] < 2_000
    relay.start()
    for recipient in (online, away):
        recipient.connect()
        assert announced(recipient) == sent // 2, "what was on disk is gone"
        recipient.socket.close()


def test_a_relay_that_is_killed_in_mid_flush_keeps_the_rest_in_order(relay: RelayProcess) -> None:
    alice, bob = relay.agent("alice").connect(), relay.agent("bob")
    sent = [alice.message(bob, str(n).encode()) for n in range(300)]
    alice.settled()
    bob.connect()
    announced(bob)
    assert stall(bob, 50) == sent[:50]
    for message in sent[:20]:
        bob.confirm(message)
    alice.receive_all(20)
    relay.kill()
    relay.start()
    bob.answers_pings = True
    bob.connect()
    assert announced(bob) == 280
    assert bob.receive_all(280) == sent[20:]


def memory_bytes(relay: RelayProcess) -> int:
    text = Path(f"/proc/{relay.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1_024


def messages(agent: Agent, count: int) -> Iterator[Envelope]:
    """So many messages, without what the relay says itself."""
    while count:
        found = agent.receive()
        if found.type == MessageType.MESSAGE:
            count -= 1
            yield found


def test_slow_readers_cost_bounded_memory_and_lose_nothing(
    relay: RelayProcess, record_property: Callable[[str, object], None]
) -> None:
    alice = relay.agent("alice").connect()
    slow = [relay.agent(f"slow {n}", receive_bytes=4_096).connect() for n in range(3)]
    body = bytes(60_000)

    def send(to: Agent, count: int) -> list[bytes]:
        return [alice.message(to, body).message_id for _ in range(count)]

    # As many as fill what is bounded: buffers, the store's caches, the allocator's arenas.
    sent = {agent: send(agent, 150) for agent in slow}
    assert alice.settled() == []
    before = memory_bytes(relay)
    for agent in slow:
        sent[agent] += send(agent, 300)
    assert alice.settled() == []
    grown = memory_bytes(relay) - before
    record_property("grown_bytes", grown)
    print(f"{3 * 300 * len(body) / MIB:.0f} MiB for slow readers: {grown / MIB:.1f} MiB more")
    assert grown < 16 * MIB
    for agent in slow:
        assert [message.message_id for message in messages(agent, 450)] == sent[agent]
    assert memory_bytes(relay) - before < 24 * MIB
