"""Updates and calls of Telegram's Bot API as messages and back: the part of the channel that touches no server.

In: an update as the API gives it; a part on its way out. Out: an ``Inbound``; a call of the API.
A medium is named by its file id, since the URL that it could be fetched from would hold the bot's token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..channel import Permanent, Sending
from ..letter import Inbound, Media
from .account import Account

TEXT_MAX = 4_096
CAPTION_MAX = 1_024
MEDIA_GROUP_MAX = 10
DOCUMENT_BYTES_MAX = 50_000_000
PASSED_ON = frozenset({"parse_mode", "reply_markup", "disable_notification", "protect_content", "link_preview_options"})
"""What a part's ``extra`` may hold: parameters of the API of the same names."""
FILE = "telegram:"
"""A medium's URL is this and its file id: the real one would hold the token."""
_METHODS = {"image": ("sendPhoto", "photo"), "video": ("sendVideo", "video"), "audio": ("sendAudio", "audio")}
_KEPT_MEDIA = {"photo": "image/jpeg", "video": "video/mp4", "voice": "audio/ogg", "audio": "", "document": "",
               "animation": "video/mp4", "video_note": "video/mp4", "sticker": "image/webp"}  # fmt: skip


def inbound_of(update: dict[str, Any], account: Account) -> Inbound | None:
    """The message in an update; None where there is none for us."""
    query = update.get("callback_query")
    if query is not None:
        shown = query.get("message") or {}
        chat = str((shown.get("chat") or query["from"])["id"])
        return Inbound(
            id=f"{account.account}:{chat}:callback:{query['id']}",
            channel=account.kind,
            conversation=chat,
            sender=str(query["from"]["id"]),
            text=str(query.get("data") or ""),
            account=account.account,
            thread=_thread_of(shown),
            reply_to=_id(account, chat, shown["message_id"]) if "message_id" in shown else "",
            control=True,
            metadata=_person(query["from"]) | {"update_id": update["update_id"], "callback_query": query["id"]},
            tenant=account.tenant,
        )
    message = update.get("message") or update.get("channel_post")
    if message is None:
        return None
    chat = str(message["chat"]["id"])
    sender = message.get("from") or message.get("sender_chat") or message["chat"]
    text = str(message.get("text") or message.get("caption") or "")
    entities = message.get("entities") or []
    replied = message.get("reply_to_message")
    return Inbound(
        id=_id(account, chat, message["message_id"]),
        channel=account.kind,
        conversation=chat,
        sender=str(sender["id"]),
        text=text,
        account=account.account,
        thread=_thread_of(message),
        reply_to=_id(account, chat, replied["message_id"]) if replied else "",
        media=_media_of(message),
        control=any(e.get("type") == "bot_command" and e.get("offset") == 0 for e in entities),
        metadata=_person(sender)
        | {"update_id": update["update_id"], "date": message.get("date"), "chat_type": message["chat"].get("type")},
        tenant=account.tenant,
    )


def _id(account: Account, chat: str, message: int) -> str:
    """A message's number counts from 1 in each chat, so account and chat stand before it."""
    return f"{account.account}:{chat}:{message}"


class Call(NamedTuple):
    """A call of the API."""

    method: str
    values: dict[str, Any]
    document: bytes | None = None
    """A file that goes along."""


def call_of(sending: Sending) -> Call:
    """The call that sends a part; Permanent if there is none for it."""
    outbound, part = sending.outbound, sending.part
    values: dict[str, Any] = {"chat_id": outbound.to}
    if outbound.thread.isdigit():
        values["message_thread_id"] = int(outbound.thread)
    replied = outbound.reply_to.rpartition(":")[2]
    # Only the first part replies; the others stand below it.
    if replied.isdigit() and sending.index == 0:
        values["reply_parameters"] = {"message_id": int(replied), "allow_sending_without_reply": True}
    values |= {name: value for name, value in part.extra.items() if name in PASSED_ON}
    if not part.media:
        if not part.text:
            raise Permanent("a part for telegram needs text or media")
        if _length(part.text) > TEXT_MAX:
            return _as_file(part.text, values)
        return Call("sendMessage", values | {"text": part.text})
    if _length(part.text) > CAPTION_MAX:
        raise Permanent(f"caption is too long: {_length(part.text)} characters, at most {CAPTION_MAX}")
    caption = {"caption": part.text} if part.text else {}
    if len(part.media) == 1:
        method, name = _method_of(part.media[0])
        return Call(method, values | caption | {name: _source_of(part.media[0])})
    if len(part.media) > MEDIA_GROUP_MAX:
        raise Permanent(f"at most {MEDIA_GROUP_MAX} media can be sent together, not {len(part.media)}")
    types = [_method_of(medium)[1] for medium in part.media]
    # Photos and videos may be mixed; with anything else, all are plain files.
    if not set(types) <= {"photo", "video"}:
        types = ["document"] * len(types)
    group = [{"type": type, "media": _source_of(medium)} for type, medium in zip(types, part.media, strict=True)]
    group[0] |= caption
    return Call("sendMediaGroup", {name: v for name, v in values.items() if name != "reply_markup"} | {"media": group})


def _as_file(text: str, values: dict[str, Any]) -> Call:
    """A text that is too long for one message: a file, with its beginning below. One call, so that it is sent once."""
    if len(data := text.encode("utf-8", "replace")) > DOCUMENT_BYTES_MAX:
        raise Permanent(f"message is too long: {len(data)} bytes, at most {DOCUMENT_BYTES_MAX}")
    # Half of what is marked up is not marked up well.
    plain = {name: value for name, value in values.items() if name not in ("parse_mode", "link_preview_options")}
    # Units of UTF-16 are counted, of which a character has two at most.
    return Call("sendDocument", plain | {"caption": text[: CAPTION_MAX // 2 - 1] + "…"}, data)


def _method_of(medium: Media) -> tuple[str, str]:
    return _METHODS.get(medium.type.partition("/")[0], ("sendDocument", "document"))


def _source_of(medium: Media) -> str:
    """What the API is told to send: a file that it has, or a URL that it fetches itself."""
    if medium.url.startswith(FILE):
        return medium.url.removeprefix(FILE)
    if medium.url.startswith(("https://", "http://")):
        return medium.url
    raise Permanent("a medium for telegram is an http(s) URL or telegram: and a file id")


def _length(text: str) -> int:
    """As the API counts: in units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _thread_of(message: dict[str, Any]) -> str:
    """The topic of a forum; elsewhere the API counts threads of replies, which are no lanes of their own."""
    return str(message["message_thread_id"]) if message.get("is_topic_message") else ""


def _person(sender: dict[str, Any]) -> dict[str, Any]:
    names = (sender.get("first_name"), sender.get("last_name"))
    name = " ".join(str(part) for part in names if part) or str(sender.get("title") or "")
    return {key: value for key, value in (("username", sender.get("username")), ("name", name)) if value}


def _media_of(message: dict[str, Any]) -> tuple[Media, ...]:
    found: list[Media] = []
    for kind, type in _KEPT_MEDIA.items():
        value = message.get(kind)
        # An animation is a document too, for those who do not know animations.
        if not value or (kind == "document" and "animation" in message):
            continue
        # Of a photo there are several sizes; the last is the largest.
        file = value[-1] if kind == "photo" else value
        found.append(
            Media(FILE + file["file_id"], str(file.get("mime_type") or type), str(file.get("file_name") or ""))
        )
    return tuple(found)
