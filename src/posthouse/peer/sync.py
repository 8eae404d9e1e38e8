"""Sync: two parties tell each other how far they are in a trade, and only what is missing is sent again.

    sync_request (our summary) → sync_response (theirs)

A summary has the trade's state (from the application's own hook), ``local_sequence`` (the last number that we gave),
``remote_sequence`` (the highest that we took from the other side), ``next_sequence`` (no number below it will come any
more) and ``missing``. It is exchanged for every trade when a peer connects, and when a message came before its turn. A
node that knows no sync says so, and is asked no more while it is connected.

In: trades, summaries. Out: requests and answers, messages that are sent again from the history, numbers that are waited
for no longer. It finishes no message: that a peer has taken one does not say that it was processed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ..control.trade import OUTBOX_DESK, number_of
from ..errors import BadFrame, InvalidInput, StoreError
from ..libp2p.errors import Libp2pError
from ..libp2p.peer_id import PeerId
from ..mailbox.command import Filter
from ..mailbox.message import SECOND, State
from ..mailbox.outcome import Delivery
from ..mailbox.store import MessageView
from . import frame
from .courier import Courier
from .frame import Direct
from .port import Office
from .receiver import Receiver
from .session import Bucket, Rules, Session
from .signature import is_signed_by
from .stats import Stats

log = logging.getLogger("posthouse.peer")

MARK = "/posthouse/peer/1.0.0"
"""Served by those who know sync, so that others see it when they meet (identify)."""
TRADES_MAX = 1_000
"""Trades that are compared when a peer connects."""
AGAIN_S = 5.0
"""Between two questions about the same trade, while nothing of it has come."""
LOOKUPS_PER_S, LOOKUPS_BURST = 5.0, 100
"""Answers for which a trade's history is read, to all peers together."""
MISSING_MAX = 1_000
HISTORY_MAX = 10_000
"""Messages of a trade's history that are looked at."""
FLAGS = ("has_remote_pubkey", "has_remote_nonces", "has_funding", "has_remote_partials")

StateHook = Callable[[str], Mapping[str, Any]]
"""What the application knows of a trade: ``state`` (a word) and the FLAGS; what it leaves out is '' or false."""


