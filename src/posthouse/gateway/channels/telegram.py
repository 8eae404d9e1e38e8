"""The channel ``telegram``: a bot, by long polling of the Bot API.

In: updates, each handed over and durable before the next poll confirms it. Out: one call of the API for each part.
The API knows no idempotency key and cannot be asked what became of a call: what was interrupted stays unclear.
A bot's token stands in every URL, so no error's own text and no URL is ever passed on.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, NamedTuple

import aiohttp

from ...config import Kind, Setting
from ...errors import InvalidInput
from .. import strict
from ..channel import Offline, Permanent, RateLimited, SendError, Sending, Sent, Setup, Unclear
from ..letter import Inbound, Media
from .account import Account, Lost

log = logging.getLogger("posthouse.gateway")

KIND = "telegram"
OPTIONS: tuple[Setting, ...] = (
    Setting("token", Kind.TEXT, None, "The bot's token, as @BotFather gives it.", derived="must be given", secret=True),
    Setting(
        "base_url",
        Kind.TEXT,
        "https://api.telegram.org",
        "Where the Bot API is: Telegram's own server, or one that you run.",
        pattern=r"https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._/-]*)?",
    ),
    Setting("poll_s", Kind.SECONDS, 50.0, "How long the server may wait for an update before it answers.", most=50),
    Setting("timeout_s", Kind.SECONDS, 20.0, "How long the answer to a call may take.", least=0.1, most=600),
    Setting("answer_bytes_max", Kind.WHOLE, 16_777_216, "The largest answer that is read.", least=1_024, most=1 << 30),
)
ANSWER_S = 10.0
TEXT_MAX = 4_096
CAPTION_MAX = 1_024
MEDIA_GROUP_MAX = 10
UPDATES = ("message", "channel_post", "callback_query")
"""The kinds of updates that are asked for."""
PASSED_ON = frozenset({"parse_mode", "reply_markup", "disable_notification", "protect_content", "link_preview_options"})
"""What a part's ``extra`` may hold: parameters of the API of the same names."""
FILE = "telegram:"
"""A medium's URL is this and its file id: the real one would hold the token."""
_METHODS = {"image": ("sendPhoto", "photo"), "video": ("sendVideo", "video"), "audio": ("sendAudio", "audio")}
_KEPT_MEDIA = {"photo": "image/jpeg", "video": "video/mp4", "voice": "audio/ogg", "audio": "", "document": "",
               "animation": "video/mp4", "video_note": "video/mp4", "sticker": "image/webp"}  # fmt: skip
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,100}")


def make(setup: Setup) -> Telegram:
    """The factory."""
    return Telegram(setup)


class Failure(NamedTuple):
    """What the API said instead of a result."""

    code: int
    text: str
    after_s: float | None


