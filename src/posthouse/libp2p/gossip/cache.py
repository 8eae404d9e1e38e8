"""What gossip remembers: ids that it has seen, and recent messages for those who ask. Both forget by themselves."""

from __future__ import annotations

from collections import Counter, deque

from ..peer_id import PeerId
from .message import Message


class Seen:
    """Ids of messages that have come, for a time and up to a number."""

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_s = keep_s
        self._most = most
        self._until: dict[bytes, float] = {}

    def add(self, id: bytes, now: float) -> bool:
        """Remember an id; False if it was known."""
        if id in self:
            return False
        self._until[id] = now + self._keep_s
        if len(self._until) > self._most:
            del self._until[next(iter(self._until))]
        return True

    def __contains__(self, id: bytes) -> bool:
        return id in self._until

    def __len__(self) -> int:
        return len(self._until)

    def forget(self, now: float) -> None:
        """Drop what is old. Ids stand in the order of their ends."""
        until = self._until
        while until:
            first = next(iter(until))
            if until[first] > now:
                return
            del until[first]


class Recent:
    """The messages of the last heartbeats."""

    def __init__(self, ticks: int, told: int, bytes_max: int) -> None:
        self._told = told
        self._bytes_max = bytes_max
        self._bytes = 0
        self._windows: deque[deque[Message]] = deque([deque()], maxlen=ticks)
        self._by_id: dict[bytes, Message] = {}
        self._sent: dict[bytes, Counter[PeerId]] = {}

    def add(self, message: Message) -> None:
        """Keep a message."""
        if message.id not in self._by_id:
            self._by_id[message.id] = message
            self._windows[0].append(message)
            self._bytes += len(message.encoded)
            while self._bytes > self._bytes_max:
                oldest = next(window for window in reversed(self._windows) if window)
                self._drop(oldest.popleft())

    def ids(self, topic: str) -> list[bytes]:
        """What there is to tell about a topic."""
        windows = list(self._windows)[: self._told]
        return [message.id for window in windows for message in window if message.topic == topic]

    def give(self, id: bytes, peer: PeerId, most: int) -> Message | None:
        """A message for a peer that asks, unless it has had it so often."""
        message = self._by_id.get(id)
        if message is None:
            return None
        sent = self._sent.setdefault(id, Counter())
        if sent[peer] >= most:
            return None
        sent[peer] += 1
        return message

    def shift(self) -> None:
        """A heartbeat has passed."""
        if len(self._windows) == self._windows.maxlen:
            for message in self._windows[-1]:
                self._drop(message)
        self._windows.appendleft(deque())

    def _drop(self, message: Message) -> None:
        del self._by_id[message.id]
        self._sent.pop(message.id, None)
        self._bytes -= len(message.encoded)

    def __len__(self) -> int:
        return len(self._by_id)
