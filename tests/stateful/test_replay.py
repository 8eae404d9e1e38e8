"""The journal alone tells the state of every message."""

from __future__ import annotations

from tests.stateful.differential import run
from tests.stateful.histories import POLICIES, T0, history_of
from tests.stateful.replay import Told, differences, replay

from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message, Ref, State
from posthouse.stores.memory import MemoryStore


def test_the_journal_alone_tells_every_message_of_hundreds_of_histories() -> None:
    told = 0
    for seed in range(500_000, 500_500):
        store = MemoryStore(POLICIES)
        run(history_of(seed), store, MemoryStore(POLICIES))
        assert differences(store) == [], f"seed {seed}"
        told += len(replay(event for _, _, event in store.events()).messages)
    assert told > 1_000


def small_store() -> MemoryStore:
    store = MemoryStore(POLICIES)
    a = Ref("sure", "m", "s", "a")
    store.apply([Post(Message("sure", "m", "a", sender="s"), at=T0), Lease("sure", "m", "t", at=T0)])
    store.apply([Settle(a, "t", Verdict.RETRY, at=T0)])
    return store


def test_a_message_is_told_with_its_attempts() -> None:
    store = small_store()
    told = replay(event for _, _, event in store.events())
    assert told.messages == {Ref("sure", "m", "s", "a"): Told(State.READY, "", 1, 1, 1)}
    assert differences(store) == []


def test_a_row_that_the_journal_does_not_know_is_found() -> None:
    store = small_store()
    ref = Ref("sure", "m", "s", "a")
    entry = store._entries[ref]
    store._put_entry(ref, entry._replace(attempts=2))
    assert len(differences(store)) == 1
    store._put_entry(ref, None)
    assert "is lost" in differences(store)[0]
    store._put_entry(ref, entry)
    other = entry._replace(message=entry.message._replace(id="b"), seq=2, number=2)
    store._put_entry(other.message.ref, other)
    assert "was never posted" in differences(store)[0]


def test_an_event_that_is_missing_is_found() -> None:
    events = [event for _, _, event in small_store().events()]
    assert [len(replay(events[:n] + events[n + 1 :]).complaints) > 0 for n in range(2)] == [True, True]
