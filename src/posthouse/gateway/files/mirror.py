"""The mirror: the outbound queue is kept as files too, so that another program can go on with it.

    store ── events ──→ files            whatever happens to a message happens to its file
    store ←─ import ─── files            what another program puts there is taken over, and sent

The store decides: a message is durable when the store has it, and its file follows at once. At start the two are
compared, so a crash between them leaves nothing behind. With the backend back at ``sqlite`` the files of messages that
wait here are removed, so that nobody sends them twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from ...config import Config
from ...control.openclaw import SHELF as IMPORTED
from ...control.openclaw import decode, take
from ...control.operation import Context, Refused
from ...engine.engine import Engine
from ...errors import EngineClosed, PosthouseError, StoreError
from ...mailbox.command import Filter, Keep
from ...mailbox.message import Ref
from ...mailbox.store import MessageView
from ..api.feed import Feed, Told
from ..importing import files as reader
from ..importing import page
from ..importing.entry import Entry, Left, Queue, Result, Unfit
from ..importing.letters import ORIGIN
from ..importing.openclaw import DESKS, review_after_s
from ..letter import OUTBOUND_DESK
from .folder import Folder
from .layout import WAITING, image

log = logging.getLogger("posthouse.gateway")

SHELF, BACKEND = "gateway", "outbound_backend"
SQLITE, FILES = "sqlite", "files"
PAGE = 200
BY = "gateway:files"
STORE_PAUSE_S = 1.0


class Mirror:
    """Keeps a folder and the outbound desk alike, from ``start`` to ``close``."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._wanted = config.text("gateway.outbound_backend")
        self._every_s = config.seconds("gateway.files_every_s")
        self._folder = Folder(config.path("gateway.files_dir"))
        self._feed = Feed(engine)
        self._after = 0
        self._task: asyncio.Task[None] | None = None
        self.moved = asyncio.Event()
        """Set, and replaced by a new one, whenever the files were brought up to the store."""
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._written: set[str] = set()
        """Our own files since the folder was last looked at."""
        self._looked_s = 0.0
        self._told: set[tuple[str, str]] = set()
        """Files that were complained of already."""

    async def start(self) -> None:
        """Take over what waits where it was, and begin to follow."""
        kept = await self._engine.read(lambda store: store.kept_value(SHELF, BACKEND))
        before = SQLITE if kept is None else kept.decode()
        if self._wanted == FILES:
            self._folder.make()
            self._after = self._engine.store.offset()
            await asyncio.to_thread(self._compare)
            self._feed.start()
            self._task = asyncio.create_task(self._run(), name="gateway files")
        elif before == FILES:
            await asyncio.to_thread(self._leave)
        if before != self._wanted:
            await self._engine.do(Keep(SHELF, BACKEND, self._wanted.encode()))

    async def close(self) -> None:
        """Bring the files to the state that the store is in, and stop. Idempotent."""
        await self._feed.close()
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._catch_up)
        except (OSError, StoreError) as error:
            log.warning("the files in %s may be behind the store: %s", self._folder.path, error)

    async def _run(self) -> None:
        with self._feed.listen(self._after) as listener:
            while not listener.ended:
                told = await listener.take(self._every_s)
                try:
                    if listener.missing:
                        listener.missing = 0
                        await asyncio.to_thread(self._compare)
                    else:
                        await asyncio.to_thread(self._follow, told)
                    self._after = listener.after
                    moved, self.moved = self.moved, asyncio.Event()
                    moved.set()
                except EngineClosed:
                    return
                except (OSError, PosthouseError) as error:
                    log.warning("the files in %s are behind the store: %s", self._folder.path, error)
                    await asyncio.sleep(STORE_PAUSE_S)
                    listener.missing = 1

    def _catch_up(self) -> None:
        events = self._engine.store.events(self._after)
        self._follow([Told(offset, event) for offset, _, event in events])

    # What follows runs on a thread of its own.

    def _follow(self, told: Iterable[Told]) -> None:
        """Show what happened, and look for files of others."""
        refs = {
            Ref(event.desk, event.mailbox, event.sender, event.message_id)
            for _, event in told
            if event.desk == OUTBOUND_DESK and event.message_id
        }
        for ref in refs:
            self._show(ref)
        if time.monotonic() - self._looked_s >= self._every_s:
            self._look()

    def _look(self) -> None:
        """Look for files that are new, and not our own."""
        self._looked_s = time.monotonic()
        names = self._folder.names()
        fresh = {stem for stem, _ in names - self._seen} - self._written
        self._written.clear()
        if fresh:
            self._pick_up()
            names = self._folder.names()
        self._seen = names

    def _show(self, ref: Ref) -> None:
        view = self._engine.store.message(ref)
        if view is not None:
            self._shown(view)

    def _shown(self, view: MessageView) -> None:
        made = image(view)
        if made is not None:
            self._folder.show(made, view.message.ref, self._digest(view.message.ref))
            self._written.add(made.stem)

    def _digest(self, ref: Ref) -> str | None:
        """That of the file which a message was imported from."""
        kept = self._engine.store.kept_value(IMPORTED, f"{Queue.OUTBOUND}/{ref.id}") if ref.sender == ORIGIN else None
        return None if kept is None else decode(kept).digest

    def _compare(self) -> None:
        """Take over what is new in the folder, then make all of it what the store says."""
        self._pick_up()
        after = 0
        while views := self._engine.store.messages(Filter(OUTBOUND_DESK), after, PAGE):
            after = views[-1].number
            for view in views:
                self._shown(view)
        self._seen = self._folder.names()
        self._written.clear()

    def _leave(self) -> None:
        """Take over what is new, and remove the files of what waits here."""
        self._pick_up()
        removed = 0
        for found in list(self._folder.files()):
            if found.ref is not None and self._engine.store.message(found.ref) is not None:
                self._folder.remove(found)
                removed += 1
        log.info("the outbound queue is in the store alone again: %d files were removed", removed)

    def _pick_up(self) -> None:
        """Import files that stand for no message of this store."""
        store = self._engine.store
        ours = {
            found.stem
            for found in self._folder.files()
            if found.place == WAITING and found.ref is not None and store.message(found.ref) is not None
        }
        now = self._engine.now()
        policies = {queue: store.policies[desk] for queue, desk in DESKS.items()}
        limits = {queue: review_after_s(policy) for queue, policy in policies.items()}
        entries: list[Entry] = []
        for found in reader.read(self._folder.path, now, policies, limits, None):
            if isinstance(found, Left):
                if found.result is Result.QUARANTINED:
                    self._complain(found.source, f"{found.reason}: {found.message}")
            elif found.queue is Queue.OUTBOUND and found.verdict.result is not Result.DEAD and found.id not in ours:
                entries.append(found)
        for begin in range(0, len(entries), PAGE):
            self._import(entries[begin : begin + PAGE], now)

    def _import(self, entries: list[Entry], now: int) -> None:
        plain = []
        for entry in entries:
            try:
                plain.append((entry, page.plain(entry, now, self._engine.store.policies)))
            except Unfit as unfit:
                self._complain(entry.source, f"{unfit.reason}: {unfit}")
        context = Context(self._engine, self._config, BY, lambda done, total, doing: None)
        root = str(self._folder.path)
        answer = take(context, root=root, now=now, entries={"entries": [one for _, one in plain]})
        assert not isinstance(answer, Refused), answer
        for (entry, one), became in zip(plain, answer["entries"], strict=True):
            if became == "imported":
                if one["message"] is not None:
                    message = one["message"]
                    self._show(Ref(message["desk"], message["mailbox"], message["sender"], message["id"]))
            elif became != "known":
                self._complain(entry.source, f"it is not taken over: {became}")

    def _complain(self, source: str, why: str) -> None:
        if (source, why) not in self._told:
            self._told.add((source, why))
            log.warning("a file in %s is left where it is: %s: %s", self._folder.path, source, why)
