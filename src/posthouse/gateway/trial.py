"""A gateway for trying things out: one conversation over standard input and output, which can be killed in the middle.

In: lines of JSON on stdin: {"id", "text", "crash"} is said, {"shown": key} tells that an answer was shown; and up to
where the journal was told of. Out: lines of JSON on stdout: {"received": id}, {"reply", "key", "to"}, and {"event", …}
for each step that the journal knows. It is started by ``posthouse gateway try``, and again on the same store when it
was killed. A message whose "crash" is a stage kills the process there, once, as ``kill -9`` would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from ..engine.engine import Engine
from ..engine.tail import Tail
from ..errors import PosthouseError
from ..mailbox.event import Event
from ..mailbox.policy import INBOUND, OUTBOUND, ladder
from ..stores.sqlite import SqliteStore
from .answer import Handler, Work
from .channel import Port, Sending, Sent
from .letter import INBOUND_DESK, OUTBOUND_DESK, Inbound, Json, Reply
from .service import Gateway, Parts
from .setup import handler_of

STAGES = ("received", "handling", "sending")
"""Where it can be killed: kept, and not worked on; in the middle of the handler; shown, and not written down."""
KIND = "try"
CONVERSATION = "you"
STORE = "try.db"
_QUICK = ladder(1, 1, 1, 1, 1)


class Crashes:
    """Kills the process where a message asks for it, once for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last_words: Callable[[], None] = lambda: None

    def here(self, stage: str, id: str, wanted: object) -> None:
        """Die, if that is wanted here and was not done yet."""
        mark = self._folder / f"crashed-{id}"
        if wanted == stage and not mark.exists():
            mark.touch()
            self.last_words()
            os.kill(os.getpid(), signal.SIGKILL)


class _Terminal:
    """The channel: whoever sits at the other end takes each key once."""

    kind = KIND
    account = "default"
    idempotent = True

    def __init__(self, crashes: Crashes) -> None:
        self._crashes = crashes
        self._shown: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()

    async def start(self, port: Port) -> None:
        self._task = asyncio.create_task(self._read(port))
        port.up("terminal")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def connection(self) -> _Terminal:
        return self

    async def send(self, sending: Sending) -> Sent:
        shown = self._shown.setdefault(sending.key, asyncio.Event())
        out = sending.outbound
        # What led to it is told before it.
        await asyncio.to_thread(self._crashes.last_words)
        _write({"reply": sending.part.text, "key": sending.key, "to": out.reply_to})
        await shown.wait()
        del self._shown[sending.key]
        self._crashes.here("sending", out.reply_to, out.metadata.get("crash"))
        return Sent()

    async def _read(self, port: Port) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            frame = orjson.loads(line)
            if "shown" in frame:
                if shown := self._shown.get(frame["shown"]):
                    shown.set()
                continue
            crash = frame.get("crash")
            metadata = {} if crash is None else {"crash": crash}
            said = Inbound(frame["id"], KIND, CONVERSATION, CONVERSATION, frame["text"], metadata=metadata)
            await port.receive(said)
            self._crashes.here("received", said.id, crash)
            _write({"received": said.id})
        self.ended.set()


class _Handler:
    """The handler, behind the crash that was asked for."""

    def __init__(self, inner: Handler, crashes: Crashes) -> None:
        self._inner = inner
        self._crashes = crashes

    async def handle(self, work: Work) -> tuple[Reply, ...]:
        asked = work.message
        self._crashes.here("handling", asked.id, asked.metadata.get("crash"))
        return tuple(dataclasses.replace(reply, metadata=asked.metadata) for reply in await self._inner.handle(work))

    async def close(self) -> None:
        await self._inner.close()


async def run(folder: Path, handler: str, after: int) -> None:
    """Run on the store in ``folder`` until the input ends; tell of what the journal has behind offset ``after``."""
    crashes = Crashes(folder)
    policies = {p.name: p.replace(retry=_QUICK) for p in (INBOUND, OUTBOUND)}
    async with Engine(SqliteStore.open(folder / STORE, policies, node=KIND)) as engine:
        terminal = _Terminal(crashes)
        gateway = Gateway(engine, Parts([terminal], _Handler(handler_of(handler, Path.cwd()), crashes)))
        tail = Tail(engine, after, every_s=0.05)
        tail.listen(_tell)
        crashes.last_words = tail.catch_up
        tail.start()
        try:
            await gateway.start()
            _write({"ready": True})
            await terminal.ended.wait()
        finally:
            await gateway.close()
            await tail.close()


def _tell(events: Sequence[Event], last: int, gap: bool) -> None:
    for offset, event in enumerate(events, last + 1 - len(events)):
        if event.desk in (INBOUND_DESK, OUTBOUND_DESK) and event.message_id:
            known = {"event": event.event, "desk": event.desk, "id": event.message_id, "reason": event.reason}
            _write({**known, "offset": offset})


def _write(frame: Json) -> None:
    sys.stdout.buffer.write(orjson.dumps(frame) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        asyncio.run(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    except PosthouseError as error:
        sys.exit(str(error))
