"""The rules of gossipsub, without any input or output: who gets which message, who is in a mesh, what a peer may do.

    a message comes ─→ wanted? new? signed? valid? ─→ subscribers, and everybody in the topic's mesh
    each heartbeat  ─→ meshes are filled and trimmed; ids of recent messages are told to some who are not in them

In: frames of peers, our own subscriptions and messages, heartbeats; the time and chance are arguments. Out: frames for
peers (``take``) and messages for subscribers. Whatever a peer sends, what is kept of it is bounded, and what it costs
us lowers its score. Peers that speak only floodsub get everything on their topics and are in no mesh.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Iterable

from ..errors import BadInput, GossipError, LimitReached
from ..key import PrivateKey
from ..peer_id import PeerId
from . import message as wire
from .cache import Recent, Seen
from .message import Frame, Letter, Message
from .params import Params
from .score import Scores

log = logging.getLogger(__name__)


class Verdict(enum.Enum):
    """What an application thinks of a message."""

    ACCEPT = enum.auto()
    IGNORE = enum.auto()
    """Not for us and not to be passed on, but nobody's fault."""
    REJECT = enum.auto()
    """Nobody should have sent it."""


Validator = Callable[[Message], Verdict]


class _Peer:
    __slots__ = ("asked", "dialled", "ihaves", "meshes", "promises", "topics")

    def __init__(self, meshes: bool, dialled: bool) -> None:
        self.meshes = meshes
        """Whether it can be in a mesh."""
        self.dialled = dialled
        self.topics: set[str] = set()
        self.ihaves = 0
        self.asked = 0
        self.promises: dict[bytes, float] = {}


