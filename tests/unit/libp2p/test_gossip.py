"""The rules of gossip, on routers without sockets: a net of them, seeded, and peers that break the rules."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.libp2p import protobuf
from posthouse.libp2p.errors import BadInput, GossipError, LimitReached
from posthouse.libp2p.gossip import message as wire
from posthouse.libp2p.gossip.cache import Recent, Seen
from posthouse.libp2p.gossip.message import Frame, Letter, Message
from posthouse.libp2p.gossip.params import Params
from posthouse.libp2p.gossip.router import Router, Verdict
from posthouse.libp2p.gossip.score import Scores
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId

ROOT = Path(__file__).parents[3]
PARAMS = Params()
KEYS = [PrivateKey(bytes([number]) * 32) for number in range(1, 61)]
PEERS = [PeerId.of(key.public) for key in KEYS]


def frame_of(**parts: list[object]) -> bytes:
    (data,) = wire.encode(Frame(**parts), PARAMS)  # type: ignore[arg-type]
    return data


class Net:
    """Routers that are connected as told; frames travel in steps, some may be lost."""

    def __init__(self, count: int, seed: int, params: Params = PARAMS, loss: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000.0
        self.loss = loss
        self.routers = {
            peer: Router(key, params, random.Random(seed + n), 1)
            for n, (peer, key) in enumerate(zip(PEERS[:count], KEYS[:count], strict=True))
        }
        self.got: dict[PeerId, list[bytes]] = {peer: [] for peer in self.routers}
        self.said = hashlib.sha256()

    def connect(self, one: PeerId, two: PeerId) -> None:
        self.routers[one].came(two, True, True)
        self.routers[two].came(one, True, False)

    def connect_randomly(self, degree: int) -> None:
        """A ring, so that it hangs together, and some more."""
        peers = list(self.routers)
        links = {frozenset((a, b)) for a, b in zip(peers, peers[1:] + peers[:1], strict=True)}
        while len(links) < len(peers) * degree // 2:
            links.add(frozenset(self.rng.sample(peers, 2)))
        for link in sorted(links, key=sorted):
            self.connect(*sorted(link))

    def settle(self) -> None:
        """Carry frames until nobody has anything to say."""
        moving = True
        while moving:
            moving = False
            for peer, router in self.routers.items():
                for to, data in router.take():
                    moving = True
                    self.said.update(peer.raw + to.raw + data)
                    if self.rng.random() >= self.loss:
                        self.routers[to].receive(peer, data, self.now)
                        self.collect(to)

    def collect(self, peer: PeerId) -> None:
        delivered = self.routers[peer].delivered
        self.got[peer] += [message.data for message in delivered]
        delivered.clear()

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += PARAMS.heartbeat_s
            for router in self.routers.values():
                router.heartbeat(self.now)
            self.settle()


# Messages.


def test_a_message_is_signed_by_its_author_and_known_by_its_number() -> None:
    message = wire.write("t", b"data", 7, KEYS[0])
    assert message.id == PEERS[0].raw + bytes(7) + b"\x07"
    assert Letter(message.encoded, PARAMS).proven() == message


@pytest.mark.parametrize("change", ["author", "data", "seqno", "topic", "signature", "key", "none"])
def test_a_message_that_was_changed_is_not_proven(change: str) -> None:
    number = (3).to_bytes(8, "big")
    fields = {1: PEERS[0].raw, 2: b"data", 3: number, 4: b"topic"}
    body = b"".join(protobuf.bytes_field(field, value) for field, value in fields.items())
    fields[5] = KEYS[0].sign(b"libp2p-pubsub:" + body)
    other = {
        "author": (1, PEERS[1].raw),
        "data": (2, b"other"),
        "seqno": (3, bytes(8)),
        "topic": (4, b"other"),
        "signature": (5, bytes(64)),
        "key": (6, KEYS[1].public.encoded),
        "none": (6, KEYS[0].public.encoded),
    }
    field, value = other[change]
    fields[field] = value
    letter = Letter(b"".join(protobuf.bytes_field(*pair) for pair in fields.items()), PARAMS)
    if change == "none":
        # Some say the key though it stands in the id.
        assert letter.proven().data == b"data"
    else:
        with pytest.raises(GossipError):
            letter.proven()


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_a_message_without_author_number_or_signature_is_refused(missing: int) -> None:
    message = wire.write("t", b"x", 7, KEYS[0])
    parts = {field: value for field, value in protobuf.fields(message.encoded, protobuf.Budget(9)) if field != missing}
    encoded = b"".join(protobuf.bytes_field(field, protobuf.octets(value)) for field, value in parts.items())
    with pytest.raises(GossipError):
        Letter(encoded, PARAMS).proven()


def test_frames_there_and_back() -> None:
    frame = Frame(
        subscriptions=[(True, "a"), (False, "b")],
        messages=[wire.write("a", b"1", 1, KEYS[0]).encoded],
        ihave=[("a", [b"one", b"two"])],
        iwant=[b"three"],
        graft=["a"],
        prune=[("b", 60.0)],
    )
    (data,) = wire.encode(frame, PARAMS)
    assert wire.decode(data, PARAMS) == frame
    assert Frame().is_empty
    assert list(wire.encode(Frame(), PARAMS)) == []


def test_no_frame_is_longer_than_it_may_be() -> None:
    params = replace(PARAMS, frame_bytes_max=2_000, message_bytes_max=900)
    frame = Frame(messages=[bytes(900)] * 7, ihave=[(f"t{n}", [bytes(40)] * 20) for n in range(7)])
    encoded = list(wire.encode(frame, params))
    assert max(map(len, encoded)) <= 2_000
    back = [wire.decode(data, params) for data in encoded]
    assert [entry for each in back for entry in each.messages] == frame.messages
    assert [entry for each in back for entry in each.ihave] == frame.ihave


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x00" * 30_000,  # Empty subscriptions.
        b"\x12\x00" * 30_000,  # Empty messages.
        protobuf.bytes_field(3, b"\x1a\x00" * 30_000),  # Empty grafts.
        protobuf.bytes_field(3, protobuf.bytes_field(1, b"\x12\x00" * 30_000)),  # Empty ids.
        frame_of(subscriptions=[(True, "x" * 300)]),
        frame_of(iwant=[bytes(200)]),
        b"\x0a\xff",
        b"\x00",
    ],
)
def test_frames_that_hold_too_much_or_nonsense_are_refused_and_remembered(data: bytes) -> None:
    router = Router(KEYS[0], PARAMS, random.Random(1), 1)
    router.came(PEERS[1], True, False)
    with pytest.raises(GossipError):
        router.receive(PEERS[1], data, 1.0)
    assert router.scores.of(PEERS[1], 1.0) < 0


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_frame_is_understood_or_refused(data: bytes) -> None:
    router = Router(KEYS[0], PARAMS, random.Random(1), 1)
    router.subscribe("t", 1.0)
    router.came(PEERS[1], True, False)
    for content in (data, protobuf.bytes_field(3, data), protobuf.bytes_field(2, data), protobuf.bytes_field(1, data)):
        try:
            router.receive(PEERS[1], content, 1.0)
        except GossipError:
            pass
    assert not router.delivered


# The net.


@pytest.mark.parametrize("seed", range(3))
def test_every_message_reaches_everybody_once(seed: int) -> None:
    net = Net(20, seed)
    net.connect_randomly(8)
    for router in net.routers.values():
        router.subscribe("t", net.now)
    net.settle()
    net.beat(3)
    sent = []
    for number in range(20):
        peer = net.rng.choice(list(net.routers))
        sent.append((peer, f"{seed}/{number}".encode()))
        net.routers[peer].publish("t", sent[-1][1], net.now)
        net.settle()
        if number % 10 == 9:
            net.beat()
    for peer in net.routers:
        assert sorted(net.got[peer]) == sorted(data for author, data in sent if author != peer)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lost_on_the_way_is_told_of_and_asked_for(seed: int) -> None:
    net = Net(20, seed, replace(PARAMS, flood_publish=False))
    net.connect_randomly(10)
    for router in net.routers.values():
        router.subscribe("t", net.now)
    net.settle()
    net.beat(3)
    net.loss = 0.3
    author = PEERS[0]
    for number in range(20):
        net.routers[author].publish("t", b"%d" % number, net.now)
        net.settle()
        net.beat()
    net.beat(5)
    missing = sum(20 - len(set(got)) for peer, got in net.got.items() if peer != author)
    assert all(len(got) == len(set(got)) for got in net.got.values())
    assert missing <= 4, f"{missing} of 380 were lost"


def test_meshes_stay_within_their_bounds_and_hang_together() -> None:
    net = Net(40, 3)
    net.connect_randomly(20)
    for router in net.routers.values():
        router.subscribe("t", net.now)
    net.settle()
    # Whoever was turned away in the first crush may come back after the backoff.
    net.beat(75)
    for peer, router in net.routers.items():
        mesh = router.mesh("t")
        assert PARAMS.mesh_low <= len(mesh) <= PARAMS.mesh_high + PARAMS.mesh_dialled
        assert peer not in mesh
    # Both sides of a link agree on it.
    for peer, router in net.routers.items():
        assert all(peer in net.routers[other].mesh("t") for other in router.mesh("t"))


def a_busy_net() -> str:
    """Everything that was said in a net that is crowded, loses frames and is left by some; as a hash."""
    net = Net(25, 9, loss=0.1)
    net.connect_randomly(18)
    for router in net.routers.values():
        router.subscribe("t", net.now)
    net.settle()
    for number in range(20):
        net.routers[PEERS[number]].publish("t", b"%d" % number, net.now)
        net.settle()
        net.beat()
        net.routers[PEERS[number]].unsubscribe("t", net.now)
    return net.said.hexdigest()


def test_chance_is_all_in_the_seed() -> None:
    script = "from tests.unit.libp2p.test_gossip import a_busy_net; print(a_busy_net())"
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(said) == 1


def test_a_mesh_closes_over_those_who_leave() -> None:
    net = Net(30, 5)
    net.connect_randomly(16)
    for router in net.routers.values():
        router.subscribe("t", net.now)
    net.settle()
    net.beat(3)
    leavers = PEERS[:10]
    for peer in leavers:
        net.routers[peer].unsubscribe("t", net.now)
    net.settle()
    net.beat(3)
    for peer in PEERS[10:30]:
        assert not net.routers[peer].mesh("t") & set(leavers)
        assert len(net.routers[peer].mesh("t")) >= 4
    net.routers[PEERS[12]].publish("t", b"x", net.now)
    net.settle()
    assert all(net.got[peer] == [b"x"] for peer in PEERS[10:30] if peer != PEERS[12])
    assert not any(net.got[peer] for peer in leavers)


def test_who_is_not_subscribed_can_publish() -> None:
    for flood in (True, False):
        net = Net(6, 1, replace(PARAMS, flood_publish=flood))
        for peer in PEERS[1:6]:
            net.connect(PEERS[0], peer)
            net.routers[peer].subscribe("t", net.now)
        net.settle()
        net.routers[PEERS[0]].publish("t", b"x", net.now)
        net.settle()
        assert all(net.got[peer] == [b"x"] for peer in PEERS[1:6])
        assert not net.routers[PEERS[0]].mesh("t")
        net.beat(70)
        # The mesh takes over whom we published to.
        net.routers[PEERS[0]].subscribe("t", net.now)
        net.settle()
        assert len(net.routers[PEERS[0]].mesh("t")) == 5


def test_floodsub_peers_get_everything_and_are_in_no_mesh() -> None:
    net = Net(3, 1)
    one, flood, three = PEERS[:3]
    net.routers[one].came(flood, False, True)
    net.routers[flood].came(one, True, False)
    net.connect(one, three)
    for router in net.routers.values():
        router.subscribe("t", net.now)
    net.settle()
    net.routers[three].publish("t", b"x", net.now)
    net.settle()
    assert net.got[flood] == [b"x"]
    assert flood not in net.routers[one].mesh("t")


# One router and peers that break the rules.


class Alone:
    """A router that is subscribed to t, and one peer that we play."""

    def __init__(self, params: Params = PARAMS, meshed: bool = True) -> None:
        self.now = 1_000.0
        self.router = Router(KEYS[0], params, random.Random(1), 1)
        self.router.subscribe("t", self.now, self.judge)
        self.verdict = Verdict.ACCEPT
        self.peer, self.key = PEERS[1], KEYS[1]
        self.router.came(self.peer, True, False)
        if meshed:
            self.say(subscriptions=[(True, "t")])
        self.router.take()

    def judge(self, message: Message) -> Verdict:
        return self.verdict

    def say(self, **parts: list[object]) -> list[Frame]:
        """Say something; what it answers to us."""
        self.router.receive(self.peer, frame_of(**parts), self.now)
        return [wire.decode(data, PARAMS) for to, data in self.router.take() if to == self.peer]

    @property
    def score(self) -> float:
        return self.router.scores.of(self.peer, self.now)

    def beat(self, times: int = 1) -> list[Frame]:
        out = []
        for _ in range(times):
            self.now += 1.0
            self.router.heartbeat(self.now)
            out += [wire.decode(data, PARAMS) for to, data in self.router.take() if to == self.peer]
        return out


def test_forged_messages_are_not_passed_on_and_cost_the_sender_its_place() -> None:
    alone = Alone()
    forged = wire.write("t", b"x", 1, KEYS[2]).encoded[:-1] + b"\0"
    alone.say(messages=[forged])
    assert not alone.router.delivered
    assert alone.score < PARAMS.gossip_threshold
    alone.say(messages=[wire.write("t", b"y", 2, KEYS[2]).encoded[:-1] + b"\0"])
    alone.say(messages=[wire.write("t", b"y", 3, KEYS[2]).encoded[:-1] + b"\0"])
    assert alone.score < PARAMS.graylist_threshold
    # Nothing that it sends is looked at any more.
    alone.say(messages=[wire.write("t", b"good", 4, KEYS[2]).encoded])
    assert not alone.router.delivered
    assert alone.router.rejected == 3
    (first, *_) = alone.beat()
    assert first.prune == [("t", PARAMS.prune_backoff_s)]
    # To go and come back changes nothing; time does.
    alone.router.went(alone.peer, alone.now)
    alone.router.came(alone.peer, True, False)
    assert alone.score < PARAMS.graylist_threshold
    alone.beat(600)
    assert alone.score > -1
    alone.say(messages=[wire.write("t", b"good", 5, KEYS[2]).encoded])
    assert [message.data for message in alone.router.delivered] == [b"good"]


def test_what_the_application_rejects_is_not_passed_on_and_what_it_ignores_is_nobodys_fault() -> None:
    alone = Alone()
    alone.verdict = Verdict.IGNORE
    alone.say(messages=[wire.write("t", b"x", 1, KEYS[2]).encoded])
    assert alone.score >= 0
    alone.verdict = Verdict.REJECT
    alone.say(messages=[wire.write("t", b"x", 2, KEYS[2]).encoded])
    assert alone.score < 0
    assert not alone.router.delivered


def test_messages_come_once_and_our_own_never() -> None:
    alone = Alone()
    message = wire.write("t", b"x", 1, KEYS[2]).encoded
    alone.say(messages=[message, message])
    alone.say(messages=[message])
    mine = alone.router.publish("t", b"mine", alone.now)
    alone.say(messages=[mine.encoded, wire.write("t", b"older", 0, KEYS[0]).encoded])
    assert [message.data for message in alone.router.delivered] == [b"x"]
    assert alone.router.duplicates == 3
    alone.say(messages=[wire.write("elsewhere", b"x", 9, KEYS[2]).encoded])
    assert len(alone.router.delivered) == 1


def test_who_grafts_too_soon_is_pruned_and_punished() -> None:
    alone = Alone()
    assert alone.router.mesh("t") == {alone.peer}
    alone.say(prune=[("t", 60.0)])
    assert not alone.router.mesh("t")
    # We do not graft it either.
    assert all(not frame.graft for frame in alone.beat(30))
    for _ in range(3):
        (answer,) = alone.say(graft=["t"])
        assert answer.prune == [("t", PARAMS.prune_backoff_s)]
    assert alone.score < 0
    assert not alone.router.mesh("t")


def test_after_the_backoff_a_mesh_is_filled_again() -> None:
    alone = Alone()
    alone.say(prune=[("t", 20.0)])
    assert all(not frame.graft for frame in alone.beat(20))
    assert any(frame.graft == ["t"] for frame in alone.beat(3))


def test_a_backoff_without_end_is_cut() -> None:
    alone = Alone()
    control = protobuf.text_field(1, "t") + protobuf.number_field(3, 1 << 62)
    alone.router.receive(alone.peer, protobuf.bytes_field(3, protobuf.bytes_field(4, control)), alone.now)
    alone.now += PARAMS.backoff_max_s
    assert any(frame.graft for frame in alone.beat(3))


def test_a_graft_for_a_topic_that_we_are_not_on_gets_no_answer() -> None:
    alone = Alone()
    assert alone.say(graft=["made up"], prune=[("made up", 5.0)]) == []
    assert alone.router.mesh("made up") == set()


def test_topics_of_a_peer_are_bounded() -> None:
    alone = Alone()
    alone.say(subscriptions=[(True, f"t{n}") for n in range(400)])
    assert sum(alone.peer in alone.router.peers(f"t{n}") for n in range(400)) == PARAMS.topics_per_peer_max - 1
    assert alone.score < 0


def test_what_was_told_of_is_asked_for_within_bounds_and_broken_promises_count() -> None:
    alone = Alone(replace(PARAMS, ihave_ids_max=50, ihave_frames_max=3))
    ids = [b"%d" % n for n in range(80)]
    asked = [frame.iwant for frame in alone.say(ihave=[("t", ids), ("elsewhere", [b"x"])])]
    assert len(asked) == 1
    assert len(asked[0]) == 50
    assert set(asked[0]) <= set(ids)
    assert alone.say(ihave=[("t", [b"one more"])]) == []
    for _ in range(30):
        alone.beat()
        alone.say(ihave=[("t", [random.Random(alone.now).randbytes(20)])])
    alone.beat(5)
    assert alone.score < PARAMS.gossip_threshold
    assert alone.say(ihave=[("t", [b"again"])]) == []


def test_messages_are_given_to_who_asks_but_not_for_ever() -> None:
    alone = Alone()
    message = alone.router.publish("t", b"x", alone.now)
    alone.router.take()
    for _ in range(PARAMS.retransmissions):
        (answer,) = alone.say(iwant=[message.id, b"unknown"])
        assert answer.messages == [message.encoded]
    assert alone.say(iwant=[message.id]) == []
    other = alone.router.publish("t", b"y", alone.now)
    alone.beat(PARAMS.history_ticks)
    assert alone.say(iwant=[other.id]) == []


def test_ids_of_recent_messages_are_told_to_those_outside_the_mesh() -> None:
    alone = Alone()
    alone.say(prune=[("t", 60.0)])
    message = alone.router.publish("t", b"x", alone.now)
    alone.router.take()
    told = [frame.ihave for frame in alone.beat(6) if frame.ihave]
    assert told == [[("t", [message.id])]] * PARAMS.history_gossip


def test_a_mesh_that_is_full_takes_only_those_that_we_dialled() -> None:
    router = Router(KEYS[0], PARAMS, random.Random(1), 1)
    router.subscribe("t", 1.0)
    for peer in PEERS[1:20]:
        router.came(peer, True, False)
        router.receive(peer, frame_of(graft=["t"]), 1.0)
    assert len(router.mesh("t")) == PARAMS.mesh_high
    router.came(PEERS[30], True, True)
    router.receive(PEERS[30], frame_of(subscriptions=[(True, "t")], graft=["t"]), 1.0)
    assert PEERS[30] in router.mesh("t")
    router.heartbeat(2.0)
    assert len(router.mesh("t")) == PARAMS.mesh
    assert PEERS[30] in router.mesh("t")


def test_topics_and_messages_of_our_own_are_checked() -> None:
    router = Router(KEYS[0], replace(PARAMS, topics_max=2), random.Random(1), 1)
    for topic in ("", "x" * 257):
        with pytest.raises(BadInput):
            router.subscribe(topic, 1.0)
    with pytest.raises(LimitReached):
        router.publish("t", bytes(PARAMS.message_bytes_max + 1), 1.0)
    router.subscribe("a", 1.0)
    router.subscribe("b", 1.0)
    with pytest.raises(LimitReached):
        router.subscribe("c", 1.0)


def test_what_a_peer_that_left_asked_for_is_not_kept() -> None:
    alone = Alone()
    alone.say(prune=[("t", 3_600.0)])
    alone.router.went(alone.peer, alone.now)
    alone.router.came(alone.peer, True, False)
    alone.now += PARAMS.prune_backoff_s + 2
    (answer, *_) = alone.say(subscriptions=[(True, "t")])
    assert answer.graft == ["t"]


@pytest.mark.parametrize(
    "wrong",
    [{"mesh_low": 7}, {"mesh_high": 5}, {"heartbeat_s": 0}, {"message_bytes_max": 1 << 20}, {"gossip_threshold": 1.0}],
)
def test_numbers_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Params(**wrong)


# Memory.


def test_seen_ids_are_bounded_by_time_and_number() -> None:
    seen = Seen(10.0, 3)
    assert seen.add(b"a", 0.0)
    assert not seen.add(b"a", 1.0)
    for n in range(3):
        seen.add(b"%d" % n, 2.0)
    assert b"a" not in seen
    assert len(seen) == 3
    seen.forget(11.0)
    assert len(seen) == 3
    seen.forget(12.0)
    assert len(seen) == 0


def test_recent_messages_are_bounded_by_bytes() -> None:
    recent = Recent(5, 3, 1_000)
    messages = [wire.write("t", bytes(200), n, KEYS[0]) for n in range(20)]
    for number, message in enumerate(messages):
        recent.add(message)
        if number % 3 == 0:
            recent.shift()
    assert len(recent) == 1_000 // len(messages[0].encoded)
    assert recent.give(messages[-1].id, PEERS[1], 1) == messages[-1]
    assert recent.give(messages[0].id, PEERS[1], 1) is None


def test_scores_of_those_who_left_are_bounded() -> None:
    scores = Scores(replace(PARAMS, score_forget_max=5, score_forget_s=100.0))
    for peer in PEERS[:20]:
        scores.came(peer)
        scores.offended(peer, 5.0)
        scores.went(peer, 1.0)
    assert len(scores) == 5
    scores.decay(101.0)
    assert len(scores) == 0
    scores.came(PEERS[0])
    scores.brought(PEERS[0])
    assert scores.of(PEERS[0], 1.0) > 0
    scores.went(PEERS[0], 1.0)
    assert len(scores) == 0


def test_the_application_has_a_say() -> None:
    scores = Scores(PARAMS, lambda peer: -7.0 if peer == PEERS[3] else 0.0)
    assert scores.of(PEERS[3], 1.0) == -7.0
