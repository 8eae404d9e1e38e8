"""The contract: columns, names and the chain, without pyarrow."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.journal.sources import HOSTILE

from posthouse.errors import InvalidInput
from posthouse.journal import reference, schema
from posthouse.mailbox import event as ev
from posthouse.mailbox.event import Event

CONTRACT = """
node string, offset int64, at timestamp, commit int64, event string, desk string, mailbox string, lane string,
lane_seq int64, message_id string, kind string, sender string, attempt int32, holder string?,
size_bytes int64, reason string?, error string?, due_at timestamp?, expires_at timestamp?, cause_id string?,
detail string?
"""


def test_the_columns_are_those_of_the_design() -> None:
    found = [f"{c.name} {c.type}{'?' if c.nullable else ''}" for c in schema.COLUMNS]
    assert found == [" ".join(each.split()) for each in CONTRACT.split(",")]
    assert schema.SCHEMA_VERSION == 1
    assert [key for key, _ in schema.METADATA] == [
        f"posthouse.{name}" for name in ("schema_version", "node", "first", "last", "prev", "chain")
    ]


def test_a_segment_is_named_by_its_offsets_in_twenty_digits() -> None:
    name = schema.file_name(1, 731_204)
    assert name == "00000000000000000001-00000000000000731204.parquet"
    assert schema.offsets_of(name) == (1, 731_204)
    assert schema.file_name(2**63 - 1, 2**63 - 1)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1-2.parquet",
        f".{schema.file_name(1, 2)}.tmp",
        schema.file_name(1, 2) + "\n",
        "0" * 20 + "-" + "0" * 20 + ".parquet",
        "0" * 19 + "2-" + "0" * 19 + "1.parquet",
        "9" * 20 + "-" + "9" * 20 + ".parquet",
        "٠" * 20 + "-" + "٠" * 20 + ".parquet",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert schema.offsets_of(name) is None


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (-1, 1), (1, 2**63)])
def test_no_segment_has_impossible_offsets(first: int, last: int) -> None:
    with pytest.raises(InvalidInput):
        schema.file_name(first, last)


@pytest.mark.parametrize("node", ["", "a/b", "a b", "ä", "a\n", "x" * 251, 7, None])
def test_a_node_that_is_no_folder_name_is_refused(node: object) -> None:
    with pytest.raises(InvalidInput):
        schema.check_node(node)


@pytest.mark.parametrize("node", ["a", "A-1_b.c", "..", "-", "x" * 250])
def test_a_node_has_its_own_folder(node: str) -> None:
    assert schema.folder_name(node) == f"node={node}"
    assert schema.node_of(f"node={node}") == node


def test_the_chain_is_what_anybody_computes_from_the_contract() -> None:
    rows = [
        tuple(schema.row_values("n", 1 + i, 1, Event(i, "died", text, message_id=text, error=text, due_at=-i)))
        for i, text in enumerate(HOSTILE)
    ]
    digest = hashlib.sha256(b"0" * 64 + b"\n")
    for row in rows:
        digest.update((json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    assert schema.chain(schema.GENESIS, rows) == digest.hexdigest()
    assert schema.chain(schema.GENESIS, map(schema.Row._make, rows)) == digest.hexdigest()
    assert schema.chain(schema.GENESIS, []) == hashlib.sha256(b"0" * 64 + b"\n").hexdigest()
    pieces = schema.Chain(schema.GENESIS)
    for row in rows:
        pieces.add([row])
        pieces.add([])
    assert pieces.hex() == digest.hexdigest()


def test_a_chain_has_one_literal_value() -> None:
    row = ("n", 1, 1_700_000_000_000_000, 1, "posted", "relay", "m", "", 1, "é", "", "s", 0) + (None,) * 8
    line = b'["n",1,1700000000000000,1,"posted","relay","m","",1,"\xc3\xa9","","s",0' + b",null" * 8 + b"]\n"
    assert schema.chain("ab" * 32, [row]) == hashlib.sha256(b"ab" * 32 + b"\n" + line).hexdigest()


@pytest.mark.parametrize("prev", ["", "0" * 63, "G" * 64, "A" * 64])
def test_a_chain_begins_with_a_hash(prev: str) -> None:
    with pytest.raises(InvalidInput):
        schema.Chain(prev)


def test_a_row_that_breaks_the_contract_is_named() -> None:
    row = schema.row_values("n", 7, 7, Event(1, "posted", "d"))
    assert schema.row_fault(row) is None
    at = {name: index for index, name in enumerate(schema.NAMES)}
    for name, value in (
        ("attempt", 2**31),
        ("attempt", True),
        ("lane_seq", 1.0),
        ("desk", None),
        ("due_at", "x"),
    ):
        wrong = list(row)
        wrong[at[name]] = value
        fault = schema.row_fault(wrong)
        assert fault is not None
        assert f"{name} at offset 7" in fault
    assert schema.row_fault(row[:-1]) == "a row has 21 values, not 20"


def test_the_contract_and_histories_need_no_pyarrow() -> None:
    script = """
import sys
sys.modules["pyarrow"] = None
from posthouse.errors import MissingExtra
from posthouse.journal import history, schema, tail, verify
from tests.unit.journal.sources import traffic
store = traffic(3)
assert schema.chain(schema.GENESIS, [])
assert not verify.verify_store(store)
assert len(history.history(store, "/nowhere", "id-1")) == 3
try:
    tail.export(store, "/nowhere", final=True)
except MissingExtra as error:
    print(error)
assert store.segments() == []
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "journal segments need pyarrow: pip install posthouse[journal]\n"


def test_the_reference_page_is_current_and_whole() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "journal.md"
    again = "run: .venv/bin/python -m posthouse.journal.reference > docs/reference/journal.md"
    assert page.read_text(encoding="utf-8") == reference.render(), again
    assert set(reference.MEANINGS) == set(ev.EVENTS)
    assert set(ev.REASONS) <= set(ev.EVENTS)


def test_the_code_on_the_reference_page_computes_the_chain() -> None:
    code = reference.render().split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(code, names)
    row = schema.row_values("n", 1, 1, Event(1, "died", "d", error="\n".join(HOSTILE)))
    chain = names["chain"]
    assert callable(chain)
    assert chain(schema.GENESIS, [row]) == schema.chain(schema.GENESIS, [row])