class Sync:
    """Compares trades, for one session."""

    def __init__(
        self,
        office: Office,
        session: Session,
        courier: Courier,
        stats: Stats,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        state: StateHook | None = None,
    ) -> None:
        self._office = office
        self._session = session
        self._courier = courier
        self._stats = stats
        self._spawn = spawn
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, tuple[float, int]] = {}
        """By trade: when we asked, and how far we were."""
        self._resending: set[str] = set()
        self._lookups = Bucket(Rules(rate_per_s=LOOKUPS_PER_S, burst=LOOKUPS_BURST), self._loop.time())
        self.receiver: Receiver
        """Set by whoever makes both."""

    # Asking.

    def ask(self, peer: PeerId, trade: str) -> None:
        """Ask about one trade, unless that was done just now."""
        now_s, heard = self._loop.time(), self._session.last(trade)
        asked_s, asked_at = self._asked.get(trade, (-AGAIN_S, -1))
        if (now_s - asked_s < AGAIN_S and heard == asked_at) or str(peer) in self.receiver.plain:
            return
        if len(self._asked) >= 4_096:
            self._asked.clear()
        self._asked[trade] = (now_s, heard)
        self._spawn(self._compare(peer, [trade]))

    def came(self, peer: PeerId) -> None:
        """A peer that knows sync is there: compare all trades with it. Of two, the one with the lower id asks."""
        if PeerId.parse(self._session.me) < peer:
            name, now_s = str(peer), self._office.now() // SECOND
            trades = [
                trade
                for trade, kept in self._session.trades.items()
                if kept.peer == name and (not kept.timeout_s or kept.timeout_s > now_s)
            ]
            if trades:
                self._spawn(self._compare(peer, trades[-TRADES_MAX:]))

    async def _compare(self, peer: PeerId, trades: list[str]) -> None:
        try:
            for trade in trades:
                async with asyncio.timeout(self._courier.limits.ack_s):
                    answer = await self._courier.ask(peer, self._request(trade))
                self._stats.syncs += 1
                if answer.type != frame.SYNC_RESPONSE:
                    if not frame.acknowledged(answer).success and answer.payload.get("error") == "unknown message type":
                        self.receiver.plain.add(str(peer))
                        return
                    continue
                if answer.signature and not is_signed_by(answer, str(peer)):
                    raise BadFrame("the signature of a summary is not the peer's")
                await self._heard(peer, trade, answer.payload)
        except (Libp2pError, BadFrame, TimeoutError, StoreError) as error:
            log.debug("trades with %s are not compared: %s", peer, error)

    def _request(self, trade: str) -> Direct:
        return self._session.signed(
            Direct(
                frame.SYNC_REQUEST, trade, from_peer=self._session.me, payload=self.summary(trade),
                timestamp=self._office.now() // SECOND, message_id=frame.new_id(), requires_ack=True,
            )
        )  # fmt: skip

    # Answering.

    async def answer(self, peer: PeerId, request: Direct) -> Direct:
        """The answer to a question of a peer: our summary, or why it gets none."""
        session, name, trade = self._session, str(peer), request.trade_id
        known = session.trades.get(trade)
        now_s = self._office.now() // SECOND
        wrong = ""
        if request.from_peer != name or (known is not None and known.peer != name):
            wrong = "not a party of this trade"
        elif request.signature and not is_signed_by(request, name):
            wrong = "the signature is not the sender's"
        elif (known is None and not session.rules.strangers) or not trade:
            wrong = "unknown trade"
        elif self._looks_back(trade, request.payload) and self._lookups.wait_s(self._loop.time()):
            self._lookups.give_back()
            wrong = "asked too often"
        if wrong:
            self._stats.refused["unmatched"] += 1
            return frame.acknowledge(request, session.me, False, wrong, now_s, frame.new_id())
        summary = self.summary(trade, request.payload)
        await self._heard(peer, trade, request.payload)
        return session.signed(
            Direct(
                frame.SYNC_RESPONSE, trade, request.order_id, session.me, summary, now_s, frame.new_id(),
            )
        )  # fmt: skip

    def summary(self, trade: str, theirs: Any = None) -> dict[str, Any]:
        """How far we are in a trade, for somebody who is as far as ``theirs`` says."""
        known = self._session.trades.get(trade)
        heard = self._session.heard.get(trade, 0)
        state = self._state(trade) if self._state is not None and known is not None else {}
        last, following = self._numbers(trade)
        theirs = theirs if isinstance(theirs, dict) else {}
        their_last = _number(theirs, "local_sequence")
        if "remote_sequence" in theirs:
            # What they have not taken and we can send again is still to come.
            again = self._again(trade, _number(theirs, "remote_sequence"), following)
            following = min([following, *(number for number, _ in again)])
        return {
            "trade_id": trade,
            "state": str(state.get("state", "")),
            **{flag: bool(state.get(flag, False)) for flag in FLAGS},
            "local_sequence": last,
            "remote_sequence": heard,
            "next_sequence": following,
            "missing": list(range(heard + 1, min(their_last, heard + MISSING_MAX) + 1)),
        }

    def _looks_back(self, trade: str, theirs: Any) -> bool:
        """Whether the history has to be read to answer this."""
        taken = _number(theirs, "remote_sequence") if isinstance(theirs, dict) else 0
        return trade in self._session.trades and taken + 1 < self._numbers(trade)[1]

    def _numbers(self, trade: str) -> tuple[int, int]:
        """The last number that we gave, and the first that is not finished."""
        known = self._session.trades.get(trade)
        lane = None if known is None else self._office.store.lane(OUTBOX_DESK, known.peer, trade)
        if known is None or lane is None:
            last = 0 if known is None else known.base
            return last, last + 1
        last = known.base + lane.last_seq
        head = self._office.store.in_lane(OUTBOX_DESK, known.peer, trade, 1)
        return last, number_of(known, head[0].seq, head[0].message.headers) if head else last + 1

    async def _heard(self, peer: PeerId, trade: str, theirs: Any) -> None:
        """Act on what the other side says: wait no longer for what is gone, send again what it lost."""
        if not isinstance(theirs, dict):
            raise BadFrame("a summary is an object")
        following, last = _number(theirs, "next_sequence"), _number(theirs, "local_sequence")
        before = self._session.last(trade)
        if before + 1 < following <= last + 1 and self.receiver.missing(trade):
            self._stats.skipped += following - 1 - before
            await self.receiver.skip(trade, following)
        again = self._again(trade, _number(theirs, "remote_sequence"), self._numbers(trade)[1])
        if again and trade not in self._resending:
            self._resending.add(trade)
            self._spawn(self._resend(peer, trade, again))

    def _again(self, trade: str, taken: int, following: int) -> list[tuple[int, MessageView]]:
        """Messages that were delivered once, that the other side has not taken any more, and that we still have."""
        known = self._session.trades.get(trade)
        if known is None or taken + 1 >= following:
            return []
        found: list[tuple[int, MessageView]] = []
        after = seen = 0
        wanted = Filter(OUTBOX_DESK, known.peer, trade, states=frozenset({State.DELIVERED}))
        while seen < HISTORY_MAX and (page := self._office.store.messages(wanted, after, 500)):
            for view in page:
                number = number_of(known, view.seq, view.message.headers)
                if taken < number < following:
                    found.append((number, view))
            seen += len(page)
            after = page[-1].number
        return found

    async def _resend(self, peer: PeerId, trade: str, again: list[tuple[int, MessageView]]) -> None:
        """Send from the history, in order, until one is not taken."""
        try:
            for _, view in again:
                delivery = Delivery(view.message, view.seq, 1, view.posted_at, None, 0, None)
                async with asyncio.timeout(self._courier.limits.ack_s):
                    await self._courier.ask(peer, self._session.outgoing(delivery))
                self._stats.resent += 1
        except (Libp2pError, BadFrame, InvalidInput, TimeoutError) as error:
            log.debug("trade %s is not sent again to %s: %s", trade, peer, error)
        finally:
            self._resending.discard(trade)


def _number(plain: Mapping[str, Any], name: str) -> int:
    value = plain.get(name, 0)
    return value if type(value) is int and 0 <= value <= frame.NUMBER_MAX else 0
