"""Two at work on one lake in an object store: the sign keeps the second off, and without it the record refuses one."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from posthouse.errors import InvalidInput, StoreHeld
from posthouse.pipeline import record, scratch, sign
from posthouse.pipeline.ledger import APPEND, Ledger, Plan, State
from posthouse.pipeline.scratch import Scratch


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def without_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if clocks differed: nobody takes another for alive."""
    monkeypatch.setattr(sign, "SILENT_S", 0.0)


def opened(lake: Path, *, shared: bool = True) -> Ledger:
    """The record of a lake; what is special about one in an object store can be had on a disk."""
    found = Ledger(str(lake))
    if shared:
        found._record = record.TableRecord(found.place)
    return found


def batch(number: int) -> Plan:
    return Plan(number, APPEND, (), State(batch=number))


# ── The record ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("without_signs")
def test_who_found_anothers_plan_cannot_put_the_record_back_behind_it(lake: Path) -> None:
    first, second = opened(lake), opened(lake)
    with first.alone("run"):
        first.begin(batch(1))
        with second.alone("run"):
            assert second.plan() == batch(1)
            first.commit(batch(1).after)
            first.begin(batch(2))
            first.commit(batch(2).after)
            # It works on with what it read, and so notices that this is not so any more.
            assert (second.state(), second.plan()) == (State(), batch(1))
            with pytest.raises(StoreHeld, match="another process is at work"):
                second.commit(batch(1).after)
        assert first.state() == State(batch=2)
        first.begin(batch(3))
    assert (opened(lake).state(), opened(lake).plan()) == (State(batch=2), batch(3))
    # Whoever begins anew sees all of it.
    with second.alone("run"):
        assert (second.state(), second.plan()) == (State(batch=2), batch(3))
        second.commit(batch(3).after)


@pytest.mark.usefixtures("without_signs")
def test_who_planned_from_what_another_has_changed_is_refused(lake: Path) -> None:
    first, second = opened(lake), opened(lake)
    with first.alone("run"), second.alone("run"):
        assert first.state() == second.state() == State()
        first.begin(batch(1))
        first.commit(batch(1).after)
        assert second.state() == State()
        with pytest.raises(StoreHeld):
            second.begin(batch(1))
    assert (opened(lake).state(), opened(lake).plan()) == (State(batch=1), None)


