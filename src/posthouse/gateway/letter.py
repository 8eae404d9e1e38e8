"""What the gateway carries: inbound and outbound messages with their parts, and how the engine keeps them.

Inbound: desk ``inbound``, mailbox = the tenant, lane = the session, sender = channel/account/conversation, id = the
channel's own id of the message, batch_key = that sender and who wrote it. Outbound: desk ``outbound``, mailbox =
channel/account, lane = the target (to, and the thread), sender = who asked for it, cause = the message that it
answers. All the rest is one JSON object in the body, whose fields are written down in the two ``as_json`` below:
other programs read them too.

In: values from channels, handlers, callers and stored bodies. Out: checked values, and commands for the engine.
It never reads a clock and never touches a store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..errors import InvalidInput
from ..mailbox.command import Post
from ..mailbox.message import Instant, Message, Ref, check_name

INBOUND_DESK = "inbound"
OUTBOUND_DESK = "outbound"
DEFAULT_TENANT = "default"
DEFAULT_ACCOUNT = "default"
PARTS_MAX = 100
"""Parts of one outbound message."""
MEDIA_MAX = 50
"""Media of one message or part."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Media:
    """Something that is not text, by where it can be fetched."""

    url: str
    type: str = ""
    """Its MIME type, where it is known."""
    name: str = ""

    def as_json(self) -> Json:
        return _without_empty({"url": self.url, "type": self.type, "name": self.name})

    @classmethod
    def from_json(cls, value: object) -> Media:
        found = _object("media", value, ("url", "type", "name"))
        return cls(_text(found, "url", needed=True), _text(found, "type"), _text(found, "name"))


