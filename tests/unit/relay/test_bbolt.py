"""The reader of bbolt files: right about good ones, and harmless on any other.

The file was made by Go's own library (see ``tests/interop/bolt.py``), and so was the list of what is in it.
"""

from __future__ import annotations

import fcntl
import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.interop.bolt import BOB, FILES, kept_file, kept_told, read_all

from posthouse.errors import BadFile
from posthouse.relay.importing.bbolt import BoltFile
from posthouse.relay.importing.pinch import Queued, Skipped, read

WHOLE = gzip.decompress((FILES / "pinch-relay.db.gz").read_bytes())
PAGE = 4_096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return kept_file(tmp_path)


def damaged(path: Path, change: Callable[[bytearray], None]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def pages_with(flags: int) -> Iterator[int]:
    """Pages of this kind, in use or not."""
    for number in range(2, len(WHOLE) // PAGE):
        id, kind, count, _ = struct.unpack_from("<QHHI", WHOLE, number * PAGE)
        if id == number and kind == flags and count:
            yield number


def test_it_reads_what_the_library_itself_reads(path: Path) -> None:
    with BoltFile(path) as file:
        told = read_all(file)
        assert told == kept_told()
        # A second walk is as good as the first.
        assert read_all(file) == told


def test_the_file_has_branches_overflow_and_pages_that_were_freed() -> None:
    assert list(pages_with(1))
    assert any(struct.unpack_from("<I", WHOLE, n * PAGE + 12)[0] for n in pages_with(2))
    assert list(pages_with(16))


def test_the_meta_page_of_the_last_transaction_holds(path: Path) -> None:
    with BoltFile(path) as file:
        newest = file.meta.transaction
    older = damaged(
        path, lambda data: data.__setitem__(slice((newest % 2) * PAGE + 16, (newest % 2) * PAGE + 20), b"oops")
    )
    with BoltFile(older) as file:
        # What the library, too, falls back to: the state before the last transaction.
        assert file.meta.transaction == newest - 1


def test_a_checksum_that_is_wrong_makes_a_meta_page_invalid(path: Path) -> None:
    with BoltFile(path) as file:
        newest = file.meta.transaction
    place = (newest % 2) * PAGE + 16 + 48  # its transaction
    with BoltFile(damaged(path, lambda data: data.__setitem__(place + 5, 9))) as file:
        assert file.meta.transaction == newest - 1


def test_a_lost_first_page_does_not_hide_the_second(path: Path) -> None:
    with BoltFile(damaged(path, lambda data: data.__setitem__(slice(0, PAGE), bytes(PAGE)))) as file:
        assert file.meta.page_size == PAGE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.clear(), "the file is empty"),
        (lambda data: data.__setitem__(slice(None), b"SQLite format 3\0" * 1_000), "this is no bbolt file"),
        (lambda data: data.__setitem__(slice(None), b"x"), "this is no bbolt file"),
        (lambda data: [data.__setitem__(place + 30, data[place + 30] ^ 1) for place in (0, PAGE)], "both meta pages"),
        (lambda data: data.__delitem__(slice(2 * PAGE + 5, None)), r"page \d+ is missing: the file is cut off at 8197"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(path: Path, change: Callable[[bytearray], None], words: str) -> None:
    with pytest.raises(BadFile, match=words), BoltFile(damaged(path, change)) as file:
        read_all(file)


@pytest.mark.parametrize(
    ("form", "place", "value", "words"),
    [
        ("<Q", 0, 77_777, "page {} says that it is page 77777"),
        ("<H", 8, 16, "page {} is neither branch nor leaf"),
        ("<H", 10, 0xFFFF, "page {} claims 65535 "),
        ("<I", 12, 0xFFFFFFFF, "page {} claims to be "),
    ],
)
def test_damage_to_a_page_names_the_page(tmp_path: Path, form: str, place: int, value: int, words: str) -> None:
    said = {}
    for number in [*pages_with(1), *pages_with(2)]:
        path = damaged(
            kept_file(tmp_path), lambda data, n=number: struct.pack_into(form, data, n * PAGE + place, value)
        )
        said[number] = complaint(path)
        # A page that was freed is nobody's, and what it says does not matter.
        assert said[number] is None or words.format(number) in said[number]
    assert len([words for words in said.values() if words]) >= 5


def complaint(path: Path) -> str | None:
    with BoltFile(path) as file:
        try:
            told = read_all(file)
        except BadFile as error:
            return str(error)
    assert told == kept_told()
    return None


def test_a_page_that_leads_back_to_itself_ends_the_walk(path: Path) -> None:
    with BoltFile(path) as file:
        queue = file.root.bucket(b"queue")
        assert queue is not None
        branch = next(n for n in pages_with(1) if any(entry.bucket and entry.bucket._root == n for entry in queue))
    changed = damaged(path, lambda data: struct.pack_into("<Q", data, branch * PAGE + 16 + 8, branch))
    with BoltFile(changed) as file, pytest.raises(BadFile, match=f"page {branch} is used twice"):
        read_all(file)


def test_damage_in_one_recipients_queue_leaves_the_others(path: Path) -> None:
    with BoltFile(path) as file:
        queue = file.root.bucket(b"queue")
        assert queue is not None
        root = next(entry.bucket._root for entry in queue if entry.key == BOB.encode() and entry.bucket)
        whole = [found for found in read(file) if isinstance(found, Queued)]
    assert root
    with BoltFile(damaged(path, lambda data: struct.pack_into("<H", data, root * PAGE + 8, 0))) as file:
        found = list(read(file))
    assert [f for f in found if isinstance(f, Queued)] == [f for f in whole if f.recipient != BOB]
    (damage,) = [f for f in found if isinstance(f, Skipped) and f.reason == "damaged"]
    assert (damage.recipient, damage.where) == (BOB, f"queue/{BOB}")
    assert f"page {root} is neither" in damage.message


def test_a_file_that_a_relay_has_open_is_left_alone(path: Path) -> None:
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadFile, match="another program has it open, most likely the relay: stop it first"):
            BoltFile(path)
    BoltFile(path).close()


def test_it_holds_the_file_while_it_reads(path: Path) -> None:
    with BoltFile(path), path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"cannot open .*: No such file"):
        BoltFile(tmp_path / "none.db")
    with pytest.raises(BadFile, match="cannot be read: Is a directory"):
        BoltFile(tmp_path)