@pytest.mark.usefixtures("without_signs")
def test_who_made_the_record_and_was_overtaken_at_once_is_refused(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import deltalake

    first, second = opened(lake), opened(lake)
    usual = deltalake.write_deltalake

    def overtaken(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", usual)
        usual(*given, **named)
        with second.alone("run"):
            second.commit(batch(1).after)

    with first.alone("run"):
        monkeypatch.setattr(deltalake, "write_deltalake", overtaken)
        first.begin(batch(1))
        with pytest.raises(StoreHeld):
            first.commit(batch(1).after)
    assert opened(lake).state() == State(batch=1)


@pytest.mark.usefixtures("without_signs")
def test_who_fails_because_he_was_overtaken_is_told_so_and_no_other_is(lake: Path) -> None:
    first, second = opened(lake), opened(lake)
    first.begin(batch(1))

    def cleared_away() -> None:
        with second.alone("run"):
            second.commit(batch(1).after)
        raise FileNotFoundError("what was there")

    def never_there() -> None:
        first.begin(batch(2))
        raise FileNotFoundError("what was not")

    with pytest.raises(StoreHeld, match="another process has gone on"), first.alone("run"):
        cleared_away()
    with pytest.raises(FileNotFoundError), first.alone("run"):
        never_there()


# ── The sign ─────────────────────────────────────────────────────────────────────────────────────


def test_while_one_is_at_work_another_is_refused_and_told_who_it_is(lake: Path) -> None:
    with opened(lake).alone("rebuild"):
        with pytest.raises(StoreHeld, match=r"books rebuild \(process \d+ on .*\) is at work on the lake"):
            with opened(lake).alone("run"):
                pass
    with opened(lake).alone("run"):
        pass
    assert not (lake / record.FOLDER / sign.NAME).exists()


@pytest.mark.parametrize("seconds", [-sign.SILENT_S - 1, sign.SILENT_S + 60])
def test_a_sign_that_is_not_renewed_or_of_another_time_keeps_nobody_off(lake: Path, seconds: float) -> None:
    path = lake / record.FOLDER / sign.NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(orjson.dumps({"who": "x", "name": "books run", "at": time.time() + seconds}))
    with opened(lake).alone("run"):
        assert orjson.loads(path.read_bytes())["who"] != "x"
        # He lives after all, and shows his own again: it is his.
        path.write_bytes(orjson.dumps({"who": "x", "name": "books run", "at": time.time()}))
    assert orjson.loads(path.read_bytes())["who"] == "x"


def test_a_sign_that_cannot_be_read_keeps_nobody_off(lake: Path) -> None:
    path = lake / record.FOLDER / sign.NAME
    path.parent.mkdir(parents=True)
    for text in (b"", b"{", b"[]"):
        path.write_bytes(text)
        with opened(lake).alone("run"):
            pass


def test_a_sign_is_renewed_until_another_has_taken_its_place(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign, "BEAT_S", 0.001)
    path = lake / record.FOLDER / sign.NAME
    renewed, stopped = threading.Event(), threading.Event()
    put, renew = sign.Sign._put, sign.Sign._renew

    def putting(self: sign.Sign) -> None:
        if threading.current_thread() is threading.main_thread():
            put(self)
        else:
            # Another comes in at this moment.
            path.write_bytes(orjson.dumps({"who": "x", "name": "books run", "at": time.time()}))
            renewed.set()

    def renewing(self: sign.Sign, ended: threading.Event) -> None:
        renew(self, ended)
        if not ended.is_set():
            stopped.set()

    monkeypatch.setattr(sign.Sign, "_put", putting)
    monkeypatch.setattr(sign.Sign, "_renew", renewing)
    with opened(lake).alone("run"):
        assert renewed.wait(30)
        assert stopped.wait(30)
    assert orjson.loads(path.read_bytes())["who"] == "x"


# ── Scratch ──────────────────────────────────────────────────────────────────────────────────────

OLD = "0123456789abcdef"
KEPT = {
    number: f"{number[0]:012d}-{number[1]}-{OLD}"
    for number in [(6, 0), (6, 1), (7, 0), (7, 1), (8, 0), (10_000_000, 0)]
}


@pytest.mark.parametrize(
    ("derived", "done", "left"),
    [
        (False, False, [(7, 0), (7, 1), (8, 0), (10_000_000, 0)]),
        (False, True, [(7, 1), (8, 0), (10_000_000, 0)]),
        (True, False, [(7, 1), (8, 0), (10_000_000, 0)]),
        (True, True, [(8, 0), (10_000_000, 0)]),
    ],
)
def test_in_an_object_store_only_scratch_of_what_is_committed_is_removed(
    lake: Path, derived: bool, done: bool, left: list[tuple[int, int]]
) -> None:
    """So that nobody reads back less than he kept, while what he makes of it can count."""
    for name in (OLD, *KEPT.values()):
        (lake / scratch.FOLDER / name / "1").mkdir(parents=True)
    Scratch(opened(lake), 7, derived=derived).clear(done=done)
    assert {path.name for path in (lake / scratch.FOLDER).iterdir()} == {KEPT[each] for each in left}


def test_where_a_lock_keeps_others_off_all_scratch_is_removed(lake: Path) -> None:
    (lake / scratch.FOLDER / KEPT[8, 0] / "1").mkdir(parents=True)
    Scratch(opened(lake, shared=False), 7).clear()
    assert not (lake / scratch.FOLDER).exists()
    Scratch(opened(lake, shared=False), 7).clear()
    Scratch(opened(lake), 7).clear()


@pytest.mark.parametrize("place", ["", " "])
def test_no_place_is_not_the_folder_that_one_is_in(place: str) -> None:
    with pytest.raises(InvalidInput, match="the lake's folder or URL is empty"):
        Ledger(place)