class Router:
    """One host's part in all topics."""

    def __init__(
        self,
        key: PrivateKey,
        params: Params,
        rng: random.Random,
        seqno: int,
        application: Callable[[PeerId], float] | None = None,
    ) -> None:
        """``seqno``: our messages are numbered from here on; it must be greater than at every start before."""
        self._key = key
        self._me = PeerId.of(key.public)
        self._params = params
        self._rng = rng
        self._seqno = seqno
        self.scores = Scores(params, application)
        self._peers: dict[PeerId, _Peer] = {}
        self._topics: dict[str, Validator | None] = {}
        self._mesh: dict[str, set[PeerId]] = {}
        self._fanout: dict[str, set[PeerId]] = {}
        self._fanout_until: dict[str, float] = {}
        self._backoff: dict[tuple[str, PeerId], float] = {}
        self._seen = Seen(params.seen_s, params.seen_max)
        self._recent = Recent(params.history_ticks, params.history_gossip, params.history_bytes_max)
        self._ticks = 0
        self._out: dict[PeerId, Frame] = {}
        self.delivered: list[Message] = []
        """Messages for our subscribers; the caller takes them."""
        self.rejected = 0
        """Messages that were not passed on because they were wrong."""
        self.duplicates = 0

    # What is there.

    @property
    def topics(self) -> list[str]:
        """What we are subscribed to."""
        return list(self._topics)

    def mesh(self, topic: str) -> set[PeerId]:
        """Who gets every message of a topic from us at once."""
        return set(self._mesh.get(topic, ()))

    def peers(self, topic: str) -> list[PeerId]:
        """Who is subscribed to a topic."""
        return [peer for peer, state in self._peers.items() if topic in state.topics]

    def take(self) -> list[tuple[PeerId, bytes]]:
        """The frames that are to be sent now, in order."""
        out, self._out = self._out, {}
        return [(peer, data) for peer, frame in out.items() for data in wire.encode(frame, self._params)]

    # Our own side.

    def subscribe(self, topic: str, now: float, validator: Validator | None = None) -> None:
        """Take part in a topic. ``validator`` judges every message before it is passed on."""
        self._check_topic(topic)
        if topic in self._topics:
            self._topics[topic] = validator
            return
        self._topics[topic] = validator
        for peer in self._peers:
            self._to(peer).subscriptions.append((True, topic))
        mesh = self._mesh[topic] = set()
        old = self._fanout.pop(topic, set())
        self._fanout_until.pop(topic, None)
        good = [peer for peer in sorted(old) if self._may_graft(peer, topic, now)]
        more = [peer for peer in self._candidates(topic, now) if peer not in good]
        for peer in (good + self._chosen(more, self._params.mesh))[: self._params.mesh]:
            self._graft(peer, topic, mesh, now)

    def unsubscribe(self, topic: str, now: float) -> None:
        """Leave a topic."""
        if topic not in self._topics:
            return
        del self._topics[topic]
        for peer in self._peers:
            self._to(peer).subscriptions.append((False, topic))
        for peer in sorted(self._mesh.pop(topic)):
            self._prune(peer, topic, now, self._params.leave_backoff_s)

    def publish(self, topic: str, data: bytes, now: float) -> Message:
        """Send a message of our own; who is subscribed here does not get it."""
        self._check_topic(topic)
        if len(data) > self._params.message_bytes_max:
            raise LimitReached(f"a message of {len(data)} bytes; at most {self._params.message_bytes_max} can be sent")
        self._seqno += 1
        message = wire.write(topic, data, self._seqno, self._key)
        self._seen.add(message.id, now)
        self._recent.add(message)
        threshold = self._params.publish_threshold
        on_topic = [peer for peer in self.peers(topic) if self.scores.of(peer, now) >= threshold]
        if self._params.flood_publish:
            to = set(on_topic)
        else:
            to = {peer for peer in on_topic if not self._peers[peer].meshes}
            to |= self._mesh[topic] if topic in self._mesh else self._fanout_of(topic, on_topic, now)
        for peer in sorted(to):
            self._to(peer).messages.append(message.encoded)
        return message

    def _fanout_of(self, topic: str, on_topic: Iterable[PeerId], now: float) -> set[PeerId]:
        chosen = self._fanout.setdefault(topic, set())
        self._fanout_until[topic] = now + self._params.fanout_s
        more = [peer for peer in on_topic if self._peers[peer].meshes and peer not in chosen]
        chosen.update(self._chosen(more, self._params.mesh - len(chosen)))
        return chosen

    def _check_topic(self, topic: str) -> None:
        if not 0 < len(topic.encode()) <= self._params.topic_bytes_max:
            raise BadInput(f"a topic's name has 1 to {self._params.topic_bytes_max} bytes")
        known = len(self._topics) + len(self._fanout)
        if topic not in self._topics and topic not in self._fanout and known >= self._params.topics_max:
            raise LimitReached(f"there are {known} topics already")

    # Peers.

    def came(self, peer: PeerId, meshes: bool, dialled: bool) -> None:
        """A peer is there. ``meshes``: it speaks gossipsub, not only floodsub."""
        state = self._peers.get(peer)
        if state is not None:
            state.meshes = meshes
            return
        self._peers[peer] = _Peer(meshes, dialled)
        self.scores.came(peer)
        self.greet(peer)

    def greet(self, peer: PeerId) -> None:
        """Tell a peer what we are subscribed to: the first thing that it hears, on every new stream."""
        if self._topics:
            self._to(peer).subscriptions += [(True, topic) for topic in self._topics]

    def lost(self, peer: PeerId) -> None:
        """What was to be sent to a peer did not reach it: begin anew with it. What it told us stands."""
        self._out.pop(peer, None)
        for topic in self._topics:
            self._leave_mesh(peer, topic)
        for fanout in self._fanout.values():
            fanout.discard(peer)

    def went(self, peer: PeerId, now: float) -> None:
        """A peer is gone."""
        if self._peers.pop(peer, None) is None:
            return
        self.lost(peer)
        # Names cost nothing, so what was agreed with one that left is not kept for as long as it liked.
        most = now + self._params.prune_backoff_s
        for topic in self._mesh:
            if self._backoff.get((topic, peer), 0.0) > most:
                self._backoff[topic, peer] = most
        self.scores.went(peer, now)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    def receive(self, peer: PeerId, data: bytes, now: float) -> None:
        """A frame of a peer. GossipError: it breaks the rules, and is held against the peer."""
        state = self._peers.get(peer)
        if state is None or self.scores.of(peer, now) < self._params.graylist_threshold:
            return
        try:
            frame = wire.decode(data, self._params)
        except GossipError:
            self.scores.offended(peer, 2.0)
            raise
        for subscribes, topic in frame.subscriptions:
            self._subscribed(peer, state, subscribes, topic, now)
        for encoded in frame.messages:
            self._message(peer, state, encoded, now)
        if frame.ihave:
            self._ihave(peer, state, frame.ihave, now)
        if frame.iwant and self.scores.of(peer, now) >= self._params.gossip_threshold:
            self._iwant(peer, frame.iwant)
        for topic in frame.graft:
            self._grafted(peer, state, topic, now)
        for topic, backoff_s in frame.prune:
            self._pruned(peer, topic, backoff_s, now)

    def _subscribed(self, peer: PeerId, state: _Peer, subscribes: bool, topic: str, now: float) -> None:
        if not subscribes:
            state.topics.discard(topic)
            self._leave_mesh(peer, topic)
            if topic in self._fanout:
                self._fanout[topic].discard(peer)
        elif topic not in state.topics:
            if len(state.topics) >= self._params.topics_per_peer_max:
                self.scores.offended(peer)
                return
            state.topics.add(topic)
            # No heartbeat is waited for while there is hardly a mesh.
            mesh = self._mesh.get(topic)
            if mesh is not None and len(mesh) < self._params.mesh_eager and self._may_graft(peer, topic, now):
                self._graft(peer, topic, mesh, now)

    # Messages.

    def _message(self, peer: PeerId, state: _Peer, encoded: bytes, now: float) -> None:
        try:
            letter = Letter(encoded, self._params)
            if letter.topic not in self._topics:
                return
            if letter.id in self._seen:
                self.duplicates += 1
                state.promises.pop(letter.id, None)
                return
            message = letter.proven()
        except GossipError as error:
            log.debug("%s sent a message that is refused: %s", peer, error)
            self.rejected += 1
            self.scores.lied(peer)
            return
        state.promises.pop(message.id, None)
        self._seen.add(message.id, now)
        if message.author == self._me:
            # An echo of a former life of ours.
            return
        validator = self._topics[message.topic]
        verdict = Verdict.ACCEPT if validator is None else validator(message)
        if verdict is Verdict.ACCEPT:
            self.scores.brought(peer)
            self._recent.add(message)
            self.delivered.append(message)
            self._pass_on(message, peer)
        elif verdict is Verdict.REJECT:
            self.rejected += 1
            self.scores.lied(peer)

    def _pass_on(self, message: Message, source: PeerId) -> None:
        to = self._mesh[message.topic] | {
            peer for peer, state in self._peers.items() if not state.meshes and message.topic in state.topics
        }
        for peer in sorted(to - {source, message.author}):
            self._to(peer).messages.append(message.encoded)

    # Gossip.

    def _ihave(self, peer: PeerId, state: _Peer, told: list[tuple[str, list[bytes]]], now: float) -> None:
        params = self._params
        state.ihaves += 1
        if state.ihaves > params.ihave_frames_max or self.scores.of(peer, now) < params.gossip_threshold:
            return
        wanted = dict.fromkeys(
            id for topic, ids in told if topic in self._topics for id in ids if id and id not in self._seen
        )
        ask = list(wanted)[: max(0, params.ihave_ids_max - state.asked)]
        if not ask:
            return
        state.asked += len(ask)
        self._rng.shuffle(ask)
        self._to(peer).iwant += ask
        # One of them is remembered: who tells of messages and never sends them is found out in the end.
        state.promises.setdefault(ask[0], now + params.promise_s)

    def _iwant(self, peer: PeerId, ids: list[bytes]) -> None:
        left = self._params.queue_bytes_max
        for id in dict.fromkeys(ids[: self._params.ihave_ids_max]):
            message = self._recent.give(id, peer, self._params.retransmissions)
            if message is not None:
                self._to(peer).messages.append(message.encoded)
                left -= len(message.encoded)
                if left <= 0:
                    return

    def _tell(self, topic: str, besides: set[PeerId], now: float) -> None:
        """Tell some who are not in the mesh what there is."""
        ids = self._recent.ids(topic)
        if not ids:
            return
        params = self._params
        others = [
            peer
            for peer in self.peers(topic)
            if peer not in besides and self._peers[peer].meshes and self.scores.of(peer, now) >= params.gossip_threshold
        ]
        self._rng.shuffle(ids)
        count = max(params.gossip_lazy, int(params.gossip_factor * len(others)))
        for peer in self._chosen(others, count):
            self._to(peer).ihave.append((topic, ids[: params.ihave_ids_max]))

    # Meshes.

    def _grafted(self, peer: PeerId, state: _Peer, topic: str, now: float) -> None:
        mesh = self._mesh.get(topic)
        # A topic that we are not on gets no answer: who makes up topics must not make us work.
        if mesh is None or peer in mesh or not state.meshes:
            return
        params = self._params
        until = self._backoff.get((topic, peer), 0.0)
        if now < until:
            self.scores.offended(peer)
            if now < until - params.prune_backoff_s + params.graft_flood_s:
                self.scores.offended(peer)
            self._prune(peer, topic, now, params.prune_backoff_s)
        elif self.scores.of(peer, now) < 0 or (len(mesh) >= params.mesh_high and not state.dialled):
            self._prune(peer, topic, now, params.prune_backoff_s)
        else:
            state.topics.add(topic)
            mesh.add(peer)
            self.scores.grafted(peer, topic, now)

    def _pruned(self, peer: PeerId, topic: str, backoff_s: float, now: float) -> None:
        if topic in self._mesh:
            self._leave_mesh(peer, topic)
            self._back_off(peer, topic, now + (backoff_s or self._params.prune_backoff_s))

    def _graft(self, peer: PeerId, topic: str, mesh: set[PeerId], now: float) -> None:
        mesh.add(peer)
        self.scores.grafted(peer, topic, now)
        self._to(peer).graft.append(topic)

    def _prune(self, peer: PeerId, topic: str, now: float, backoff_s: float) -> None:
        self._leave_mesh(peer, topic)
        self._back_off(peer, topic, now + backoff_s)
        if self._peers[peer].meshes:
            self._to(peer).prune.append((topic, backoff_s))

    def _leave_mesh(self, peer: PeerId, topic: str) -> None:
        if topic in self._mesh:
            self._mesh[topic].discard(peer)
        self.scores.pruned(peer, topic)

    def _back_off(self, peer: PeerId, topic: str, until: float) -> None:
        self._backoff[topic, peer] = max(until, self._backoff.get((topic, peer), 0.0))

    def _may_graft(self, peer: PeerId, topic: str, now: float) -> bool:
        state = self._peers.get(peer)
        return (
            state is not None
            and state.meshes
            and topic in state.topics
            and now
            >= self._backoff.get((topic, peer), 0.0) + self._params.backoff_slack_s * ((topic, peer) in self._backoff)
            and self.scores.of(peer, now) >= 0
        )

    def _candidates(self, topic: str, now: float) -> list[PeerId]:
        mesh = self._mesh.get(topic, set())
        return [peer for peer in self._peers if peer not in mesh and self._may_graft(peer, topic, now)]

    def _chosen(self, peers: list[PeerId], count: int) -> list[PeerId]:
        """So many of them, by chance."""
        return self._rng.sample(peers, min(max(count, 0), len(peers)))

    # Heartbeats.

    def heartbeat(self, now: float) -> None:
        """Call it every ``heartbeat_s``."""
        self._ticks += 1
        self._seen.forget(now)
        for pair in [pair for pair, until in self._backoff.items() if until + self._params.backoff_slack_s <= now]:
            del self._backoff[pair]
        for peer, state in self._peers.items():
            state.ihaves = state.asked = 0
            broken = [id for id, until in state.promises.items() if until <= now]
            for id in broken:
                del state.promises[id]
                if id not in self._seen:
                    self.scores.offended(peer)
        self.scores.decay(now)
        for topic, mesh in self._mesh.items():
            self._keep_mesh(topic, mesh, now)
            self._tell(topic, mesh, now)
        for topic in list(self._fanout):
            self._keep_fanout(topic, now)
        self._recent.shift()

    def _keep_mesh(self, topic: str, mesh: set[PeerId], now: float) -> None:
        params = self._params
        scores = {peer: self.scores.of(peer, now) for peer in sorted(mesh)}
        for peer, score in scores.items():
            if score < 0:
                self._prune(peer, topic, now, params.prune_backoff_s)
        if len(mesh) < params.mesh_low:
            for peer in self._chosen(self._candidates(topic, now), params.mesh - len(mesh)):
                self._graft(peer, topic, mesh, now)
        elif len(mesh) > params.mesh_high:
            for peer in sorted(mesh - self._best(mesh, scores)):
                self._prune(peer, topic, now, params.prune_backoff_s)
        dialled = sum(self._peers[peer].dialled for peer in mesh)
        if len(mesh) >= params.mesh_low and dialled < params.mesh_dialled:
            ours = [peer for peer in self._candidates(topic, now) if self._peers[peer].dialled]
            for peer in self._chosen(ours, params.mesh_dialled - dialled):
                self._graft(peer, topic, mesh, now)
        if self._ticks % params.opportunistic_ticks == 0 and len(mesh) > 1:
            ranked = sorted(self.scores.of(peer, now) for peer in mesh)
            median = ranked[len(ranked) // 2]
            if median < params.opportunistic_score:
                better = [peer for peer in self._candidates(topic, now) if self.scores.of(peer, now) > median]
                for peer in self._chosen(better, params.opportunistic_peers):
                    self._graft(peer, topic, mesh, now)

    def _best(self, mesh: set[PeerId], scores: dict[PeerId, float]) -> set[PeerId]:
        """Who stays in a mesh that is too large: the best, some by chance, enough that we dialled."""
        params = self._params
        order = sorted(mesh)
        self._rng.shuffle(order)
        order.sort(key=lambda peer: -scores.get(peer, 0.0))
        rest = order[params.mesh_best :]
        self._rng.shuffle(rest)
        order = order[: params.mesh_best] + rest
        kept, others = order[: params.mesh], order[params.mesh :]
        missing = params.mesh_dialled - sum(self._peers[peer].dialled for peer in kept)
        ours = [peer for peer in others if self._peers[peer].dialled][: max(missing, 0)]
        give_way = [peer for peer in reversed(kept) if not self._peers[peer].dialled][: len(ours)]
        return {*kept, *ours}.difference(give_way)

    def _keep_fanout(self, topic: str, now: float) -> None:
        if self._fanout_until[topic] <= now:
            del self._fanout[topic], self._fanout_until[topic]
            return
        threshold = self._params.publish_threshold
        good = {
            peer
            for peer in self._fanout[topic]
            if topic in self._peers[peer].topics and self.scores.of(peer, now) >= threshold
        }
        self._fanout[topic] = good
        self._tell(topic, good, now)

    def _to(self, peer: PeerId) -> Frame:
        frame = self._out.get(peer)
        if frame is None:
            frame = self._out[peer] = Frame()
        return frame
