"""The books of a relay: what its exported journal says became of every message, held against what agents saw.

In: rows of the journal from the first to the last, a swarm that has come to rest, the store after the relay's end.
Out: complaints in sentences, and a count of how messages ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.faults.swarm import Swarm
from tests.stateful.replay import STATES

from posthouse.journal import segment
from posthouse.journal.schema import Row
from posthouse.mailbox.message import Ref, State
from posthouse.mailbox.store import Store

ENDS = (State.DELIVERED, State.EXPIRED, State.PARKED, State.READY)
"""How a message may end. Ready is: still queued."""
COMPLAINTS_MAX = 20

Key = tuple[str, str, str]
"""Of a message: recipient, sender, id."""


class Entry:
    """One message in the books."""

    __slots__ = ("kind", "leased_in", "leases", "live", "posted_in", "seq", "state")

    def __init__(self, row: Row) -> None:
        self.kind = row.kind
        self.seq = row.lane_seq
        self.posted_in = row.commit
        self.leased_in = 0
        self.leases = 0
        self.live = False
        self.state = State.READY


class Books:
    """Everything that the journal tells."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.entries: dict[Key, Entry] = {}
        self.full: set[Key] = set()
        self.refused: Counter[str | None] = Counter()
        self.complaints: list[str] = []
        self._connected: set[tuple[str, str | None]] = set()
        self.connections = 0
        offset = 0
        for row in rows:
            offset += 1
            if row.offset != offset:
                self._complain(f"the journal goes from offset {offset - 1} to {row.offset}")
                offset = row.offset
            self._take(row)
        for address, holder in self._connected:
            self._complain(f"{holder} of {address} connected and never left")

    def _complain(self, text: str) -> None:
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)

    def _take(self, row: Row) -> None:
        key = (row.mailbox, row.sender, row.message_id)
        if row.event == "posted":
            if key in self.entries:
                self._complain(f"{key} was posted twice")
            self.entries[key] = Entry(row)
        elif row.event == "refused":
            self.refused[row.reason] += 1
            if row.reason == "full":
                self.full.add(key)
        elif row.event == "connected":
            self.connections += 1
            self._connected.add((row.mailbox, row.holder))
        elif row.event == "disconnected":
            self._connected.discard((row.mailbox, row.holder))
        elif row.event in STATES:
            entry = self.entries.get(key)
            if entry is None:
                self._complain(f"{key} was {row.event} and never posted")
                return
            entry.state = STATES[row.event]
            if row.event == "leased":
                entry.leased_in = row.commit
                entry.leases += 1
            elif row.event == "delivered":
                # By the lease that was committed with its post, and not by one behind it in the same commit.
                entry.live = entry.leased_in == entry.posted_in and entry.leases == 1

    def ends(self) -> dict[str, int]:
        """How many messages ended how."""
        return dict(Counter(str(entry.state) for entry in self.entries.values()))

    def close(self, swarm: Swarm, store: Store) -> list[str]:
        """Hold them against what the agents know, and against the store."""
        self._check_ends(store)
        self._check_sent(swarm)
        self._check_seen(swarm)
        self._check_confirmed(swarm)
        return self.complaints

    def _check_ends(self, store: Store) -> None:
        for key, entry in self.entries.items():
            if entry.state not in ENDS:
                self._complain(f"{key} is left {entry.state}")
            if entry.state in (State.READY, State.PARKED):
                recipient, sender, id = key
                view = store.message(Ref("relay", recipient, sender, id))
                if view is None or view.state is not entry.state:
                    self._complain(f"{key} is {entry.state} in the journal, in the store: {view and view.state}")

    def _check_sent(self, swarm: Swarm) -> None:
        """All that surely arrived was posted or refused as too many; nothing was posted that nobody sent."""
        sent = {(to, actor.address, id) for actor in swarm.actors for to, id in actor.sent}
        for key, entry in self.entries.items():
            if entry.kind != "delivery_confirm" and key not in sent:
                self._complain(f"{key} was posted and never sent")
        for actor, stay in swarm.stays():
            for to, id in stay.sent if stay.clean else ():
                key = (to, actor.address, id)
                if key not in self.entries and key not in self.full:
                    self._complain(f"{key} is lost: it was sent, and is not in the books")
            for to, id in stay.full:
                if (to, actor.address, id) not in self.full:
                    self._complain(f"{actor.address} was told of a full queue of {to}, which the books do not know")

    def _check_seen(self, swarm: Swarm) -> None:
        """What came was posted, came as it was sent, and in its order."""
        digests = {(to, actor.address, id): d for actor in swarm.actors for (to, id), d in actor.sent.items()}
        for actor in swarm.actors:
            newest = 0
            seen: set[Key] = set()
            for stay in actor.stays:
                last = 0
                for came in stay.came:
                    key = (actor.address, came.sender, came.id)
                    entry = self.entries.get(key)
                    if entry is None:
                        self._complain(f"{key} came and was never posted")
                        continue
                    if came.digest and came.digest != digests.get(key):
                        self._complain(f"{key} came with other bytes than were sent")
                    if entry.seq <= last:
                        self._complain(f"{key} is number {entry.seq} and came behind {last}")
                    last = entry.seq
                    if key not in seen and entry.seq < newest:
                        self._complain(f"{key} is number {entry.seq} and came first behind {newest}")
                    seen.add(key)
                    newest = max(newest, entry.seq)
            self._check_delivered(actor.address, seen)

    def _check_delivered(self, address: str, seen: set[Key]) -> None:
        for key, entry in self._of(address):
            if entry.state is State.DELIVERED and key not in seen:
                self._complain(f"{key} is delivered in the books, and its recipient never saw it")

    def _of(self, address: str) -> Iterator[tuple[Key, Entry]]:
        if not hasattr(self, "_by_mailbox"):
            self._by_mailbox: dict[str, list[tuple[Key, Entry]]] = {}
            for key, entry in self.entries.items():
                self._by_mailbox.setdefault(key[0], []).append((key, entry))
        return iter(self._by_mailbox.get(address, ()))

    def _check_confirmed(self, swarm: Swarm) -> None:
        """A message is delivered exactly where its recipient said so, and its sender is told once, and the truth."""
        confirmed: set[Key] = set()
        surely: set[Key] = set()
        for actor, stay in swarm.stays():
            keys = [(actor.address, sender, id) for sender, id in stay.confirmed]
            confirmed.update(keys)
            surely.update(keys if stay.clean else ())
        for key, entry in self.entries.items():
            recipient, sender, id = key
            if entry.kind == "message":
                if entry.state is State.DELIVERED and key not in confirmed:
                    self._complain(f"{key} is delivered in the books, and its recipient never confirmed it")
                if (entry.state is State.DELIVERED) != ((sender, recipient, f"confirm:{id}") in self.entries):
                    self._complain(f"{key} is {entry.state}, and whether its sender is told does not agree")
                # It may have expired before the confirmation came.
                if key in surely and entry.state not in (State.DELIVERED, State.EXPIRED):
                    self._complain(f"{key} was confirmed and is {entry.state}")
        for actor in swarm.actors:
            for (recipient, id), was_stored in actor.told.items():
                message = self.entries.get((recipient, actor.address, id))
                if message is None or message.state is not State.DELIVERED:
                    self._complain(f"{actor.address} was told that {id} is delivered; in the books: {message}")
                elif was_stored is message.live:
                    self._complain(f"{actor.address} was told of {id} that was_stored is {was_stored}: it is not so")


def rows(journal: Path) -> Iterator[Row]:
    """All rows of an exported journal of one node."""
    for path in sorted(journal.glob("node=*/*.parquet")):
        yield from segment.read(path)