@dataclass(frozen=True, slots=True)
class Part:
    """One of the pieces in which an outbound message is sent, in order."""

    text: str = ""
    media: tuple[Media, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What only its channel understands (buttons, a voice note …), as it was given."""

    def as_json(self) -> Json:
        return _without_empty(
            {"text": self.text, "media": [m.as_json() for m in self.media], "extra": dict(self.extra)}
        )

    @classmethod
    def from_json(cls, value: object) -> Part:
        found = _object("a part", value, ("text", "media", "extra"))
        part = cls(_text(found, "text"), _media(found), _mapping(found, "extra"))
        if not part.text and not part.media and not part.extra:
            raise InvalidInput("a part needs text, media or extra")
        return part


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message that came over a channel."""

    id: str
    """The channel's own id of it, the same each time the channel brings it. The books know the cause of a reply by
    this alone, so a channel whose ids are only numbers puts account and conversation before them."""
    channel: str
    conversation: str
    """The chat, group, mailbox or address that it belongs to; an answer goes there."""
    sender: str = ""
    """Who wrote it ("from")."""
    text: str = ""
    account: str = DEFAULT_ACCOUNT
    """Which of our accounts on the channel received it."""
    session: str = ""
    """The lane; empty: channel:account:conversation, and the thread where there is one."""
    thread: str = ""
    reply_to: str = ""
    """The id of the message that this one replies to."""
    media: tuple[Media, ...] = ()
    control: bool = False
    """A command to the gateway's user rather than a text (/stop): it does not wait for what may follow."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT

    @property
    def lane(self) -> str:
        """The session, as the engine names it."""
        return tidy(
            self.session or ":".join(p for p in (self.channel, self.account, self.conversation, self.thread) if p)
        )

    @property
    def source(self) -> str:
        """Within which the id is unique: channel, account and conversation."""
        return tidy("/".join(map(_escaped, (self.channel, self.account, self.conversation))))

    @property
    def ref(self) -> Ref:
        """What names it in the engine."""
        return Ref(INBOUND_DESK, self.tenant, self.source, self.id)

    @property
    def bypasses(self) -> bool:
        """Whether it is handed over alone, and at once, with what waits before it handed over first."""
        return self.control or bool(self.media) or not self.text.strip()

    def as_json(self) -> Json:
        """The body, as it is stored; ``id``, ``session`` and ``tenant`` stand in the message itself."""
        return _without_empty(
            {
                "channel": self.channel,
                "account": self.account,
                "conversation": self.conversation,
                "from": self.sender,
                "text": self.text,
                "thread": self.thread,
                "reply_to": self.reply_to,
                "media": [m.as_json() for m in self.media],
                "control": self.control,
                "metadata": dict(self.metadata),
            }
        )

    def message(self) -> Message:
        """The engine's message; InvalidInput if a field cannot be stored."""
        _check_names(self.id, self.channel, self.account, self.tenant)
        check_name("conversation", self.conversation)
        source = self.source
        return Message(
            INBOUND_DESK,
            self.tenant,
            self.id,
            encode(self.as_json()),
            sender=source,
            lane=self.lane,
            kind="message",
            batch_key=tidy(f"{source}/{_escaped(self.sender)}"),
        )

    def post(self) -> Post:
        """The command that stores it."""
        return Post(self.message(), quiet=not self.bypasses)

    @classmethod
    def from_message(cls, message: Message) -> Inbound:
        """The same from what the engine kept; InvalidInput if it is not one of ours."""
        found = _object("an inbound message", decode(message.body), None)
        return cls(
            id=message.id,
            channel=_text(found, "channel", needed=True),
            conversation=_text(found, "conversation", needed=True),
            sender=_text(found, "from"),
            text=_text(found, "text"),
            account=_text(found, "account") or DEFAULT_ACCOUNT,
            session=message.lane,
            thread=_text(found, "thread"),
            reply_to=_text(found, "reply_to"),
            media=_media(found),
            control=found.get("control") is True,
            metadata=_mapping(found, "metadata"),
            tenant=message.mailbox,
        )


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message to be sent over a channel."""

    id: str
    channel: str
    to: str
    parts: tuple[Part, ...]
    account: str = DEFAULT_ACCOUNT
    thread: str = ""
    reply_to: str = ""
    origin: str = ""
    """Who asked for it: ids are unique for each (a token's name, ``handler``, ``import`` …)."""
    cause: str | None = None
    """The id of the inbound message that it answers."""
    session: str = ""
    """The session that it belongs to, where there is one."""
    tenant: str = DEFAULT_TENANT
    metadata: Mapping[str, Any] = field(default_factory=dict)
    expires_at: Instant | None = None
    """Not sent after this; None: the desk's own ttl_s."""

    @property
    def mailbox(self) -> str:
        """The account that sends it, as the engine names it."""
        return outbound_mailbox(self.channel, self.account)

    @property
    def lane(self) -> str:
        """The target: what is for the same one is sent in order."""
        return tidy(self.to if not self.thread else f"{_escaped(self.to)}/{_escaped(self.thread)}")

    @property
    def ref(self) -> Ref:
        """What names it in the engine."""
        return Ref(OUTBOUND_DESK, self.mailbox, self.origin, self.id)

    def as_json(self) -> Json:
        """The body, as it is stored; ``id``, ``origin``, ``cause`` and ``expires_at`` stand in the message itself."""
        return _without_empty(
            {
                "channel": self.channel,
                "account": self.account,
                "to": self.to,
                "parts": [p.as_json() for p in self.parts],
                "thread": self.thread,
                "reply_to": self.reply_to,
                "session": self.session,
                "tenant": self.tenant,
                "metadata": dict(self.metadata),
            }
        )

    def message(self) -> Message:
        """The engine's message; InvalidInput if a field cannot be stored."""
        _check_names(self.id, self.channel, self.account, self.tenant)
        check_name("to", self.to)
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise InvalidInput(f"an outbound message has 1 to {PARTS_MAX} parts, not {len(self.parts)}")
        return Message(
            OUTBOUND_DESK,
            self.mailbox,
            self.id,
            encode(self.as_json()),
            sender=self.origin,
            lane=self.lane,
            kind="message",
            cause=self.cause,
            expires_at=self.expires_at,
        )

    def post(self) -> Post:
        """The command that stores it."""
        return Post(self.message())

    @classmethod
    def from_message(cls, message: Message) -> Outbound:
        """The same from what the engine kept; InvalidInput if it is not one of ours."""
        found = _object("an outbound message", decode(message.body), None)
        return cls(
            id=message.id,
            channel=_text(found, "channel", needed=True),
            to=_text(found, "to", needed=True),
            parts=parts_from_json(found.get("parts")),
            account=_text(found, "account") or DEFAULT_ACCOUNT,
            thread=_text(found, "thread"),
            reply_to=_text(found, "reply_to"),
            origin=message.sender,
            cause=message.cause,
            session=_text(found, "session"),
            tenant=_text(found, "tenant") or DEFAULT_TENANT,
            metadata=_mapping(found, "metadata"),
            expires_at=message.expires_at,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A handler's answer to what it was given; where a field is empty, it goes where the question came from."""

    parts: tuple[Part, ...]
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""
    reply_to: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    expires_after_s: float | None = None
    """Not sent later than this after it was given; None: the desk's own ttl_s."""

    @classmethod
    def of(cls, *texts: str) -> Reply:
        """A reply of plain texts, each a part."""
        return cls(tuple(Part(text) for text in texts))

    @classmethod
    def from_json(cls, value: object) -> Reply:
        """From what a handler over HTTP or a command wrote: ``{"text": …}`` or ``{"parts": […], "to": …}``."""
        if isinstance(value, str):
            return cls.of(value)
        known = ("text", "media", "parts", "channel", "account", "to", "thread", "reply_to", "metadata")
        found = _object("a reply", value, (*known, "expires_after_s"))
        if "parts" in found and ("text" in found or "media" in found):
            raise InvalidInput("a reply has either parts, or text and media, not both")
        if "parts" in found:
            parts = parts_from_json(found["parts"])
        else:
            parts = (Part.from_json({k: found[k] for k in ("text", "media") if k in found}),)
        return cls(
            parts,
            channel=_text(found, "channel"),
            account=_text(found, "account"),
            to=_text(found, "to"),
            thread=_text(found, "thread"),
            reply_to=_text(found, "reply_to"),
            metadata=_mapping(found, "metadata"),
            expires_after_s=_seconds(found, "expires_after_s"),
        )

    def answering(self, asked: Inbound, number: int, now: Instant) -> Outbound:
        """The outbound message, the ``number``-th (from 0) that answers ``asked``. Its id follows from both."""
        elsewhere = bool(self.channel or self.to)
        expires_at = None if self.expires_after_s is None else now + int(self.expires_after_s * 1_000_000)
        return Outbound(
            id=reply_id(asked.ref, number),
            channel=self.channel or asked.channel,
            to=self.to or asked.conversation,
            parts=self.parts,
            account=self.account or (asked.account if self.channel in ("", asked.channel) else DEFAULT_ACCOUNT),
            thread=self.thread or ("" if elsewhere else asked.thread),
            reply_to=self.reply_to or ("" if elsewhere else asked.id),
            origin="handler",
            cause=asked.id,
            session=asked.lane,
            tenant=asked.tenant,
            metadata=self.metadata,
            expires_at=expires_at,
        )


def reply_id(asked: Ref, number: int) -> str:
    """The id of a reply: the same however often the question is worked on, and no other question's."""
    key = "\0".join((*asked, str(number)))
    return f"re-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def outbound_mailbox(channel: str, account: str) -> str:
    """The mailbox of what an account of a channel is to send."""
    return f"{_escaped(channel)}/{_escaped(account)}"


def parts_from_json(value: object) -> tuple[Part, ...]:
    """The parts of an outbound message; InvalidInput if there are none, or too many."""
    if not isinstance(value, list):
        raise InvalidInput("parts must be a list")
    if not 1 <= len(value) <= PARTS_MAX:
        raise InvalidInput(f"a message has 1 to {PARTS_MAX} parts, not {len(value)}")
    return tuple(Part.from_json(part) for part in value)


def media_from_json(value: object) -> tuple[Media, ...]:
    """The media of a message or part."""
    if not isinstance(value, list):
        raise InvalidInput("media must be a list")
    if len(value) > MEDIA_MAX:
        raise InvalidInput(f"a message has at most {MEDIA_MAX} media, not {len(value)}")
    return tuple(Media.from_json(media) for media in value)


def tidy(name: str) -> str:
    """The name, or a hash of it where the engine cannot take it: no message is refused for a channel's odd names."""
    try:
        check_name("name", name, empty=True)
    except InvalidInput:
        return f"sha256-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"
    return name


def encode(value: Json) -> bytes:
    """A body; InvalidInput where JSON cannot carry a value."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise InvalidInput(f"a message that JSON cannot carry: {error}") from error


def decode(body: bytes) -> object:
    """A body read; InvalidInput where it is no JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"a body that is no JSON: {error}") from error


def _check_names(id: str, channel: str, account: str, tenant: str) -> None:
    for name, value in (("id", id), ("channel", channel), ("account", account), ("tenant", tenant)):
        check_name(name, value)


def _escaped(part: str) -> str:
    """Without slashes, so that joined names stay apart."""
    return part.replace("%", "%25").replace("/", "%2F") if "/" in part or "%" in part else part


def _without_empty(value: Json) -> Json:
    return {name: v for name, v in value.items() if v}


def _object(what: str, value: object, known: Sequence[str] | None) -> Json:
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} must be a JSON object, not {type(value).__name__}")
    for name in value:
        if known is not None and name not in known:
            raise InvalidInput(f"{what} has no field {str(name)[:60]!r}; known are {', '.join(known)}")
    return value


def _text(found: Json, name: str, *, needed: bool = False) -> str:
    value = found.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, not {type(value).__name__}")
    if needed and not value:
        raise InvalidInput(f"{name} must not be empty")
    return value


def _mapping(found: Json, name: str) -> Json:
    value = found.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} must be a JSON object, not {type(value).__name__}")
    return value


def _media(found: Json) -> tuple[Media, ...]:
    value = found.get("media")
    return () if value is None else media_from_json(value)


def _seconds(found: Json, name: str) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
        raise InvalidInput(f"{name} must be a number of seconds above 0: {value!r}")
    return float(value)
