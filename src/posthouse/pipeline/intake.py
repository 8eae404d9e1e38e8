"""Intake: segments on their way into the table of events, file by file.

In: segments that were examined, and what is known or forgotten of them. Out: Parquet files in the table's folder, and
what each of them holds; the table knows nothing of them yet. A segment whose rows are all of one day, and all wanted,
goes in as it is, byte for byte, if it says no more than the contract does. Of any other the rows that are wanted are
written, one file a day.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..errors import StoreUnavailable
from ..journal import schema as contract
from .bronze import TAKEN, File, Journal, Segment, arrow_fs
from .offsets import Ranges, common, merged
from .schema import DAY_US

if TYPE_CHECKING:
    import pyarrow as pa

    from .ledger import Ledger, Plan

TABLE = "events"
KEYS = frozenset(key.encode() for key in (*(key for key, _ in contract.METADATA), contract.KEY_SEAL))
"""What the metadata of a file that goes in as it is may speak of."""


class Piece(NamedTuple):
    """A file of the table."""

    path: str
    """Inside of the table's folder."""
    size_bytes: int
    day: str
    rows: int
    offsets: tuple[int, int]
    instants: tuple[int, int]
    """The earliest and the latest, in µs."""


def take_in(journal: Journal, ledger: Ledger, plan: Plan) -> list[Piece]:
    """Write the files of a batch. Done again, it writes the same ones."""
    files = {(file.node, file.name): file for file in journal.listing().files}
    found: list[Piece] = []
    for number, segment in enumerate(plan.new):
        file = files.get((segment.node, segment.name))
        if file is None:
            raise StoreUnavailable(f"the segment node={segment.node}/{segment.name} is gone since it was examined")
        found += _Intake(journal, ledger, f"{plan.batch:08d}-{number:06d}.parquet").take(
            segment, file, plan.known, plan.after.forgotten
        )
    return found


class _Intake:
    """One segment on its way."""

    def __init__(self, journal: Journal, ledger: Ledger, name: str) -> None:
        self._journal = journal
        self._system, self._root = ledger.system, ledger.folder(TABLE)
        self._name = name

    def take(
        self, segment: Segment, file: File, known: Mapping[str, Ranges], forgotten: Collection[str]
    ) -> Iterator[Piece]:
        self._same(segment, file.size_bytes)
        again = common(merged(segment.ranges), merged(known.get(segment.node, ())))
        days = {_day(instant // DAY_US) for instant in (segment.lowest, segment.highest)}
        whole = segment.state == TAKEN and not (segment.faults or again or forgotten) and len(days) == 1
        if whole and self._plain(file):
            yield self._copy(segment, file, days.pop())
        else:
            yield from self._write(file, again, forgotten)

    def _plain(self, file: File) -> bool:
        """Whether a file says nothing of itself but what the contract has it say, in plain letters.

        Not all readers of the table take what others write there: types of Arrow that are not those of the columns,
        or bytes that are no text.
        """
        import pyarrow.parquet as pq

        with self._journal.open(file) as source:
            facts = pq.read_metadata(source)
        try:
            facts.created_by.encode("ascii")
        except UnicodeError:
            return False
        return all(key in KEYS and value.isascii() for key, value in (facts.metadata or {}).items())

    def _copy(self, segment: Segment, file: File, day: str) -> Piece:
        path = self._path(day)
        arrow_fs().copy_files(
            file.path,
            f"{self._root}/{path}",
            source_filesystem=self._journal.system,
            destination_filesystem=self._system,
        )
        self._same(segment, self._system.get_file_info(f"{self._root}/{path}").size)
        ends = segment.ranges[0][0], segment.ranges[-1][1]
        return Piece(path, segment.size_bytes, day, segment.events, ends, (segment.lowest, segment.highest))

    def _write(self, file: File, again: Ranges, forgotten: Collection[str]) -> Iterator[Piece]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from .writing import SCHEMA

        with self._journal.open(file) as source:
            rows = pq.read_table(source, columns=list(contract.NAMES)).cast(SCHEMA)
        offset = pc.field("offset")
        for first, last in again:
            rows = rows.filter((offset < first) | (offset > last))
        if forgotten:
            rows = rows.filter(~pc.field("mailbox").isin(list(forgotten)))
        days = pc.divide(rows.column("at").cast(pa.int64()), DAY_US)
        for number in sorted(pc.unique(days).to_pylist()):
            day, own = _day(number), rows.filter(pc.equal(days, number))
            path = self._path(day)
            with self._system.open_output_stream(f"{self._root}/{path}") as target:
                pq.write_table(own, target, version="2.6", compression="zstd", store_schema=False)
            size = self._system.get_file_info(f"{self._root}/{path}").size
            instants = _bounds(own.column("at").cast(pa.int64()))
            yield Piece(path, size, day, own.num_rows, _bounds(own.column("offset")), instants)

    def _same(self, segment: Segment, size_bytes: int) -> None:
        if size_bytes != segment.size_bytes:
            name = f"node={segment.node}/{segment.name}"
            raise StoreUnavailable(f"the segment {name} is another one since it was examined")

    def _path(self, day: str) -> str:
        self._system.create_dir(f"{self._root}/day={day}")
        return f"day={day}/{self._name}"


def _day(number: int) -> str:
    """A day by its number since 1970."""
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=number)).isoformat()


def _bounds(values: pa.ChunkedArray) -> tuple[int, int]:
    import pyarrow.compute as pc

    found = pc.min_max(values).as_py()
    return found["min"], found["max"]
