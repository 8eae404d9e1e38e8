"""What peers are worth to us: who brings new messages gains, who breaks rules loses.

In: what a peer did, and heartbeats. Out: a number; below thresholds a peer gets less and less of us. Good deeds are
capped, so that they never pay for many bad ones. A bad score outlives the connection, a good one does not.
"""

from __future__ import annotations

from collections.abc import Callable

from ..peer_id import PeerId
from .params import Params


class _Record:
    __slots__ = ("behaviour", "first", "gone_at", "invalid", "mesh_since")

    def __init__(self) -> None:
        self.first = 0.0
        self.invalid = 0.0
        self.behaviour = 0.0
        self.mesh_since: dict[str, float] = {}
        self.gone_at: float | None = None


class Scores:
    """The scores of all peers."""

    def __init__(self, params: Params, application: Callable[[PeerId], float] | None = None) -> None:
        """``application`` adds what the application thinks of a peer."""
        self._params = params
        self._application = application
        self._records: dict[PeerId, _Record] = {}

    def of(self, peer: PeerId, now: float) -> float:
        """A peer's score."""
        params = self._params
        score = self._application(peer) if self._application is not None else 0.0
        record = self._records.get(peer)
        if record is None:
            return score
        if record.mesh_since:
            longest_s = min(now - min(record.mesh_since.values()), params.score_time_cap_s)
            score += params.score_time_weight * longest_s
        score += params.score_first_weight * record.first
        score += params.score_invalid_weight * record.invalid**2
        over = record.behaviour - params.score_behaviour_overlooked
        if over > 0:
            score += params.score_behaviour_weight * over**2
        return score

    def came(self, peer: PeerId) -> None:
        """A peer is there (again)."""
        self._records.setdefault(peer, _Record()).gone_at = None

    def went(self, peer: PeerId, now: float) -> None:
        """A peer is gone: what it gained is forgotten."""
        record = self._records.get(peer)
        if record is None:
            return
        record.first = 0.0
        record.mesh_since.clear()
        if record.invalid < 0.1 and record.behaviour < 0.1:
            del self._records[peer]
            return
        # The end of the line: what was there longest is forgotten first.
        del self._records[peer]
        self._records[peer] = record
        record.gone_at = now
        gone = [peer for peer, record in self._records.items() if record.gone_at is not None]
        for old in gone[: max(0, len(gone) - self._params.score_forget_max)]:
            del self._records[old]

    def grafted(self, peer: PeerId, topic: str, now: float) -> None:
        """It entered a mesh of ours."""
        if (record := self._records.get(peer)) is not None:
            record.mesh_since[topic] = now

    def pruned(self, peer: PeerId, topic: str) -> None:
        """It left a mesh of ours."""
        if (record := self._records.get(peer)) is not None:
            record.mesh_since.pop(topic, None)

    def brought(self, peer: PeerId) -> None:
        """It was the first to bring a good message."""
        if (record := self._records.get(peer)) is not None:
            record.first = min(record.first + 1, self._params.score_first_cap)

    def lied(self, peer: PeerId) -> None:
        """It sent a message that nobody should pass on."""
        if (record := self._records.get(peer)) is not None:
            record.invalid += 1

    def offended(self, peer: PeerId, count: float = 1.0) -> None:
        """It broke the rules of behaviour."""
        if (record := self._records.get(peer)) is not None:
            record.behaviour += count

    def decay(self, now: float) -> None:
        """A heartbeat: everything fades, and old grudges end."""
        params = self._params
        for peer, record in list(self._records.items()):
            if record.gone_at is not None and now - record.gone_at >= params.score_forget_s:
                del self._records[peer]
                continue
            record.first *= params.score_first_decay
            record.invalid *= params.score_invalid_decay
            record.behaviour *= params.score_behaviour_decay

    def __len__(self) -> int:
        return len(self._records)
