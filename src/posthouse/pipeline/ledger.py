"""The lake's own record: which segments are in it, the batch under way, and who is working on it.

In: a lake's folder or URL. Out: ``state.json`` (what is committed) and ``plan.json`` (the batch under way), each
written as a whole, and a lock. A batch is planned, then written table by table under its number, then committed by a
new state. Whoever finds a plan that is not committed does the same batch again: tables that have it skip it.
It never touches a table.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ..errors import SchemaMismatch, StoreCorrupt, StoreHeld
from . import bronze, offsets
from .bronze import Segment
from .finding import Finding, findings
from .schema import SCHEMA_VERSION

FOLDER = "_posthouse"
APPEND, RECOMPUTE, REBUILD = "append", "recompute", "rebuild"


@dataclass(frozen=True)
class State:
    """What is committed."""

    batch: int = 0
    gold: int = 0
    """The batch from which the derived tables were last made."""
    segments: tuple[Segment, ...] = ()
    rejected: tuple[Segment, ...] = ()
    foreign: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    """Mailboxes whose rows are kept out."""
    schema_version: int = SCHEMA_VERSION

    def known(self) -> dict[str, list[tuple[int, int]]]:
        """The offsets of each node that are in the lake."""
        nodes: dict[str, list[tuple[int, int]]] = {}
        for segment in self.segments:
            nodes.setdefault(segment.node, []).extend(segment.ranges)
        return {node: offsets.merged(ranges) for node, ranges in nodes.items()}

    def findings(self) -> list[Finding]:
        """What is wrong with the files."""
        return findings((*self.segments, *self.rejected), self.foreign)


@dataclass(frozen=True)
class Plan:
    """A batch: what the state will be, and the tables' versions that it starts from."""

    batch: int
    mode: str
    new: tuple[Segment, ...]
    after: State
    versions: Mapping[str, int] = field(default_factory=dict)


class Ledger:
    """The record of one lake."""

    def __init__(self, lake: str) -> None:
        self.place = lake.rstrip("/")
        self.system, self._root = bronze.open_place(lake)
        self._local = "://" not in lake or lake.startswith("file://")

    def table(self, name: str) -> str:
        """Where a table is."""
        return f"{self.place if '://' in self.place else self._root}/{name}"

    def has(self, name: str) -> bool:
        """Whether a table is there."""
        fs = bronze.arrow_fs()
        return bool(self.system.get_file_info(f"{self._root}/{name}/_delta_log").type == fs.FileType.Directory)

    def state(self) -> State:
        """What is committed; an empty one in a new lake."""
        found = self._read("state.json")
        if found is None:
            return State()
        version = found.get("schema_version")
        if version != SCHEMA_VERSION:
            raise SchemaMismatch(
                f"the lake {self.place} has schema version {version}, and this program {SCHEMA_VERSION}"
            )
        return _state(found)

    def plan(self) -> Plan | None:
        """The batch that was begun and not committed."""
        found = self._read("plan.json")
        if found is None:
            return None
        return Plan(
            batch=found["batch"],
            mode=found["mode"],
            new=tuple(map(Segment.from_plain, found["new"])),
            after=_state(found["after"]),
            versions=found["versions"],
        )

    def begin(self, plan: Plan) -> None:
        """Record a batch before anything of it is written."""
        document = {
            "batch": plan.batch,
            "mode": plan.mode,
            "new": [segment.plain() for segment in plan.new],
            "after": _plain(plan.after),
            "versions": dict(plan.versions),
        }
        self._write("plan.json", document)

    def commit(self, state: State) -> None:
        """Record that a batch is in all tables."""
        self._write("state.json", _plain(state))
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(f"{self._root}/{FOLDER}/plan.json")

    @contextlib.contextmanager
    def alone(self, doing: str) -> Iterator[None]:
        """Keep others off the lake; StoreHeld names who has it. In an object store, Delta's own commits must do."""
        if not self._local:
            yield
            return
        folder = os.path.join(self._root, FOLDER)
        os.makedirs(folder, exist_ok=True)
        handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 500).decode(errors="replace").strip() or "another process"
                raise StoreHeld(f"{holder} is at work on the lake {self.place}") from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"books {doing} (process {os.getpid()} on {socket.gethostname()})".encode(), 0)
            yield
        finally:
            os.close(handle)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with self.system.open_input_stream(f"{self._root}/{FOLDER}/{name}") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise StoreCorrupt(f"{self.place}/{FOLDER}/{name} is damaged: {error}") from error
        if not isinstance(found, dict):
            raise StoreCorrupt(f"{self.place}/{FOLDER}/{name} is damaged: it is no object")
        return found

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        content = orjson.dumps(document)
        path = f"{self._root}/{FOLDER}/{name}"
        if not self._local:
            # An object appears as a whole when it is closed.
            with self.system.open_output_stream(path) as file:
                file.write(content)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        draft = f"{path}.new"
        with open(draft, "wb") as local:
            local.write(content)
            local.flush()
            os.fsync(local.fileno())
        os.replace(draft, path)


def _plain(state: State) -> dict[str, Any]:
    return {
        "schema_version": state.schema_version,
        "batch": state.batch,
        "gold": state.gold,
        "segments": [segment.plain() for segment in state.segments],
        "rejected": [segment.plain() for segment in state.rejected],
        "foreign": list(state.foreign),
        "forgotten": list(state.forgotten),
    }


def _state(found: Mapping[str, Any]) -> State:
    return replace(
        State(),
        batch=found["batch"],
        gold=found["gold"],
        segments=tuple(map(Segment.from_plain, found["segments"])),
        rejected=tuple(map(Segment.from_plain, found["rejected"])),
        foreign=tuple(found["foreign"]),
        forgotten=tuple(found["forgotten"]),
    )
