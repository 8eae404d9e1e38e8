"""What a peer takes, holds back or refuses, and what it says: the rules of direct messages, without socket or clock.

    message → judge → Take      the next of its trade: it is recorded, then processed, then acknowledged
                      Old       its number has passed: a copy is answered as the first was, anything else is a replay
                      Early     a number before it is missing: it is held back, and the missing one is asked for
                      Refused   it can never be taken: a failed acknowledgement with the reason

In: messages with the peer that the stream has proven, and the time. Out: judgements, messages to send, verdicts on
acknowledgements. The sender of a message must be the stream's own peer and the trade's other party. A trade in which
the other party has signed once takes nothing unsigned from then on, and one that began with streams only takes nothing
by gossip. It keeps what it must know of every trade in
memory; whoever holds the engine writes it down.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from ..control.trade import HEARD, TRADES, Trade, decode, each, heard, number_of
from ..errors import BadFrame
from ..libp2p.key import PrivateKey
from ..libp2p.peer_id import PeerId
from ..mailbox.command import Command, Keep, Verdict
from ..mailbox.message import SECOND, Instant
from ..mailbox.outcome import Delivery
from ..mailbox.store import Store
from . import capability, frame
from .capability import Mode, Path
from .frame import Direct
from .signature import check_signable, is_signed_by, sign, write

AHEAD_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Rules:
    """What a peer allows others."""

    strangers: bool = True
    """Whether the first message of a trade that is not known opens it, with its sender as the other party."""
    signed_only: bool = False
    """Whether unsigned messages are refused in every trade."""
    sign: bool = True
    """Whether our own messages are signed."""
    direct: Mode = Mode.PREFER
    """How private messages travel: see ``capability``."""
    trades_max: int = 100_000
    trades_per_peer_max: int = 1_000
    """Trades that one other peer may open with us."""
    rate_per_s: float = 1_000.0
    """Messages of one peer; 0: as many as come. A large one counts as one for each 16 KiB."""
    burst: int = 2_000
    gap_s: float = 600.0
    """How long a missing number is waited for where the other side cannot say what became of it."""


class Take(NamedTuple):
    """The next message of its trade (or one without a number)."""

    commands: tuple[Command, ...]
    """To be applied with the post."""


class Old(NamedTuple):
    """Its number has passed."""


class Early(NamedTuple):
    """Numbers before it have not come."""

    first: int
    """The first that is missing."""


class Refused(NamedTuple):
    """It can never be taken."""

    reason: str
    """A word of the journal's list."""
    error: str
    """For the sender."""


Judgement = Take | Old | Early | Refused


class Bucket:
    """How many messages of one peer are taken: ``rate_per_s`` on average, ``burst`` at once."""

    __slots__ = ("_at_s", "_left", "_rules")

    def __init__(self, rules: Rules, now_s: float) -> None:
        self._rules = rules
        self._left = float(rules.burst)
        self._at_s = now_s

    def wait_s(self, now_s: float, cost: float = 1.0) -> float:
        """Take one, or as many as ``cost`` says; how long it has to wait for its turn."""
        rate = self._rules.rate_per_s
        if not rate:
            return 0.0
        self._left = min(float(self._rules.burst), self._left + max(now_s - self._at_s, 0.0) * rate)
        self._at_s = now_s
        self._left -= cost
        return max(-self._left / rate, 0.0)

    def give_back(self, cost: float = 1.0) -> None:
        """What was taken did not wait for its turn."""
        self._left += cost


