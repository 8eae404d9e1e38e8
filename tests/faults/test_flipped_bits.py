"""Bits that flip in the database file, in a chunk or in a segment: found, named, and nothing else harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from tests.faults.traffic import POLICIES, SHELF, START_AT, Ledger, Traffic
from tests.faults.vfs import Disk
from tests.stateful.replay import differences

from posthouse.errors import StoreCorrupt, StoreError
from posthouse.journal.finding import Kind
from posthouse.journal.tail import export
from posthouse.journal.verify import verify, verify_store
from posthouse.mailbox import event as ev
from posthouse.mailbox.command import Filter, Lease, Post, Start
from posthouse.mailbox.message import Message, State
from posthouse.mailbox.outcome import Leased
from posthouse.mailbox.store import MessageView
from posthouse.stores.sqlite import SqliteStore

DISK = Disk()
"""It never syncs: this file is about what is on the disk, not about how it came there."""


def opened(path: Path) -> SqliteStore:
    return SqliteStore.open(path, POLICIES, node="flips", vfs=DISK.name)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def posted(path: Path, count: int) -> list[Message]:
    """A closed store with so many messages in one mailbox, each with a body that can be found in the file."""
    store = opened(path)
    rng = Random(count)
    messages = [Message("brief", "m", f"id{n}", rng.randbytes(60), lane=f"l{n}") for n in range(count)]
    store.apply([Start(POLICIES, at=START_AT)])
    for message in messages:
        store.apply([Post(message, at=START_AT)])
    store.close()
    return messages


def test_a_flipped_bit_in_a_body_sets_that_message_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    messages = posted(path, 9)
    place = path.read_bytes().index(messages[4].body)
    flip(path, place * 8 + 100)
    store = opened(path)
    leases = [Lease("brief", "m", f"t{n}", limit=20, at=START_AT) for n in range(3)]
    found = [d.message for leased in store.apply(leases) if isinstance(leased, Leased) for d in leased.deliveries]
    assert found == messages[:4] + messages[5:]
    view = store.message(messages[4].ref)
    assert view is not None
    assert (view.state, view.reason) == (State.PARKED, "corrupt")
    assert store.corrupt == 1
    told = [e.message_id for _, _, e in store.events() if e.event == ev.PARKED and e.reason == "corrupt"]
    assert told == ["id4"]
    assert differences(store) == []
    assert verify_store(store) == []
    store.close()


@pytest.mark.parametrize("where", ["data", "prev", "hash"])
def test_a_flipped_bit_in_a_chunk_is_named_and_never_exported(tmp_path: Path, where: str) -> None:
    path = tmp_path / "a.db"
    posted(path, 9)
    db: Any = apsw.Connection(str(path))
    first: int
    value: bytes
    (first, value) = db.execute(f"SELECT first, {where} FROM chunk ORDER BY first LIMIT 1 OFFSET 5").fetchall()[0]
    damaged = bytearray(value)
    damaged[len(damaged) // 2] ^= 4
    db.execute(f"UPDATE chunk SET {where} = ? WHERE first = ?", (bytes(damaged), first))
    db.close()
    store = opened(path)
    findings = verify_store(store)
    assert findings
    assert all(str(first) in f.where for f in findings if f.kind is Kind.ALTERED)
    assert any(str(n) in findings[0].where for n in (first, first + 1))
    with pytest.raises(StoreCorrupt):
        export(store, tmp_path / "journal", final=True)
    kept = [s for s in store.segments() if s.chain]
    assert all(s.last < first for s in kept)
    # The queue does not depend on it.
    (leased,) = store.apply([Lease("brief", "m", "t", limit=20, at=START_AT)])
    assert isinstance(leased, Leased)
    assert len(leased.deliveries) == 9
    store.close()


def test_a_flipped_bit_in_a_segment_is_named_and_the_others_are_well(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    posted(path, 30)
    store = opened(path)
    exported = export(store, tmp_path / "journal", segment_events=8, final=True)
    assert len(exported.paths) >= 3
    assert verify(store, tmp_path / "journal") == []
    victim = exported.paths[1]
    whole = victim.read_bytes()
    rng = Random(5)
    for _ in range(60):
        flip(victim, rng.randrange(len(whole) * 8))
        findings = verify(store, tmp_path / "journal")
        assert findings
        assert {f.where for f in findings} <= {str(victim), str(exported.paths[2])}
        assert any(f.where == str(victim) for f in findings)
        victim.write_bytes(whole)
    assert verify(store, tmp_path / "journal") == []
    store.close()


# All over the database file


def lasting(view: MessageView) -> MessageView:
    """A message without its body, which is asked for apart, and its lease, which the next Start ends anyway."""
    bare = view.message._replace(body=b"")
    return view._replace(message=bare, token=None, holder=None, lease_ends_at=None, progress=0)


def told(store: SqliteStore, ledger: Ledger) -> tuple[list[Any], list[str]]:
    """All that a store says of its messages, and what it says is wrong with it."""
    complaints: list[str] = []
    said: list[Any] = []
    for desk in POLICIES:
        views = store.messages(Filter(desk), limit=10_000)
        said += map(lasting, views)
        for view, body in zip(views, store.bodies([view.message.ref for view in views]), strict=True):
            if body is None and view.state != State.PARKED:
                complaints.append(f"{view.message.ref} has lost its body")
            said.append(body)
    for ref in ledger.posted:
        known = store.message(ref)
        said.append(known and lasting(known))
    said += store.mailboxes(limit=1_000)
    said += store.kept(SHELF)
    for lane in ledger.last_seq:
        said.append(store.lane(*lane))
        said.append([view.seq for view in store.in_lane(*lane, limit=1_000)])
    said += store.chunks()
    complaints += store.integrity()
    complaints += map(str, verify_store(store))
    complaints += ["a corrupt row was set aside"] * store.corrupt
    if not complaints:
        complaints += differences(store)
    return said, complaints


def flips(folder: Path, seed: int, count: int) -> Iterator[str]:
    """Flip one bit after the other; what was changed without a complaint, or broke what it should not."""
    rng = Random(seed)
    path = folder / "a.db"
    ledger = Ledger()
    traffic = Traffic(rng, ledger, sizes=(0, 1, 20))
    store = opened(path)
    traffic.send(store, [Start(POLICIES, at=traffic.at)])
    for _ in range(25):
        traffic.send(store, traffic.batch())
    store.close()
    store = opened(path)
    truth, complaints = told(store, ledger)
    store.close()
    assert complaints == []
    whole = path.read_bytes()
    used = [place for place in range(0, len(whole), 32) if any(whole[place : place + 32])]
    for _ in range(count):
        bit = (rng.choice(used) + rng.randrange(32)) * 8 + rng.randrange(8)
        flip(path, bit)
        try:
            store = opened(path)
            try:
                said, complaints = told(store, ledger)
            finally:
                store.close()
        except StoreError:
            pass
        except Exception as error:
            yield f"seed {seed}, bit {bit}: {error!r} instead of StoreCorrupt"
        else:
            if said != truth and not complaints:
                changed = [(a, b) for a, b in zip(truth, said, strict=False) if a != b][:1]
                yield f"seed {seed}, bit {bit}: changed and nobody said so: {changed}"
        for beside in folder.glob("a.db-*"):
            beside.unlink()
        path.write_bytes(whole)


def test_no_flipped_bit_in_the_database_changes_a_message_unnoticed(quick_folder: Path) -> None:
    found = list(flips(quick_folder, 1, 150))
    assert not found, f"{len(found)}: " + "\n".join(found[:10])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_flipped_bit_of_thousands_changes_a_message_unnoticed(quick_folder: Path) -> None:
    found = list(flips(quick_folder, 2, 4_000))
    assert not found, f"{len(found)}: " + "\n".join(found[:20])
