"""What gossip peers send each other: frames of subscriptions, messages and control, as values and as bytes.

In: bytes from anybody, or values. Out: the other. A message carries its author's signature over everything in it, and
is known by author and number. The number of fields in a frame, and the sizes of names and ids, are bounded while it is
read. What is not understood is passed over, so that newer peers can say more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .. import protobuf
from ..errors import BadKey, BadPeerId, GossipError, ProtobufError
from ..key import PrivateKey, PublicKey
from ..peer_id import PeerId
from .params import Params

_SIGNED = b"libp2p-pubsub:"


@dataclass(frozen=True, slots=True)
class Message:
    """One message on a topic."""

    author: PeerId
    """Who wrote it; proven by the signature."""
    topic: str
    data: bytes
    seqno: bytes
    id: bytes
    """Author and number."""
    encoded: bytes
    """As it is passed on."""


@dataclass(slots=True)
class Frame:
    """What one peer tells another at once."""

    subscriptions: list[tuple[bool, str]] = field(default_factory=list)
    """Topics that the sender subscribes to (True) or leaves."""
    messages: list[bytes] = field(default_factory=list)
    """Encoded; they are only looked into if they are wanted."""
    ihave: list[tuple[str, list[bytes]]] = field(default_factory=list)
    iwant: list[bytes] = field(default_factory=list)
    graft: list[str] = field(default_factory=list)
    prune: list[tuple[str, float]] = field(default_factory=list)
    """Topics, and for how many seconds the other side must not graft again; 0 where it was not said."""

    @property
    def is_empty(self) -> bool:
        return not (self.subscriptions or self.messages or self.ihave or self.iwant or self.graft or self.prune)


def write(topic: str, data: bytes, seqno: int, key: PrivateKey) -> Message:
    """A message of our own."""
    author = PeerId.of(key.public)
    number = (seqno & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big")
    body = (
        protobuf.bytes_field(1, author.raw)
        + protobuf.bytes_field(2, data)
        + protobuf.bytes_field(3, number)
        + protobuf.text_field(4, topic)
    )
    encoded = body + protobuf.bytes_field(5, key.sign(_SIGNED + body))
    return Message(author, topic, data, number, author.raw + number, encoded)


class Letter:
    """A message that came and is not proven yet: what it says of itself."""

    __slots__ = ("_fields", "encoded", "id", "topic")

    def __init__(self, encoded: bytes, params: Params) -> None:
        self.encoded = encoded
        found: dict[int, bytes] = {}
        try:
            for number, value in protobuf.fields(encoded, protobuf.Budget(32)):
                if number <= 6:
                    found[number] = protobuf.octets(value)
            self.topic = protobuf.text(found.get(4, b""))
        except ProtobufError as error:
            raise GossipError(f"no message: {error}") from None
        self._fields = found
        self.id = found.get(1, b"") + found.get(3, b"")
        if not self.topic or len(found[4]) > params.topic_bytes_max:
            raise GossipError("a message without a topic, or with one that is too long")
        if len(found.get(2, b"")) > params.message_bytes_max:
            raise GossipError(f"a message of {len(found[2])} bytes; at most {params.message_bytes_max} are taken")

    def proven(self) -> Message:
        """The message, if its author signed it; GossipError otherwise."""
        found = self._fields
        if len(found.get(3, b"")) != 8 or not found.get(5):
            raise GossipError("a message without a number or a signature")
        try:
            author = PeerId(found.get(1, b""))
            key = author.public_key()
            if key is None:
                key = PublicKey.from_bytes(found.get(6, b""))
        except (BadPeerId, BadKey) as error:
            raise GossipError(f"a message without an author: {error}") from None
        if (6 in found and found[6] != key.encoded) or not author.is_of(key):
            raise GossipError("the key in a message is not its author's")
        body = b"".join(protobuf.bytes_field(number, found[number]) for number in (1, 2, 3, 4) if number in found)
        if not key.verifies(found[5], _SIGNED + body):
            raise GossipError("a message was not signed by its author")
        return Message(author, self.topic, found.get(2, b""), found[3], self.id, self.encoded)


def decode(data: bytes, params: Params) -> Frame:
    """A frame; GossipError if it is none or holds too much."""
    frame = Frame()
    budget = protobuf.Budget(params.fields_max)
    try:
        for number, value in protobuf.fields(data, budget):
            if number == 1:
                topic, subscribes = "", False
                for inner, what in protobuf.fields(protobuf.octets(value), budget):
                    if inner == 1:
                        subscribes = bool(protobuf.number(what))
                    elif inner == 2:
                        topic = _topic(what, params)
                if topic:
                    frame.subscriptions.append((subscribes, topic))
            elif number == 2:
                frame.messages.append(protobuf.octets(value))
            elif number == 3:
                _control(protobuf.octets(value), frame, params, budget)
    except ProtobufError as error:
        raise GossipError(f"no frame: {error}") from None
    return frame


def _control(data: bytes, frame: Frame, params: Params, budget: protobuf.Budget) -> None:
    for number, value in protobuf.fields(data, budget):
        if not 1 <= number <= 4:
            continue
        topic, ids, backoff_s = "", [], 0.0
        for inner, what in protobuf.fields(protobuf.octets(value), budget):
            if (number, inner) in ((1, 2), (2, 1)):
                id = protobuf.octets(what)
                if len(id) > params.id_bytes_max:
                    raise GossipError(f"an id of {len(id)} bytes; at most {params.id_bytes_max} are taken")
                ids.append(id)
            elif inner == 1:
                topic = _topic(what, params)
            elif number == 4 and inner == 3:
                backoff_s = float(min(protobuf.number(what), int(params.backoff_max_s)))
        if number == 1:
            frame.ihave.append((topic, ids))
        elif number == 2:
            frame.iwant += ids
        elif number == 3:
            frame.graft.append(topic)
        else:
            frame.prune.append((topic, backoff_s))


def _topic(value: int | bytes, params: Params) -> str:
    if len(protobuf.octets(value)) > params.topic_bytes_max:
        raise GossipError(f"a topic's name of more than {params.topic_bytes_max} bytes")
    return protobuf.text(value)


def encode(frame: Frame, params: Params) -> Iterator[bytes]:
    """The bytes of a frame: as many frames as are needed for none to be too long."""
    most = params.frame_bytes_max - 16
    out, control = bytearray(), bytearray()
    for subscribes, topic in frame.subscriptions:
        entry = protobuf.number_field(1, int(subscribes)) + protobuf.text_field(2, topic)
        out += protobuf.bytes_field(1, entry)
    for entry in _control_entries(frame):
        if control and len(out) + len(control) + len(entry) > most:
            yield bytes(out + protobuf.bytes_field(3, bytes(control)))
            out, control = bytearray(), bytearray()
        control += entry
    if control:
        out += protobuf.bytes_field(3, bytes(control))
    for encoded in frame.messages:
        entry = protobuf.bytes_field(2, encoded)
        if out and len(out) + len(entry) > most:
            yield bytes(out)
            out = bytearray()
        out += entry
    if out:
        yield bytes(out)


def _control_entries(frame: Frame) -> Iterator[bytes]:
    for topic, ids in frame.ihave:
        yield protobuf.bytes_field(
            1, protobuf.text_field(1, topic) + b"".join(protobuf.bytes_field(2, id) for id in ids)
        )
    if frame.iwant:
        yield protobuf.bytes_field(2, b"".join(protobuf.bytes_field(1, id) for id in frame.iwant))
    for topic in frame.graft:
        yield protobuf.bytes_field(3, protobuf.text_field(1, topic))
    for topic, backoff_s in frame.prune:
        entry = protobuf.text_field(1, topic) + protobuf.number_field(3, max(1, round(backoff_s)))
        yield protobuf.bytes_field(4, entry)
