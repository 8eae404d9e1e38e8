"""A small IMAP client (RFC 9051, and RFC 3501 before it): as much as it takes to read a mailbox and wait for news.

In: commands as methods. Out: what the server answers, within limits: a line, a literal, and number and size of all
responses to one command are bounded. A password is sent once and stands in no error.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
from typing import Self

LINE_BYTES_MAX = 16_777_216
"""A line names all mails that were found: room for two million."""
RESPONSES_MAX = 100_000
_LITERAL = re.compile(rb"\{([0-9]{1,12})\+?\}$")
_UIDVALIDITY = re.compile(rb"\[UIDVALIDITY ([0-9]+)\]", re.IGNORECASE)
_SIZE = re.compile(rb"\bRFC822\.SIZE ([0-9]+)", re.IGNORECASE)
_NEWS = re.compile(rb"\* [0-9]+ (EXISTS|FETCH)\b", re.IGNORECASE)


class ImapError(Exception):
    """The server refused a command, said something else than IMAP, or is gone."""


class Response(list[bytes]):
    """One response: its lines, and between them the literals that they announced."""

    @property
    def line(self) -> bytes:
        """Its first line."""
        return self[0]


class Imap:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float, literal_bytes_max: int
    ) -> None:
        self._reader, self._writer = reader, writer
        self._timeout_s = timeout_s
        self._literal_bytes_max = literal_bytes_max
        self._number = 0
        self._capabilities: frozenset[bytes] = frozenset()
        self._news = False
        """Whether something came since the last search: servers say so behind any command."""

    @classmethod
    async def connect(
        cls, host: str, port: int, security: str, context: ssl.SSLContext, timeout_s: float, literal_bytes_max: int
    ) -> Self:
        """Connect; ``security`` is tls, starttls or none."""
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=context if security == "tls" else None, limit=LINE_BYTES_MAX
                )
        except TimeoutError:
            raise ImapError("the server does not answer") from None
        except OSError as error:
            raise ImapError(f"cannot connect: {error.strerror or type(error).__name__}") from None
        found = cls(reader, writer, timeout_s, literal_bytes_max)
        try:
            await found._greeted()
            if security == "starttls":
                await found._start_tls(context, host)
            await found._learn()
        except BaseException:
            found.abort()
            raise
        return found

    async def _greeted(self) -> None:
        greeting = (await self._response()).line.upper()
        if not greeting.startswith((b"* OK", b"* PREAUTH")):
            raise ImapError("the server does not greet as IMAP servers do")

    async def _start_tls(self, context: ssl.SSLContext, host: str) -> None:
        await self.command("STARTTLS")
        # What was sent ahead of the handshake is not believed.
        ahead = asyncio.ensure_future(self._reader.read(1))
        await asyncio.sleep(0)
        if ahead.done():
            raise ImapError("the server spoke before the connection was secure")
        ahead.cancel()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._writer.start_tls(context, server_hostname=host)
        except TimeoutError:
            raise ImapError("the TLS handshake takes too long") from None
        except OSError as error:
            raise ImapError(f"no TLS: {error.strerror or type(error).__name__}") from None

    async def _learn(self) -> None:
        for response in await self.command("CAPABILITY"):
            words = response.line.upper().split()
            if words[1:2] == [b"CAPABILITY"]:
                self._capabilities = frozenset(words[2:])

    def can(self, capability: str) -> bool:
        """Whether the server can do something that not all can."""
        return capability.upper().encode() in self._capabilities

    async def login(self, user: str, password: str) -> None:
        """Say who we are; what the server says of it may repeat what it was told, and is not passed on."""
        try:
            if self.can("AUTH=PLAIN"):
                secret = base64.b64encode(b"\0".join((b"", user.encode(), password.encode()))).decode()
                await self.command("AUTHENTICATE PLAIN", secret)
            else:
                await self.command(f"LOGIN {quoted(user)} {quoted(password)}")
        except Refusal:
            raise ImapError("the server does not accept user and password") from None
        await self._learn()

    async def select(self, mailbox: str, *, read_only: bool = False) -> int:
        """Open a mailbox; its validity: UIDs mean something else when it changes."""
        for response in await self.command(f"{'EXAMINE' if read_only else 'SELECT'} {quoted(mailbox)}"):
            if found := _UIDVALIDITY.search(response.line):
                return int(found[1])
        raise ImapError("the mailbox has no UIDVALIDITY")

    async def search(self, criteria: str) -> list[int]:
        """The UIDs of messages, in order."""
        found: list[int] = []
        self._news = False
        for response in await self.command(f"UID SEARCH {criteria}"):
            words = response.line.split()
            if [word.upper() for word in words[:2]] == [b"*", b"SEARCH"]:
                found += [int(word) for word in words[2:] if word.isdigit()]
        return sorted(found)

    async def size_bytes(self, uid: int) -> int | None:
        """How large a message is; None if it is gone."""
        for response in await self.command(f"UID FETCH {uid} (RFC822.SIZE)"):
            if found := _SIZE.search(response.line):
                return int(found[1])
        return None

    async def fetch(self, uid: int, section: str = "") -> bytes | None:
        """A message, or a section of it, without marking it as seen; None if it is gone."""
        for response in await self.command(f"UID FETCH {uid} (BODY.PEEK[{section}])"):
            if len(response) > 1 and b"FETCH" in response.line.upper():
                return response[1]
        return None

    async def mark(self, uid: int, *flags: str) -> None:
        """Set flags of a message."""
        await self.command(f"UID STORE {uid} +FLAGS.SILENT ({' '.join(flags)})")

    async def wait(self, most_s: float) -> None:
        """Wait until there is news since the last search, as long as that; a server that cannot idle is asked then."""
        if self._news:
            return
        if not self.can("IDLE"):
            await asyncio.sleep(most_s)
            await self.command("NOOP")
            return
        tag = await self._write("IDLE")
        while not (response := await self._response()).line.startswith(b"+"):
            self._check_tagged(tag, response)
        try:
            async with asyncio.timeout(most_s):
                while not self._news:
                    await self._response(timed=False)
        except TimeoutError:
            pass
        self._writer.write(b"DONE\r\n")
        await self._answered(tag)

    async def close(self) -> None:
        """Say goodbye, if that is possible."""
        with contextlib.suppress(ImapError, OSError):
            await self.command("LOGOUT")
        self.abort()

    def abort(self) -> None:
        """Close without a word."""
        transport = self._writer.transport
        assert transport is not None
        transport.abort()

    # The wire.

    async def command(self, text: str, continued: str | None = None) -> list[Response]:
        """Send a command; the untagged responses to it. ``continued`` is sent when the server asks for more."""
        tag = await self._write(text)
        if continued is not None:
            while not (response := await self._response()).line.startswith(b"+"):
                self._check_tagged(tag, response)
            self._writer.write(continued.encode() + b"\r\n")
        return await self._answered(tag)

    async def _write(self, text: str) -> bytes:
        self._number += 1
        tag = b"p%d" % self._number
        try:
            self._writer.write(tag + b" " + text.encode() + b"\r\n")
            async with asyncio.timeout(self._timeout_s):
                await self._writer.drain()
        except TimeoutError:
            raise ImapError("the server does not read") from None
        except OSError:
            raise ImapError("the connection ended") from None
        return tag

    async def _answered(self, tag: bytes) -> list[Response]:
        found: list[Response] = []
        size_bytes = 0
        while not self._check_tagged(tag, response := await self._response()):
            found.append(response)
            size_bytes += sum(map(len, response))
            if len(found) > RESPONSES_MAX or size_bytes > LINE_BYTES_MAX + self._literal_bytes_max:
                raise ImapError("the server says too much")
        return found

    def _check_tagged(self, tag: bytes, response: Response) -> bool:
        """Whether this ends the command; Refusal if it does so without success."""
        if response.line.upper().startswith(b"* BYE") and not self._reader.at_eof():
            return False
        given, _, rest = response.line.partition(b" ")
        if given != tag:
            return False
        status, _, text = rest.partition(b" ")
        if status.upper() != b"OK":
            raise Refusal(f"the server refused it: {text[:200].decode(errors='replace')}")
        return True

    async def _response(self, *, timed: bool = True) -> Response:
        try:
            async with asyncio.timeout(self._timeout_s if timed else None):
                response = await self._read()
        except TimeoutError:
            if timed:
                raise ImapError("the server does not answer") from None
            raise
        except (OSError, asyncio.IncompleteReadError):
            raise ImapError("the connection ended") from None
        except (ValueError, asyncio.LimitOverrunError):
            raise ImapError("a line of the server is too long") from None
        self._news = self._news or _NEWS.match(response.line) is not None
        return response

    async def _read(self) -> Response:
        found = Response()
        while True:
            line = (await self._reader.readuntil(b"\r\n"))[:-2]
            found.append(line)
            announced = _LITERAL.search(line)
            if announced is None:
                return found
            size_bytes = int(announced[1])
            if sum(map(len, found)) + size_bytes > self._literal_bytes_max:
                raise ImapError(f"the server sends {size_bytes} bytes; at most {self._literal_bytes_max} are taken")
            found.append(await self._reader.readexactly(size_bytes))


class Refusal(ImapError):
    """The server said NO or BAD."""


def quoted(text: str) -> str:
    """A quoted string; ImapError where it cannot be one."""
    if not text.isascii() or not text.isprintable():
        raise ImapError("a name that IMAP cannot carry: only printable ASCII is sent")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
