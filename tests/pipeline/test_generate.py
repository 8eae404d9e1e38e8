"""The generator of journals: sound files, the same for the same seed, and an answer sheet that an oracle confirms."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.oracle import Oracle

from posthouse.errors import InvalidInput
from posthouse.journal import schema
from posthouse.journal.finding import Kind
from posthouse.journal.verify import verify_folder
from posthouse.pipeline.generate import ANSWERS, PLANTED, fill, generate

IN_SUM = ("delivered", "dead", "expired", "cancelled", "uncertain", "open")


def identity(finding: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two findings the same: the message that they name, or else the place."""
    return finding["kind"], finding["node"], finding["message_id"] or tuple(finding["offsets"])


def check_against_oracle(journal: Path, answers: dict[str, Any]) -> Oracle:
    """Every planted anomaly is found and no other, and all books close as planned."""
    oracle = Oracle(journal)
    wanted = {identity(f): f for f in answers["findings"] if f["kind"] != "chain_broken"}
    found = {identity(f): f for f in oracle.table("findings")}
    assert wanted.keys() == found.keys()
    for key, finding in wanted.items():
        assert set(finding["offsets"]) <= set(found[key]["offsets"]), key
    books = {(row["window"] // 1_000_000, row["desk"], row["kind"]): row for row in oracle.table("books")}
    for row in answers["books"]:
        seen = books[row["hour"], row["desk"], row["kind"]]
        assert {name: seen[name] for name in ("posted", *IN_SUM)} == {name: row[name] for name in ("posted", *IN_SUM)}
    for row in books.values():
        assert row["posted"] == sum(row[name] for name in IN_SUM)
    assert sum(row["posted"] for row in books.values()) == sum(row["posted"] for row in answers["books"])
    orphans = {i for row in books.values() for i in row["remainder_ids"]}
    assert orphans <= {f["message_id"] for f in answers["findings"] if f["kind"] == "lost"}
    return oracle


def test_generated_segments_are_sound_but_for_what_was_planted(tmp_path: Path) -> None:
    answers = generate(tmp_path, events=4_000, seed=3, planted=4)
    found = verify_folder(tmp_path)
    assert {f.kind for f in found} == {Kind.CHAIN_BROKEN, Kind.ALTERED, Kind.MISSING}
    count = {kind: sum(f["kind"] == kind for f in answers["findings"]) for kind in PLANTED}
    assert count == dict.fromkeys(PLANTED, 4)
    assert sum(f.kind in (Kind.CHAIN_BROKEN, Kind.ALTERED) for f in found) == count["chain_broken"]
    assert sum(f.kind is Kind.MISSING for f in found) == count["journal_gap"]
    assert found.events == answers["events"]


def test_a_journal_without_faults_is_sound(tmp_path: Path) -> None:
    answers = generate(tmp_path, events=3_000, seed=5, planted=0, nodes=1, desks=5)
    assert list(verify_folder(tmp_path)) == []
    assert answers["findings"] == []
    assert Oracle(tmp_path).table("findings") == []


def test_segments_that_were_held_back_fill_their_gaps(tmp_path: Path) -> None:
    answers = generate(tmp_path, events=3_000, seed=8, planted=3)
    assert len(fill(tmp_path)) == len(answers["late"]) == 3
    assert {f.kind for f in verify_folder(tmp_path)} <= {Kind.CHAIN_BROKEN, Kind.ALTERED}
    assert not [f for f in Oracle(tmp_path).table("findings") if f["kind"] == "journal_gap"]


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, events=2_500, seed=seed)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "a") != digests(tmp_path / "c")


@pytest.mark.parametrize("seed", range(12))
def test_the_oracle_finds_what_was_planted_and_nothing_else(seed: int, tmp_path: Path) -> None:
    answers = generate(
        tmp_path, events=1_500 + 700 * seed, seed=seed, nodes=1 + seed % 3, desks=1 + seed % 5, planted=1 + seed % 4
    )
    assert answers == json.loads((tmp_path / ANSWERS).read_text())
    oracle = check_against_oracle(tmp_path, answers)
    for again in answers["generations"]:
        rows = oracle.rows(f"select * from messages where message_id = '{again['message_id']}'")
        assert sorted(row["generation"] for row in rows) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_the_oracle_agrees_over_many_seeds(seed: int, tmp_path: Path) -> None:
    answers = generate(
        tmp_path, events=2_000 + 997 * (seed % 17), seed=seed, nodes=1 + seed % 4, desks=1 + seed % 5,
        planted=seed % 7, segment_events=150,
    )  # fmt: skip
    check_against_oracle(tmp_path, answers)


@pytest.mark.slow
def test_a_big_journal_has_everything_that_happens(tmp_path: Path) -> None:
    answers = generate(tmp_path, events=400_000, seed=11, desks=5, planted=8)
    oracle = check_against_oracle(tmp_path, answers)
    outcomes = {row["outcome"] for row in oracle.rows("select distinct outcome from messages")}
    assert outcomes == {*IN_SUM, "refused"}
    events = {row["event"] for row in oracle.rows("select distinct event from events")}
    assert {"released", "paused", "resumed", "parked", "unparked", "redriven", "uncertain", "received"} <= events
    assert abs(answers["events"] - 400_000) < 20_000
    boxes = oracle.rows("select count(*) as n from messages group by desk, mailbox order by n desc")
    assert boxes[0]["n"] > 10 * boxes[len(boxes) // 2]["n"]


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    generate(tmp_path, events=1_000, seed=1)
    with pytest.raises(InvalidInput, match="already"):
        generate(tmp_path, events=1_000, seed=1)
    assert [schema.node_of(path.name) for path in sorted(tmp_path.glob("node=*"))] == ["node-1", "node-2"]
