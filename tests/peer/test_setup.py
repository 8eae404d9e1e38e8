"""A peer from the configuration: which ways its messages may go, and what is wrong with a setting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import BOB, id_of, node
from tests.peer.test_depot import relay, sheltered  # noqa: F401 (a fixture)
from tests.relay.harness import HOST, Relay

from posthouse.config import Given, load
from posthouse.engine.engine import Engine
from posthouse.errors import ConfigError
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOX, OUTBOX
from posthouse.peer import frame
from posthouse.peer.setup import Service, make
from posthouse.stores.memory import MemoryStore


@asynccontextmanager
async def service(folder: Path, **settings: str) -> AsyncIterator[Service]:
    given = {"peer.listen": "/ip4/127.0.0.1/tcp/0", "peer.handler": "accept"} | {
        f"peer.{name}": value for name, value in settings.items()
    }
    config = load({}, folder, {name: Given(value, "test") for name, value in given.items()})
    async with Engine(MemoryStore({p.name: p for p in (OUTBOX, INBOX)})) as engine:
        made = await make(config, engine)
        await made.start()
        try:
            yield made
        finally:
            await made.close()


@pytest.mark.parametrize(
    ("direct", "orders", "streams", "gossips", "words"),
    [
        ("prefer", "true", True, True, ("direct", "gossip")),
        ("prefer", "false", True, True, ("direct", "gossip")),
        ("require", "true", True, True, ("direct", "direct_only")),
        ("require", "false", True, False, ("direct", "direct_only")),
        ("off", "false", False, True, ("gossip",)),
    ],
)
@coroutine
async def test_what_a_peer_serves_and_says_follows_from_its_settings(
    tmp_path: Path, direct: str, orders: str, streams: bool, gossips: bool, words: tuple[str, ...]
) -> None:
    async with service(tmp_path, direct=direct, orders=orders) as made:
        assert made.host.speaks(frame.PROTOCOL) is streams
        assert made.host.speaks("/meshsub/1.1.0") is gossips
        assert made.peer.session.capabilities == words
        assert (made.peer.courier.whispers is not None) is (direct != "require")
        assert made.depot is None


@coroutine
async def test_a_relay_that_is_configured_is_used_for_peers_that_are_away(tmp_path: Path, relay: Relay) -> None:  # noqa: F811
    url = f"ws://127.0.0.1:{relay.server.port}"
    async with service(tmp_path, relay=url, relay_host=HOST, relay_folder=str(tmp_path / "way")) as made:
        depot = made.depot
        assert depot is not None
        await until(lambda: depot.address is not None)
        await made.peer.send(id_of(BOB), "t1", "abort", 1)
        async with sheltered(tmp_path, BOB, relay) as bob:
            await until(lambda: bob.came)
            await until(lambda: made.peer.stats.acked == 1)


@coroutine
async def test_what_is_no_url_of_a_relay_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"peer\.relay: a relay's URL"):
        async with service(tmp_path, relay="http://nowhere"):
            pass
    with pytest.raises(ConfigError, match=r"peer\.direct"):
        async with service(tmp_path, direct="sometimes"):
            pass


@coroutine
async def test_a_peer_whose_relay_is_not_there_works_without_it(tmp_path: Path) -> None:
    async with (
        service(tmp_path, relay="ws://127.0.0.1:1", relay_folder=str(tmp_path / "way")) as made,
        node(tmp_path, BOB) as bob,
    ):
        await made.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: made.peer.stats.away)
        await bob.host.dial(made.host.addresses[0])
        await until(lambda: bob.came)
        await bob.peer.send(made.peer.id, "t1", "abort", 2)
        await until(lambda: bob.sent(State.DELIVERED))
