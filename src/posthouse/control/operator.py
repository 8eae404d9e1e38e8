"""The operator's way to a store: through the server that holds it, or by opening it.

In: the configuration. Out: one ``call`` that behaves the same either way.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..config import Config
from ..errors import ConfigError, StoreError, StoreHeld
from ..mailbox.command import Command
from ..mailbox.message import Instant
from ..mailbox.outcome import Outcome
from ..mailbox.store import Store
from . import socket
from .catalogue import run
from .client import Client
from .operation import Answer, Context
from .server import user_name

if TYPE_CHECKING:
    from ..engine.engine import Engine

T = TypeVar("T")
Report = Callable[[int, int | None, str], None]

WAIT_S = 5.0
"""How long to wait for a store whose holder answers on no socket: another command, or a server that starts."""
_PAUSE_S = 0.05
_BBOLT_MAGIC = 0xED0CDAED.to_bytes(4, "little")


def open_store(config: Config, *, create: bool = False) -> Store:
    """The configured store, held by this process from now on. Only a server makes a new one."""
    from ..stores.sqlite import SqliteStore

    path = config.path("store.path")
    if _is_bbolt(path):
        raise ConfigError(
            f"{path} is the database of a Go relay, not a store of Posthouse: name another file "
            f"({config.values['store.path'].where or 'store.path'}), and bring its messages in with "
            f"`posthouse import pinch {path}`"
        )
    if not create and not path.exists():
        raise StoreError(f"there is no store at {path}; `posthouse up` makes one")
    return SqliteStore.open(path, config.policies, config.text("store.node"))


def _is_bbolt(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(20)[16:] == _BBOLT_MAGIC
    except OSError:
        return False


class Direct:
    """A store that this process opened; its engine starts with the first command, so reading writes nothing."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._store = store
        self._engine: Engine | None = None
        self.before_trim: list[Callable[[], None]] = []

    @property
    def store(self) -> Store:
        """For read queries."""
        return self._store

    def call(self, *commands: Command) -> list[Outcome]:
        """Apply commands durably."""
        if self._engine is None:
            # Not at the top: reading, which is most of what is asked, does without an engine.
            from ..engine.engine import Engine

            self._engine = Engine(
                self._store,
                queue_max=self._config.whole("engine.queue_max"),
                group_max=self._config.whole("engine.group_max"),
                sweep_s=self._config.seconds("engine.sweep_s"),
            )
            self._engine.start()
        return self._engine.call(*commands)

    def maintain(self, job: Callable[[Store], T]) -> T:
        """Run a job that has the store to itself."""
        return job(self._store) if self._engine is None else self._engine.maintain(job)

    def now(self) -> Instant:
        """The wall clock, by which commands are stamped."""
        return time.time_ns() // 1_000

    def close(self) -> None:
        """Let go of the store."""
        if self._engine is not None:
            self._engine.close()
        else:
            self._store.close()


class _Way(Protocol):
    def call(self, name: str, parameters: Mapping[str, Any], report: Report) -> Answer: ...

    def close(self) -> None: ...


class _Here:
    """Operations on a store that this process opened."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._direct = Direct(config, store)

    def call(self, name: str, parameters: Mapping[str, Any], report: Report) -> Answer:
        by = f"operator:{user_name(os.getuid())}"
        return run(Context(self._direct, self._config, by, report), name, parameters)

    def close(self) -> None:
        self._direct.close()


class Operator:
    """Calls operations by name."""

    def __init__(self, way: _Way, through: str) -> None:
        self._way = way
        self.through = through
        """"server" or "store"."""

    @classmethod
    def connect(cls, config: Config, *, create: bool = False) -> Operator:
        """Reach the store, whoever holds it. StoreHeld if its holder answers on no socket.

        ``create``: where there is no store, make one.
        """
        path = config.path("control.path")
        deadline = time.monotonic() + WAIT_S
        while True:
            client = Client.connect(path)
            if client is not None:
                ours = os.path.realpath(config.path("store.path"))
                if client.store != ours:
                    client.close()
                    raise ConfigError(f"the server at {path} serves another store: {client.store}, not {ours}")
                return cls(client, "server")
            try:
                store = open_store(config, create=create)
            except StoreHeld as error:
                if time.monotonic() >= deadline:
                    raise StoreHeld(f"{error}, which answers on no socket at {path}") from error
                time.sleep(_PAUSE_S)
                continue
            if socket.is_socket(path):
                # We hold the store, so the server that listened there is dead.
                with contextlib.suppress(OSError):
                    path.unlink()
            return cls(_Here(config, store), "store")

    @classmethod
    def nowhere(cls, config: Config) -> Operator:
        """A store in memory that is empty and will be forgotten: to try out what a new one would do."""
        from ..stores.memory import MemoryStore

        return cls(_Here(config, MemoryStore(config.policies)), "nowhere")

    def call(self, name: str, parameters: Mapping[str, Any] | None = None, report: Report | None = None) -> Answer:
        """Do one operation."""
        return self._way.call(name, parameters or {}, report or (lambda done, total, doing: None))

    def close(self) -> None:
        """Let go."""
        self._way.close()