class Session:
    """One peer's trades, and its own key."""

    def __init__(self, key: PrivateKey, rules: Rules | None = None) -> None:
        self.key = key
        self.rules = rules or Rules()
        self.me = str(PeerId.of(key.public))
        self.trades: dict[str, Trade] = {}
        self.heard: dict[str, int] = {}
        """The highest number taken from the other side, by trade."""
        self._by_peer: Counter[str] = Counter()
        self._ahead: dict[str, int] = {}
        """The same of trades that nobody has opened yet, of which the first numbers will never come."""
        self._unwritten: set[str] = set()
        """Trades that are known here and perhaps not in the store."""
        self.gossips = False
        """Whether we take private messages by gossip."""

    def load(self, store: Store) -> None:
        """Read what the store keeps of every trade."""
        for name, trade in each(store):
            self.know(name, trade)
            self.heard[name] = heard(store, name)

    def reload(self, name: str, value: bytes | None) -> None:
        """Somebody else has changed a trade."""
        if value is not None:
            self.know(name, decode(value))

    def know(self, name: str, trade: Trade) -> None:
        """A trade as it is now."""
        known = self.trades.get(name)
        if known is None or known.peer != trade.peer:
            self._by_peer[trade.peer] += 1
            if known is not None:
                self._by_peer[known.peer] -= 1
        self.trades[name] = trade

    def forget(self, name: str) -> tuple[Command, ...]:
        """Know nothing more of a trade; what has to be applied for it."""
        trade = self.trades.pop(name, None)
        self.heard.pop(name, None)
        if trade is not None:
            self._by_peer[trade.peer] -= 1
        return Keep(TRADES, name, None), Keep(HEARD, name, None)

    def over(self, now: Instant, keep_s: float) -> list[str]:
        """Trades that ended so long ago that nothing of them is needed any more."""
        line = now - int(keep_s * SECOND)
        return [
            name
            for name, trade in self.trades.items()
            if max(trade.timeout_s * SECOND, trade.opened_at) < line and (trade.timeout_s or not self.heard.get(name))
        ]

    # What comes.

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What we say of ourselves."""
        return capability.ours(self.rules.direct, self.gossips)

    @property
    def takes_streams(self) -> bool:
        """Whether private messages are taken on streams: also where that is off, for trades that began with them."""
        return self.rules.direct is not Mode.OFF or any(trade.direct_only for trade in self.trades.values())

    def judge(self, peer: str, message: Direct, now: Instant, path: Path = Path.STREAM) -> Judgement:
        """What is to be done with a message of a peer that came by this path."""
        if message.type not in frame.PRIVATE_TYPES:
            return Refused("forbidden_type", "unknown message type")
        if not message.message_id or not message.trade_id:
            return Refused("malformed", "a message needs a message_id and a trade_id")
        if message.from_peer != peer:
            return Refused("spoofed", "from_peer is not the peer of this stream")
        trade = self.trades.get(message.trade_id)
        if trade is not None and trade.peer != peer:
            return Refused("spoofed", "not a party of this trade")
        if trade is None:
            if not self.rules.strangers:
                return Refused("unmatched", "unknown trade")
            if len(self.trades) >= self.rules.trades_max or self._by_peer[peer] >= self.rules.trades_per_peer_max:
                return Refused("full", "too many trades")
        if message.signature:
            if not is_signed_by(message, peer):
                return Refused("auth", "the signature is not the sender's")
        elif self.rules.signed_only or (trade is not None and trade.signed):
            return Refused("auth", "this trade takes signed messages only")
        only = self.rules.direct is Mode.REQUIRE or (trade is not None and trade.direct_only)
        if only and path is Path.GOSSIP:
            return Refused("forbidden_type", "this trade takes messages on direct streams only")
        return self._by_number(trade, peer, message, now, path)

    def _by_number(self, trade: Trade | None, peer: str, message: Direct, now: Instant, path: Path) -> Judgement:
        name, number = message.trade_id, message.sequence_num
        last = self.last(name)
        if number and number <= last:
            return Old()
        if number > last + 1:
            return Early(last + 1)
        now_trade = Trade(peer, now) if trade is None else trade
        if message.signature and not now_trade.signed:
            now_trade = now_trade._replace(signed=True)
        if message.swap_timeout > now_trade.timeout_s:
            now_trade = now_trade._replace(timeout_s=message.swap_timeout)
        now_trade = capability.learned(now_trade, message.capabilities, path, self.rules.direct)
        commands: list[Command] = []
        if now_trade != trade or name in self._unwritten:
            # Known at once: whoever else changes the trade before this is written changes it as it is from now on.
            self.know(name, now_trade)
            self._unwritten.add(name)
            commands.append(Keep(TRADES, name, now_trade.encode()))
        if number:
            commands.append(Keep(HEARD, name, str(number).encode()))
        return Take(tuple(commands))

    def last(self, name: str) -> int:
        """The highest number of a trade that was taken, or that will never come."""
        return self.heard.get(name, 0) or self._ahead.get(name, 0)

    def took(self, message: Direct) -> None:
        """It is recorded."""
        self._ahead.pop(message.trade_id, None)
        self._unwritten.discard(message.trade_id)
        if message.sequence_num:
            self.heard[message.trade_id] = max(message.sequence_num, self.heard.get(message.trade_id, 0))

    def skip(self, name: str, next_number: int) -> tuple[Command, ...]:
        """The other side says that no number below this one will come any more; what has to be applied for it."""
        if next_number - 1 <= self.last(name):
            return ()
        if name not in self.trades:
            # Nothing is written down for whoever only says that he will begin.
            if len(self._ahead) >= AHEAD_MAX:
                del self._ahead[next(iter(self._ahead))]
            self._ahead[name] = next_number - 1
            return ()
        self.heard[name] = next_number - 1
        return (Keep(HEARD, name, str(next_number - 1).encode()),)

    # What goes.

    def outgoing(self, delivery: Delivery) -> Direct:
        """A message of the outbox as it is sent: numbered and signed. InvalidInput if it cannot be."""
        return self.signed(self._numbered(delivery))

    def written(self, delivery: Delivery) -> tuple[Direct, bytes]:
        """The same, and its frame."""
        message = self._numbered(delivery)
        if not self.rules.sign:
            return message, frame.encode(message)
        message, body = write(message, self.key)
        return message, frame.framed(body)

    def _numbered(self, delivery: Delivery) -> Direct:
        message = delivery.message
        headers = message.headers
        return Direct(
            message.kind,
            message.lane,
            headers.get("order_id", ""),
            self.me,
            orjson.loads(message.body),
            int(headers.get("timestamp", "0")),
            message.id,
            number_of(self.trades.get(message.lane), delivery.seq, headers),
            True,
            int(headers.get("swap_timeout", "0")),
            capabilities=self.capabilities,
        )

    def opened(self, peer: str, now: Instant, timeout_s: int) -> Trade:
        """The record of a trade that we begin."""
        return Trade(peer, now, timeout_s=timeout_s, direct_only=self.rules.direct is Mode.REQUIRE)

    def goes_by_gossip(self, name: str, takes_streams: bool | None) -> bool:
        """Whether the next message of a trade goes by gossip; see ``capability``."""
        return capability.goes_by_gossip(self.trades.get(name), self.rules.direct, takes_streams)

    def acknowledges_gossip(self, name: str) -> bool | None:
        """Whether the other party of a trade acknowledges what comes by gossip; None: not known."""
        return capability.acknowledges_gossip(self.trades.get(name))

    def learn(self, peer: str, answer: Direct, path: Path) -> tuple[Command, ...]:
        """Note what an acknowledgement says of its sender; what has to be applied for it."""
        trade = self.trades.get(answer.trade_id)
        if trade is None or trade.peer != peer or (trade.theirs and not answer.capabilities):
            return ()
        now = capability.learned(trade, answer.capabilities, path, self.rules.direct)
        if now == trade:
            return ()
        self.know(answer.trade_id, now)
        return (Keep(TRADES, answer.trade_id, now.encode()),)

    def check_payload(self, payload: Any) -> None:
        """InvalidInput if a payload can never be sent: it cannot be signed."""
        if self.rules.sign:
            check_signable(payload)

    def check_size(self, message: Direct) -> None:
        """InvalidInput if a message can never be sent: it is too large."""
        frame.encode(message._replace(signature="x" * 88, capabilities=self.capabilities))

    def signed(self, message: Direct) -> Direct:
        """The message with our signature, if we sign."""
        return sign(message, self.key) if self.rules.sign else message

    def answer(self, message: Direct, success: bool, error: str, now: Instant, id: str) -> Direct:
        """Our acknowledgement of a message. Unsigned: it counts on the stream that it comes on, and nowhere else."""
        return frame.acknowledge(message, self.me, success, error, now // SECOND, id, self.capabilities)

    def verdict(self, peer: str, sent: Direct, answer: Direct) -> tuple[Verdict, str]:
        """What an acknowledgement says of what we sent; BadFrame if it is not the one for it."""
        ack = frame.acknowledged(answer)
        if ack.message_id != sent.message_id:
            raise BadFrame("an acknowledgement of another message came")
        if answer.signature and not is_signed_by(answer, peer):
            raise BadFrame("the signature of an acknowledgement is not the peer's")
        if ack.success:
            return Verdict.DELIVERED, ""
        return Verdict.REJECTED, ack.error or "rejected"
