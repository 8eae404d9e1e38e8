"""Mails as messages and messages as mails: the part of the channel ``email`` that touches no server.

In: the bytes of a mail; a part on its way out. Out: an ``Inbound``; a mail to send.
The subject is the thread: what answers a mail has its subject, and a session is one sender with one subject. The id
is the Message-ID, so that a mail which comes by two ways is one message.
"""

from __future__ import annotations

import email
import email.errors
import email.header
import email.policy
import email.utils
import hashlib
import html.parser
import re
import urllib.parse
from collections.abc import Iterator
from email.message import EmailMessage, Message
from typing import NamedTuple

from ...errors import InvalidInput
from ..channel import Permanent, Sending
from ..letter import MEDIA_MAX, Inbound, Media

TEXT_CHARACTERS_MAX = 200_000
"""A mail's text is cut behind this; the whole mail stays where it is."""
SUBJECT_CHARACTERS_MAX = 300
HEADER_CHARACTERS_MAX = 4_000
"""As much of a header is looked at."""
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,240}@[!-;=?-~]{1,240}>")
_REPLY = re.compile(r"^\s*(?:(?:re|aw|fw|fwd|wg|sv|vs|antw|rif|res|odp)\s*(?:\[\d+\])?\s*:\s*)+", re.IGNORECASE)
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class Place(NamedTuple):
    """Where a mail is kept."""

    host: str
    mailbox: str
    validity: int
    uid: int

    @property
    def url(self) -> str:
        """As RFC 5092 writes it; it holds no user and no password."""
        mailbox = urllib.parse.quote(self.mailbox, safe="/")
        return f"imap://{self.host}/{mailbox};UIDVALIDITY={self.validity}/;UID={self.uid}"


def address_of(text: str) -> str | None:
    """The one address in a text, in lower case; None if there is none that can be written to, or more than one."""
    found = addresses_of(text) if text.isprintable() else []
    return found[0] if len(found) == 1 else None


def addresses_of(text: str) -> list[str]:
    """All addresses in a header, in lower case; not those that cannot be written to."""
    return [address.lower() for _, address in email.utils.getaddresses([text]) if _ADDRESS.fullmatch(address)]


def _header(mail: Message, name: str) -> str:
    """A header as it was written, on one line and cut to what is of use; '' where there is none."""
    raw = str(mail.get(name, ""))[:HEADER_CHARACTERS_MAX]
    return " ".join(raw.encode("utf-8", "replace").decode().split())


def _decoded(text: str) -> str:
    """A header's words for people; as they were written where they cannot be decoded."""
    try:
        found = str(email.header.make_header(email.header.decode_header(text)))
    except (ValueError, LookupError, email.errors.MessageError):
        return text
    return " ".join(found.encode("utf-8", "replace").decode().split())


def is_automatic(mail: Message) -> bool:
    """Whether no person wrote it: answering such mails leads to two programs that never stop."""
    submitted = _header(mail, "Auto-Submitted").split(";")[0].strip().lower() or "no"
    precedence = _header(mail, "Precedence").lower()
    returned = _header(mail, "Return-Path") == "<>"
    return submitted != "no" or precedence in ("bulk", "junk", "list") or returned or "List-Id" in mail


def inbound_of(
    raw: bytes, place: Place, channel: str, account: str, tenant: str, *, whole: bool, automatic: bool = False
) -> Inbound | None:
    """The message in a mail; None where no person wrote it and it is not ``automatic`` ones that are wanted too.

    ``whole`` is False where only the header was fetched, since the mail is too large. InvalidInput: nobody could be
    answered.
    """
    # The older policy: it decodes nothing by itself, so that no header can be made to take long.
    mail = email.message_from_bytes(raw, policy=email.policy.compat32)
    if is_automatic(mail) and not automatic:
        return None
    sender = _header(mail, "From")
    senders, wanted = addresses_of(sender), addresses_of(_header(mail, "Reply-To"))
    if not senders:
        raise InvalidInput("a mail without a sender")
    id = _MESSAGE_ID.search(_header(mail, "Message-ID"))
    replied = _MESSAGE_ID.search(_header(mail, "In-Reply-To"))
    subject = _decoded(_header(mail, "Subject"))
    text, media = _content(mail, place) if whole else ("", ())
    metadata = {
        "subject": subject[:1_000],
        "name": _decoded(email.utils.parseaddr(sender)[0])[:200],
        "date": _header(mail, "Date")[:100],
        "to": _decoded(_header(mail, "To"))[:1_000],
        "url": place.url,
        "oversize": not whole,
        "cut": len(text) > TEXT_CHARACTERS_MAX,
    }
    return Inbound(
        id=id[0] if id else f"{account}:{place.mailbox}:{place.validity}:{place.uid}",
        channel=channel,
        conversation=(wanted or senders)[0],
        sender=senders[0],
        text=text[:TEXT_CHARACTERS_MAX],
        account=account,
        thread=topic_of(subject),
        reply_to=replied[0] if replied else "",
        media=media,
        metadata={key: value for key, value in metadata.items() if value},
        tenant=tenant,
    )