class Telegram(Account):
    """One bot."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, OPTIONS)
        token = self.options.secret("token").reveal()
        if not _TOKEN.fullmatch(token):
            raise self.options.wrong("token_file or token_env", "does not lead to a token of a bot: 123456:ABC…")
        self._start = f"{self.options.text('base_url').rstrip('/')}/bot{token}/"
        self._offset = 0
        self._client: aiohttp.ClientSession | None = None
        self._live: Live | None = None

    def connection(self) -> Live | None:
        """The client of this moment; the API is there as long as polling works."""
        return self._live if self.is_up else None

    async def open(self) -> None:
        """The client outlives polls that fail: what is being sent meanwhile is not cut off."""
        self._client = aiohttp.ClientSession(
            # An idle connection is not kept for long: one that is closed while we write makes a send unclear.
            connector=aiohttp.TCPConnector(keepalive_timeout=15.0),
            timeout=aiohttp.ClientTimeout(sock_connect=min(10.0, self.options.seconds("timeout_s"))),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        await super().open()

    async def shut(self) -> None:
        """Close sockets."""
        if self._client is not None:
            await self._client.close()

    async def live(self) -> None:
        """Poll until it fails."""
        assert self._client is not None
        live = Live(self, self._client, self._start)
        try:
            await live.poll()
        finally:
            live.ended = True
            self._live = None

    def opened(self, live: Live, name: str) -> None:
        """The API knows us."""
        self._live = live
        self.came_up(name)

    @property
    def offset(self) -> int:
        """The first update that is not durable yet."""
        return self._offset

    async def updated(self, update: Any) -> None:
        """Hand an update over; it is confirmed by the next poll."""
        number = update.get("update_id") if isinstance(update, dict) else None
        if not isinstance(number, int):
            raise Lost("the server sent something else than updates")
        try:
            inbound = self.inbound_of(update)
        except (InvalidInput, KeyError, TypeError, AttributeError) as error:
            log.error("%r: update %d cannot be read: %s", self, number, type(error).__name__)
            inbound = None
        if inbound is not None:
            await self.keep(inbound)
        self._offset = number + 1

    def inbound_of(self, update: dict[str, Any]) -> Inbound | None:
        """The message in an update; None where there is none for us."""
        query = update.get("callback_query")
        if query is not None:
            shown = query.get("message") or {}
            chat = str((shown.get("chat") or query["from"])["id"])
            return Inbound(
                id=f"{self.account}:{chat}:callback:{query['id']}",
                channel=self.kind,
                conversation=chat,
                sender=str(query["from"]["id"]),
                text=str(query.get("data") or ""),
                account=self.account,
                thread=_thread_of(shown),
                reply_to=self._id(chat, shown["message_id"]) if "message_id" in shown else "",
                control=True,
                metadata=_person(query["from"]) | {"update_id": update["update_id"], "callback_query": query["id"]},
                tenant=self.tenant,
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
            id=self._id(chat, message["message_id"]),
            channel=self.kind,
            conversation=chat,
            sender=str(sender["id"]),
            text=text,
            account=self.account,
            thread=_thread_of(message),
            reply_to=self._id(chat, replied["message_id"]) if replied else "",
            media=_media_of(message),
            control=any(e.get("type") == "bot_command" and e.get("offset") == 0 for e in entities),
            metadata=_person(sender)
            | {"update_id": update["update_id"], "date": message.get("date"), "chat_type": message["chat"].get("type")},
            tenant=self.tenant,
        )

    def _id(self, chat: str, message: int) -> str:
        """A message's number counts from 1 in each chat, so account and chat stand before it."""
        return f"{self.account}:{chat}:{message}"