# Any bytes at all

LONG_MS = 30_000
"""An example takes milliseconds, one that goes round and round for ever; a busy machine may stand still for seconds."""


def look(folder: Path, data: bytes) -> None:
    """Read all of it: the end, or BadFile."""
    path = folder / "any.db"
    path.write_bytes(data)
    try:
        with BoltFile(path) as file:
            found = list(read(file))
    except BadFile:
        return
    # Every entry takes sixteen bytes at least.
    assert len(found) <= len(data) // 16


USED = [n for n in range(len(WHOLE) // PAGE) if any(WHOLE[n * PAGE + 16 : n * PAGE + PAGE])]


@settings(max_examples=300, deadline=LONG_MS, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(
        st.tuples(st.sampled_from(USED), st.integers(0, 200) | st.integers(0, PAGE - 1), st.integers(0, 255)),
        min_size=1,
        max_size=6,
    )
)
def test_flipped_bytes_never_do_more_than_end_the_reading(tmp_path: Path, flips: list[tuple[int, int, int]]) -> None:
    data = bytearray(WHOLE)
    for page, place, value in flips:
        data[page * PAGE + place] = value
    look(tmp_path, bytes(data))


@settings(max_examples=60, deadline=LONG_MS, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, len(WHOLE)))
@example(size=PAGE)
@example(size=2 * PAGE + 15)
def test_a_cut_off_file_never_does_more_than_end_the_reading(tmp_path: Path, size: int) -> None:
    look(tmp_path, WHOLE[:size])


@settings(max_examples=60, deadline=LONG_MS, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pages_in_each_others_place_never_do_more_than_end_the_reading(tmp_path: Path, data: st.DataObject) -> None:
    """With the right number in its header, so that only its contents are wrong: cycles, buckets in buckets."""
    changed = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        source, target = data.draw(st.sampled_from(USED[2:])), data.draw(st.sampled_from(USED[2:]))
        changed[target * PAGE : (target + 1) * PAGE] = WHOLE[source * PAGE : (source + 1) * PAGE]
        struct.pack_into("<Q", changed, target * PAGE, target)
    look(tmp_path, bytes(changed))