def topic_of(subject: str) -> str:
    """A subject without Re: and the like, on one line."""
    return " ".join(_REPLY.sub("", subject).split())[:SUBJECT_CHARACTERS_MAX]


def _content(mail: Message, place: Place) -> tuple[str, tuple[Media, ...]]:
    """A mail's text, and what is attached to it."""
    bodies: dict[str, Message] = {}
    media: list[Media] = []
    for section, part in _sections(mail, ""):
        kind, name = part.get_content_type(), _filename(part)
        if part.get_content_disposition() == "attachment" or name:
            if len(media) < MEDIA_MAX:
                media.append(Media(f"{place.url}/;SECTION={section}", kind, _decoded(name)[:200]))
        elif kind in ("text/plain", "text/html"):
            bodies.setdefault(kind, part)
    if "text/plain" in bodies:
        text = _text(bodies["text/plain"])
    else:
        text = plain_of(_text(bodies["text/html"])) if "text/html" in bodies else ""
    return text.replace("\r\n", "\n").strip(), tuple(media)


def _filename(part: Message) -> str:
    try:
        name = str(part.get_filename() or "")[:HEADER_CHARACTERS_MAX]
    except (ValueError, LookupError):
        return "file"
    return " ".join(name.encode("utf-8", "replace").decode().split())


def _text(part: Message) -> str:
    raw = part.get_payload(decode=True)
    data = raw if isinstance(raw, bytes) else b""
    try:
        text = data.decode(str(part.get_content_charset() or "utf-8"), "replace")
    except (LookupError, ValueError):
        text = data.decode("latin-1")
    # Half of a pair cannot be stored.
    return text.encode("utf-8", "replace").decode()


def _sections(part: Message, number: str) -> Iterator[tuple[str, Message]]:
    """Every part that has no parts of its own, and its number, as IMAP counts."""
    inside = part.is_multipart() and part.get_content_maintype() == "multipart"
    children = part.get_payload() if inside else None
    if not isinstance(children, list):
        yield number or "1", part
        return
    for index, child in enumerate(children, 1):
        yield from _sections(child, f"{number}.{index}" if number else str(index))


class _Plain(html.parser.HTMLParser):
    """The text of a page, with lines where it has blocks."""

    _BLOCKS = frozenset({"p", "div", "br", "tr", "li", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "table"})
    _SILENT = frozenset({"script", "style", "head", "title"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in self._SILENT
        if tag in self._BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in self._SILENT))
        if tag in self._BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(" ".join(data.split()) + (" " if data[-1:].isspace() else ""))


def plain_of(page: str) -> str:
    """The text of an HTML page."""
    parser = _Plain()
    parser.feed(page)
    parser.close()
    lines = [" ".join(line.split()) for line in "".join(parser.parts).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


# Out.


def message_id_of(key: str, domain: str) -> str:
    """The Message-ID of a part: the same at every attempt."""
    return f"<{hashlib.sha256(key.encode()).hexdigest()[:32]}@{domain}>"


def mail_of(sending: Sending, sender: str, name: str, subject: str, now_s: float) -> EmailMessage:
    """The mail that a part is sent as; Permanent if it cannot be one. ``subject`` is for those that have none."""
    outbound, part = sending.outbound, sending.part
    to = address_of(outbound.to)
    if to is None:
        raise Permanent("the target is no mail address")
    links = [f"{medium.name}: {medium.url}" if medium.name else medium.url for medium in part.media]
    text = "\n\n".join([*([part.text] if part.text else []), *(["\n".join(links)] if links else [])])
    if not text:
        raise Permanent("a part for email needs text or media")
    mail = EmailMessage(email.policy.SMTP)
    mail["From"] = email.utils.formataddr((name, sender)) if name else sender
    mail["To"] = to
    asked = outbound.metadata.get("subject")
    topic = " ".join(str(asked).split())[:SUBJECT_CHARACTERS_MAX] if asked else outbound.thread or subject
    replies = _MESSAGE_ID.fullmatch(outbound.reply_to) is not None
    mail["Subject"] = f"Re: {topic}" if replies and not asked else topic
    mail["Date"] = email.utils.formatdate(now_s, usegmt=True)
    mail["Message-ID"] = message_id_of(sending.key, sender.partition("@")[2])
    if replies:
        mail["In-Reply-To"] = mail["References"] = outbound.reply_to
    mail["Auto-Submitted"] = "auto-replied" if replies else "auto-generated"
    try:
        mail.set_content(text)
    except UnicodeEncodeError:
        raise Permanent("a text that cannot be written as UTF-8") from None
    return mail