class Live:
    """The API as long as polling works."""

    def __init__(self, account: Telegram, client: aiohttp.ClientSession, start: str) -> None:
        self._account = account
        self._client = client
        self._start = start
        self.ended = False

    async def poll(self) -> None:
        """Ask who we are, then for updates, again and again."""
        account = self._account
        timeout_s, poll_s = account.options.seconds("timeout_s"), account.options.seconds("poll_s")
        me = await self._polled("getMe", {}, timeout_s)
        name = me.get("username") if isinstance(me, dict) else None
        account.opened(self, f"@{name}" if isinstance(name, str) else "")
        while True:
            asked = {"offset": account.offset, "timeout": int(poll_s), "allowed_updates": UPDATES}
            updates = await self._polled("getUpdates", asked, poll_s + timeout_s)
            if not isinstance(updates, list):
                raise Lost("the server sent something else than updates")
            for update in updates:
                await account.updated(update)
                if isinstance(update.get("callback_query"), dict):
                    account.spawn(self._release(update["callback_query"].get("id")))

    async def _release(self, query: Any) -> None:
        """A button that was pressed turns until it is told that somebody noticed; if that fails, it stops by itself."""
        try:
            await self._call("answerCallbackQuery", {"callback_query_id": query}, ANSWER_S)
        except (Offline, Unclear) as error:
            log.debug("%r: a button was not released: %s", self._account, error)

    async def _polled(self, method: str, values: dict[str, Any], timeout_s: float) -> Any:
        try:
            result = await self._call(method, values, timeout_s)
        except (Offline, Unclear) as error:
            raise Lost(str(error)) from None
        if isinstance(result, Failure):
            raise Lost(f"{method}: the server answered {result.code} ({result.text})", after_s=result.after_s or 0.0)
        return result

    async def _call(self, method: str, values: dict[str, Any], timeout_s: float) -> Any:
        """The result of a call, or the Failure that came instead; Offline or Unclear if none of both came."""
        limit = self._account.options.whole("answer_bytes_max")
        try:
            async with asyncio.timeout(timeout_s):
                async with self._client.post(self._start + method, json=values, allow_redirects=False) as answer:
                    data = bytearray()
                    async for chunk in answer.content.iter_any():
                        data += chunk
                        if len(data) > limit:
                            raise Unclear(f"an answer of more than {limit} bytes")
                    status = answer.status
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Offline(f"cannot connect: {getattr(error, 'os_error', None) or type(error).__name__}") from None
        except TimeoutError:
            raise Unclear("no answer came in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unclear(f"the connection ended before the answer came: {type(error).__name__}") from None
        return self._read(status, bytes(data))

    def _read(self, status: int, data: bytes) -> Any:
        try:
            value = strict.loads(data)
        except InvalidInput:
            value = None
        if not isinstance(value, dict) or "ok" not in value:
            # Not the API's own words: somebody in between.
            return Failure(status if status >= 400 else 502, "no answer of the API", None)
        if value["ok"] is True:
            return value.get("result")
        code, more = value.get("error_code"), value.get("parameters")
        after = more.get("retry_after") if isinstance(more, dict) else None
        return Failure(
            code if isinstance(code, int) else status,
            self._account.scrub(value.get("description") or "no reason", 200),
            float(after) if isinstance(after, int) and 0 < after <= 86_400 else None,
        )

    # Out.

    async def send(self, sending: Sending) -> Sent:
        """One part: one call."""
        if self.ended:
            raise Offline("the connection is gone")
        method, values = call_of(sending)
        result = await self._call(method, values, self._account.options.seconds("timeout_s"))
        if isinstance(result, Failure):
            raise _error_of(result)
        first = result[0] if isinstance(result, list) and result else result
        number = first.get("message_id") if isinstance(first, dict) else None
        return Sent("" if number is None else str(number))


def call_of(sending: Sending) -> tuple[str, dict[str, Any]]:
    """The method and parameters that send a part; Permanent if the API has none for it."""
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
            raise Permanent(f"message is too long: {_length(part.text)} characters, at most {TEXT_MAX}")
        return "sendMessage", values | {"text": part.text}
    if _length(part.text) > CAPTION_MAX:
        raise Permanent(f"caption is too long: {_length(part.text)} characters, at most {CAPTION_MAX}")
    caption = {"caption": part.text} if part.text else {}
    if len(part.media) == 1:
        method, name = _method_of(part.media[0])
        return method, values | caption | {name: _source_of(part.media[0])}
    if len(part.media) > MEDIA_GROUP_MAX:
        raise Permanent(f"at most {MEDIA_GROUP_MAX} media can be sent together, not {len(part.media)}")
    types = [_method_of(medium)[1] for medium in part.media]
    # Photos and videos may be mixed; with anything else, all are plain files.
    if not set(types) <= {"photo", "video"}:
        types = ["document"] * len(types)
    group = [{"type": type, "media": _source_of(medium)} for type, medium in zip(types, part.media, strict=True)]
    group[0] |= caption
    return "sendMediaGroup", {name: v for name, v in values.items() if name != "reply_markup"} | {"media": group}


def _method_of(medium: Media) -> tuple[str, str]:
    return _METHODS.get(medium.type.partition("/")[0], ("sendDocument", "document"))


def _source_of(medium: Media) -> str:
    """What the API is told to send: a file that it has, or a URL that it fetches itself."""
    if medium.url.startswith(FILE):
        return medium.url.removeprefix(FILE)
    if medium.url.startswith(("https://", "http://")):
        return medium.url
    raise Permanent("a medium for telegram is an http(s) URL or telegram: and a file id")


def _error_of(failure: Failure) -> SendError:
    told = f"{failure.text} ({failure.code})"
    if failure.code == 429:
        return RateLimited(failure.after_s or 30.0, told)
    if failure.code in (401, 409):
        # The account's trouble, not the message's: it waits until somebody sees to it.
        return Offline(told, 60.0)
    if failure.code >= 500:
        return Unclear(told)
    return Permanent(told)


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
