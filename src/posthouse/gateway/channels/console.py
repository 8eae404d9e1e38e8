"""The channel ``console``: a terminal. What is typed is a message, and what is sent is printed.

In: lines of standard input. Out: lines on standard output, with nothing in them that could move the terminal.
There is one conversation, with whoever sits there. A line that is being stored when the process dies was not printed
as received; nothing tells it again. It is for trying things, not for keeping them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import sys
import threading
from typing import IO, Any

from ...settings import Kind, Setting
from ..channel import Offline, Permanent, Sending, Sent, Setup, Unclear
from ..letter import Inbound
from .account import Account, Lost

OPTIONS: tuple[Setting, ...] = (
    Setting("name", Kind.TEXT, "you", "Who sits at the terminal: the conversation and the sender of what is typed."),
    Setting("line_bytes_max", Kind.WHOLE, 65_536, "The longest line that is taken.", least=16, most=1_048_576),
)
CONVERSATION = "console"


def make(setup: Setup) -> Console:
    """The factory."""
    return Console(setup)


class Console(Account):
    """The terminal of this process, or any other pair of streams."""

    def __init__(self, setup: Setup, reading: IO[Any] | None = None, writing: IO[str] | None = None) -> None:
        super().__init__(setup, OPTIONS)
        self._reading = reading
        self._writing = writing
        self._who = self.options.text("name")
        # Ids must not come again after a restart.
        self._run = secrets.token_hex(6)
        self._count = 0
        self._alone = asyncio.Lock()
        self._no_more = asyncio.Event()

    @property
    def ended(self) -> asyncio.Event:
        """Set when there is nothing more to read."""
        return self._no_more

    def connection(self) -> Console | None:
        """Itself, while it runs."""
        return self if self.is_up else None

    async def live(self) -> None:
        """Read lines until there are no more; then what is sent is still printed."""
        try:
            lines = _Lines(self._reading or sys.stdin, self.options.whole("line_bytes_max"))
        except (OSError, ValueError, AttributeError):
            raise Lost("standard input is closed", "closed", after_s=3_600) from None
        self.came_up("terminal")
        try:
            while (line := await lines.next()) is not None:
                if line.strip():
                    await self._typed(line)
        finally:
            lines.close()
        self._no_more.set()
        await asyncio.Event().wait()
        raise Lost("the terminal is closed", "closed")

    async def _typed(self, line: str) -> None:
        self._count += 1
        await self.keep(
            Inbound(
                id=f"{self._run}-{self._count}",
                channel=self.kind,
                conversation=CONVERSATION,
                sender=self._who,
                text=line,
                account=self.account,
                control=line.startswith("/"),
                tenant=self.tenant,
            )
        )

    async def send(self, sending: Sending) -> Sent:
        """Print one part."""
        if not self.is_up:
            raise Offline("the terminal is closed")
        part = sending.part
        if not part.text and not part.media:
            raise Permanent("a part for the console needs text or media")
        text = "\n".join([*([part.text] if part.text else []), *(f"[{m.type or 'file'}] {m.url}" for m in part.media)])
        async with self._alone:
            try:
                await asyncio.to_thread(self._print, inert(text) + "\n")
            except (OSError, ValueError) as error:
                raise Unclear(f"the terminal cannot be written to: {type(error).__name__}") from None
        return Sent()

    def _print(self, text: str) -> None:
        writing = self._writing or sys.stdout
        writing.write(text)
        writing.flush()


def inert(text: str) -> str:
    """Text in which control characters are shown, not obeyed; only the ends of lines stay."""
    return "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


class _Lines:
    """Lines of a stream, read in a thread that can be told to stop."""

    def __init__(self, stream: IO[Any], line_bytes_max: int) -> None:
        self._handle = stream.fileno()
        self._most = line_bytes_max
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        # One line is asked for at a time: what nobody has asked for stays in the terminal.
        self._wanted = threading.Semaphore(0)
        self._stop, self._told = os.pipe()
        self._thread = threading.Thread(target=self._read, name="posthouse-console", daemon=True)
        self._thread.start()

    async def next(self) -> str | None:
        """The next line; None when there are no more."""
        self._wanted.release()
        return await self._queue.get()

    def close(self) -> None:
        """Stop reading."""
        os.write(self._told, b"x")
        self._wanted.release()
        self._thread.join()
        os.close(self._stop)
        os.close(self._told)

    def _read(self) -> None:
        ready = select.poll()
        ready.register(self._handle, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        rest, more = b"", True
        while more or rest:
            self._wanted.acquire()
            # A line that is too long is cut into several.
            while more and b"\n" not in rest and len(rest) < self._most:
                if any(handle == self._stop for handle, _ in ready.poll()):
                    return
                data = self._some()
                rest, more = rest + data, bool(data)
            line, _, rest = rest.partition(b"\n") if b"\n" in rest else (rest, b"", b"")
            self._put(line.decode(errors="replace").rstrip("\r") if line or more else None)
        self._put(None)

    def _some(self) -> bytes:
        try:
            return os.read(self._handle, 4_096)
        except OSError:
            # The terminal hung up.
            return b""

    def _put(self, line: str | None) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, line)
