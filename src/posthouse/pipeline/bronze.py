"""Segments on their way in: which files there are, what is wrong with each, and their rows as events.

In: a journal's folder or URL. Out: one value per file that says what it holds and what is wrong with it, and a
DataFrame of events. Files are only read. What cannot be taken in is named and left out; nothing is left out silently.
Names that begin with a dot or an underscore are still being written.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from ..errors import InvalidInput, MissingExtra
from ..journal import schema as contract
from .lineage import OFFSET_MAX, Restore, restored_from
from .offsets import Ranges, common, count, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

EVENTS = (
    "posted", "duplicate", "refused", "leased", "received", "delivered", "retried", "released", "recalled",
    "uncertain", "died", "expired", "cancelled", "parked", "unparked", "redriven", "connected", "disconnected",
    "paused", "resumed", "started",
)  # fmt: skip
"""The events of the contract's version; others are kept, reported and looked at by nothing."""
WITHOUT_MESSAGE = ("refused", "duplicate", "connected", "disconnected", "paused", "resumed", "started")
"""Those that may name no message."""

TAKEN, UNVERIFIED, REJECTED = "taken", "unverified", "rejected"
BATCH_ROWS = 65_536
INSTANT_MAX = 253_402_300_799_999_999
"""The last microsecond of the year 9999; instants go from 1970 to it, as far as the tables' readers can tell them."""
PLAUSIBLE = (946_684_800_000_000, 4_102_444_800_000_000)
"""The years 2000 to 2099: a clock that says anything else is far off."""
RANGES_MAX = 1_000
"""Separate ranges of offsets that one file may hold."""
BACKS_MAX = 1_000
"""Places of one file where the clock goes back that are named one by one; the rest are counted."""
REPEATED = ("node", "event", "desk", "mailbox", "lane", "kind", "sender", "holder", "reason", "error", "detail")
"""Columns whose texts are few: each is looked at once."""
CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZ4", "ZSTD")
"""How columns may be compressed: as Spark reads them by itself. pyarrow's LZ4 is Parquet's LZ4_RAW."""
ENCODINGS = (
    "PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
)  # fmt: skip
"""How columns may be encoded: as Spark reads them."""
_STANDS_FOR_OTHERS = re.compile(r"[\\{}\[\]*?]")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SPARK_TYPES = {"string": "string", "int32": "int", "int64": "bigint", "timestamp": "timestamp"}


class File(NamedTuple):
    """A file in the journal's folder."""

    node: str
    name: str
    path: str
    size_bytes: int


class Segment(NamedTuple):
    """A file after its examination; ``ranges`` are the offsets that its rows hold."""

    node: str
    name: str
    first: int
    last: int
    size_bytes: int
    state: str
    ranges: tuple[tuple[int, int], ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    """`at` of the first and the last row of each range."""
    backs: tuple[tuple[int, int, int], ...] = ()
    """Inside a range, offsets whose `at` is below that of the one before, with that one's and their own."""
    backs_more: int = 0
    """How many there are besides; they lie behind the last one that is named."""
    extremes: tuple[int, int] | None = None
    """The earliest and the latest instant, where what is named does not tell them."""
    prev: str | None = None
    chain: str | None = None
    first_at: int | None = None
    last_at: int | None = None
    faults: tuple[str, ...] = ()
    broken: str | None = None
    """Why its own chain does not hold."""
    restored: Restore | None = None
    """From which snapshot its node says that it goes on, first."""

    @property
    def reason(self) -> str:
        """Why it was rejected: what was found last ended its examination."""
        return self.faults[-1]

    @property
    def events(self) -> int:
        """How many rows it holds."""
        return count(self.ranges)

    @property
    def lowest(self) -> int:
        """The earliest instant in it."""
        if self.extremes:
            return self.extremes[0]
        return min(*(instant for edge in self.edges for instant in edge), *(at for _, _, at in self.backs))

    @property
    def highest(self) -> int:
        """The latest instant in it."""
        if self.extremes:
            return self.extremes[1]
        return max(*(instant for edge in self.edges for instant in edge), *(before for _, before, _ in self.backs))

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return self._asdict() | {"restored": self.restored and list(self.restored)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Segment:
        """From JSON."""
        lists = {name: tuple(map(tuple, values[name])) for name in ("ranges", "edges", "backs")}
        restored = Restore(*values["restored"]) if values.get("restored") else None
        extremes = tuple(values["extremes"]) if values.get("extremes") else None
        return cls(**{**values, **lists, "faults": tuple(values["faults"]), "restored": restored, "extremes": extremes})


class Listing(NamedTuple):
    """What lies in a journal's folder."""

    files: list[File]
    foreign: list[str]
    """Names of what is no segment and does not look like one that is being written."""


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────


class Journal:
    """A folder of segments on a disk or in an object store."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self.system, self._root = open_place(place)

    def listing(self) -> Listing:
        """The segments by node and offset, and what else is there."""
        fs = arrow_fs()
        if self.system.get_file_info(self._root).type != fs.FileType.Directory:
            raise InvalidInput(f"{self.place} is no folder with a journal")
        found, foreign = [], []
        for name, info in self._entries(self._root):
            node = contract.node_of(name)
            if info is None or info.type != fs.FileType.Directory or node is None:
                # What is in a folder of others is theirs; they may not even let it be listed.
                foreign.append(name)
                continue
            for inside, each in self._entries(info.path):
                if each is None or each.type == fs.FileType.Directory or contract.offsets_of(inside) is None:
                    foreign.append(f"{name}/{inside}")
                else:
                    found.append(File(node, inside, each.path, each.size))
        return Listing(sorted(found), sorted(foreign))

    def _entries(self, folder: str) -> Iterator[tuple[str, Any]]:
        """What lies in a folder, by name, but for what is hidden; without more where the name is no text."""
        for info in self.system.get_file_info(arrow_fs().FileSelector(folder)):
            try:
                name, found = info.base_name, info
            except UnicodeDecodeError as error:
                name, found = error.object.rpartition(b"/")[2].decode(errors="backslashreplace"), None
            if not name.startswith((".", "_")):
                yield name, found

    def url(self, node: str, name: str) -> str:
        """A segment as Spark finds it, in whatever folder that works."""
        place = self.place if "://" in self.place else f"/{self._root.strip('/')}"
        return f"{place}/{contract.folder_name(node)}/{name}"

    def open(self, file: File) -> Any:
        """A file's bytes."""
        return self.system.open_input_file(file.path)


def arrow_fs() -> Any:
    """pyarrow's file systems; MissingExtra where it is not installed."""
    try:
        import pyarrow.fs
    except ImportError as error:
        raise MissingExtra("the books need pyarrow: pip install posthouse[pipeline]") from error
    return pyarrow.fs


def open_place(place: str) -> tuple[Any, str]:
    """The file system of a folder or URL and the path in it. Hadoop's s3a is pyarrow's s3."""
    import os

    fs = arrow_fs()
    if "://" not in place:
        return fs.LocalFileSystem(), os.path.abspath(place)
    scheme, _, rest = place.partition("://")
    if scheme == "file" and any(mark in rest for mark in "%?#"):
        # For Hadoop each is part of a name; for all others it is not.
        raise InvalidInput(f"{place} does not mean the same to all who read it: give the path without file://")
    known = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}.get(scheme, scheme)
    try:
        system, path = fs.FileSystem.from_uri(f"{known}://{rest}")
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InvalidInput(f"{place} cannot be opened: {text:.200}") from error
    return system, path.rstrip("/")


# ── Examination ──────────────────────────────────────────────────────────────────────────────────


def examine(journal: Journal, file: File) -> Segment:
    """Read a file once and say what it holds and what is wrong with it; it never raises over a bad file."""
    import pyarrow as pa

    place = contract.offsets_of(file.name)
    assert place is not None
    bare = Segment(file.node, file.name, *place, file.size_bytes, REJECTED)
    try:
        try:
            return _read(journal, file, bare, REPEATED)
        except (pa.ArrowException, OSError):
            # Of some encodings pyarrow makes texts, and no dictionaries.
            return _read(journal, file, bare, ())
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        text = " ".join(str(error).split())
        return bare._replace(faults=(f"it cannot be read: {text:.200}",))


def _read(journal: Journal, file: File, bare: Segment, repeated: Sequence[str]) -> Segment:
    """Examine a file; the texts of these columns are looked at once each."""
    import pyarrow.parquet as pq

    with journal.open(file) as source:
        facts = pq.read_metadata(source)
        texts = [column.path for column in map(facts.schema.column, range(len(facts.schema)))
                 if column.physical_type == "BYTE_ARRAY" and column.path in repeated]  # fmt: skip
        with pq.ParquetFile(source, metadata=facts, page_checksum_verification=True, read_dictionary=texts) as parquet:
            # As it is now: since it was listed, it may have been written to its end.
            return _examine(parquet, bare._replace(size_bytes=source.size()))


def _examine(parquet: Any, bare: Segment) -> Segment:
    keys = {
        k.decode(errors="replace"): v.decode(errors="replace") for k, v in (parquet.metadata.metadata or {}).items()
    }
    version = keys.get(contract.KEY_VERSION, str(contract.SCHEMA_VERSION))
    if version != str(contract.SCHEMA_VERSION):
        fault = (
            f"its schema version is {version!r:.40}, and this program knows {contract.SCHEMA_VERSION}: update Posthouse"
        )
        return bare._replace(faults=(fault,))
    wrong = _column_fault(parquet.schema_arrow)
    if wrong is not None:
        return bare._replace(faults=(wrong,))

    faults: list[str] = []
    lacking = [key for key, _ in contract.METADATA if key not in keys]
    prev, said = keys.get(contract.KEY_PREV), keys.get(contract.KEY_CHAIN)
    verifiable = not lacking and contract.is_hash(prev or "") and contract.is_hash(said or "")
    if not lacking and not verifiable:
        faults.append("its prev or chain is no SHA-256 in hex")
    if contract.KEY_NODE in keys and keys[contract.KEY_NODE] != bare.node:
        faults.append(f"its metadata says that it is of node {keys[contract.KEY_NODE]!r:.80}")
    for key, wanted in ((contract.KEY_FIRST, bare.first), (contract.KEY_LAST, bare.last)):
        if key in keys and keys[key] != str(wanted):
            faults.append(f"its metadata says {key} = {keys[key]!r:.40}")
    extra = [name for name in parquet.schema_arrow.names if name not in contract.NAMES]
    if extra:
        faults.append(f"it has columns that are not in the contract: {', '.join(extra):.200}")

    digest = hashlib.sha256(f"{prev}\n".encode()) if verifiable else None
    scan = _Scan(bare)
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=list(contract.NAMES)):
        wrong = _text_fault(batch) or scan.add(batch)
        if wrong is not None:
            return bare._replace(faults=(*faults, wrong))
        if digest is not None:
            digest.update(lines(batch))
    wrong = scan.end() or _layout_fault(parquet.metadata)
    if wrong is not None:
        return bare._replace(faults=(*faults, wrong))
    broken = None
    if digest is not None and digest.hexdigest() != said:
        broken = "its rows do not give the chain in its metadata"
    return bare._replace(
        state=TAKEN if verifiable else UNVERIFIED,
        ranges=scan.ranges,
        edges=scan.edges,
        backs=scan.backs,
        backs_more=scan.backs_more,
        extremes=scan.extremes,
        prev=prev if verifiable else None,
        chain=said if verifiable else None,
        first_at=scan.first_at,
        last_at=scan.last_at,
        faults=(*faults, *scan.faults),
        broken=broken,
        restored=scan.restored,
    )


def _column_fault(found: Any) -> str | None:
    """How a file's columns differ from what can be read; None where they do not."""
    import pyarrow as pa

    types = {
        "string": (pa.string(), pa.large_string(), pa.string_view()),
        "int32": (pa.int32(),),
        "int64": (pa.int64(),),
        "timestamp": (pa.timestamp("us", tz="UTC"),),
    }
    if len(set(found.names)) != len(found.names):
        return "it has two columns of one name"
    if lacking := [column.name for column in contract.COLUMNS if column.name not in found.names]:
        return f"it lacks the columns {', '.join(lacking)}"
    for name in found.names:
        if name not in contract.NAMES and name.lower() in contract.NAMES:
            return f"its columns {name.lower()} and {name} are one and the same to Spark"
    for column in contract.COLUMNS:
        kind = found.field(column.name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind not in types[column.type]:
            return f"its column {column.name} is {kind}, and should be {column.type}"
    return None


def _layout_fault(facts: Any) -> str | None:
    """Why Spark cannot read the contract's columns of a file though pyarrow did; None where it can.

    Only for files whose rows were read: asked for a column that is encrypted, pyarrow ends the process.
    """
    columns = {n: path for n in range(facts.num_columns) if (path := facts.schema.column(n).path) in contract.NAMES}
    for group in map(facts.row_group, range(facts.num_row_groups)):
        for n, name in columns.items() if group.num_rows else ():
            column = group.column(n)
            if column.compression not in CODECS:
                return f"its column {name} is compressed as {column.compression}, which Spark does not read"
            for encoding in column.encodings:
                if encoding not in ENCODINGS:
                    return f"its column {name} is encoded as {encoding}, which Spark does not read"
            if column.path_in_schema != name:
                return f"its column {name} has another name in a row group"
    return None


def _text_fault(batch: Any) -> str | None:
    """Which column holds what is no text; None where there is none. pyarrow lets it pass, and not all others do."""
    import pyarrow as pa

    for column in contract.COLUMNS:
        if column.type == "string":
            values = batch.column(column.name)
            try:
                (values.dictionary if pa.types.is_dictionary(values.type) else values).validate(full=True)
            except pa.ArrowInvalid:
                return f"its column {column.name} holds bytes that are no UTF-8"
    return None


class _Scan:
    """The rows of one file in pieces: what can be said of offsets, times and events."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._offsets: list[Any] = []
        self._at: list[Any] = []
        self._unknown: dict[str, int] = {}
        self._nameless: int | None = None
        self._far = ""
        self.first_at: int | None = None
        self.last_at: int | None = None
        self.ranges: tuple[tuple[int, int], ...] = ()
        self.edges: tuple[tuple[int, int], ...] = ()
        self.backs: tuple[tuple[int, int, int], ...] = ()
        self.backs_more = 0
        self.extremes: tuple[int, int] | None = None
        self.restored: Restore | None = None
        self.faults: list[str] = []

    def add(self, batch: Any) -> str | None:
        """Look at some rows; why the file cannot be taken in, None where it can."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return None
        for column in contract.COLUMNS:
            if not column.nullable and batch.column(column.name).null_count:
                return f"its column {column.name} has rows without a value"
        nodes = pc.unique(batch.column("node")).to_pylist()
        if nodes != [self._segment.node]:
            other = next(node for node in nodes if node != self._segment.node)
            return f"it holds rows of node {other!r:.80}"
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        self._offsets.append(offsets)
        for name in ("offset", "commit", "lane_seq"):
            ends = pc.min_max(batch.column(name)).as_py()
            for value in ends.values():
                if abs(value) > OFFSET_MAX:
                    return f"its {name} {value} is beyond all that is counted"
        for name in ("at", "due_at", "expires_at"):
            wrong = self._instants(name, batch.column(name), offsets)
            if wrong is not None:
                return wrong
        for event in pc.unique(batch.column("event")).to_pylist():
            if event not in EVENTS and event not in self._unknown:
                where = pc.index(batch.column("event").cast(pa.string()), event).as_py()
                self._unknown[event] = int(offsets[where])
            if event == "started":
                self._starts(batch.filter(pc.equal(batch.column("event").cast(pa.string()), event)))
        if self._nameless is None:
            self._look_for_names(batch, offsets)
        return None

    def _look_for_names(self, batch: Any, offsets: Any) -> None:
        """Note the first event of a message that does not say of which."""
        import pyarrow as pa
        import pyarrow.compute as pc

        unnamed = pc.equal(batch.column("message_id").cast(pa.string()), "")
        if pc.any(unnamed).as_py():
            events = batch.column("event").cast(pa.string())
            of_none = pc.is_in(events, pa.array((*WITHOUT_MESSAGE, *self._unknown), pa.string()))
            found = pc.and_not(unnamed, of_none)
            if pc.any(found).as_py():
                self._nameless = int(offsets[pc.index(found, True).as_py()])

    def _starts(self, starts: Any) -> None:
        """Look at what a node said when it started: whether it goes on from a snapshot of another."""
        for start in starts.select(["offset", "at", "detail"]).to_pylist():
            try:
                found = restored_from(start["detail"])
                if found is not None and found[0] == self._segment.node:
                    raise ValueError("it is of the same node")
            except ValueError as error:
                self.faults.append(f"the restored_from at offset {start['offset']} counts for nothing: {error}")
                continue
            if found is not None:
                at = (start["at"] - _EPOCH) // datetime.timedelta(microseconds=1)
                said = Restore(self._segment.node, start["offset"], *found, at)
                self.restored = said if self.restored is None else min(said, self.restored)

    def _instants(self, name: str, column: Any, offsets: Any) -> str | None:
        """Look at a column of instants; why the file cannot be taken in, None where it can."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = column.cast(pa.int64())
        beyond = pc.or_(pc.less(values, 0), pc.greater(values, INSTANT_MAX))
        if pc.any(beyond).as_py():
            where = pc.index(beyond, True).as_py()
            return f"its {name} at offset {offsets[where]} is no instant between 1970 and 9999"
        if name == "at":
            at = values.to_numpy(zero_copy_only=False)
            self._at.append(at)
            far = (at < PLAUSIBLE[0]) | (at >= PLAUSIBLE[1])
            if far.any() and not self._far:
                self._far = f"its clock is far off: offset {offsets[far][0]} says {_iso(int(at[far][0]))}"
        return None

    def end(self) -> str | None:
        """Conclude; why the file cannot be taken in, None where it can."""
        import numpy as np

        if not self._offsets:
            return "it has no rows"
        offsets, at = np.concatenate(self._offsets), np.concatenate(self._at)
        self.first_at, self.last_at = int(at[0]), int(at[-1])
        steps = np.diff(offsets)
        if (steps <= 0).any():
            self.faults.append(f"offset {offsets[1:][steps <= 0][0]} stands behind a higher one")
            order = np.argsort(offsets, kind="stable")
            offsets, at = offsets[order], at[order]
            steps = np.diff(offsets)
            if (steps == 0).any():
                return f"it holds offset {offsets[1:][steps == 0][0]} twice"
        cuts = np.flatnonzero(steps != 1)
        if len(cuts) >= RANGES_MAX:
            return f"its offsets lie in {len(cuts) + 1} separate ranges, and may in {RANGES_MAX}"
        starts = [int(offsets[0]), *(int(offsets[cut + 1]) for cut in cuts)]
        ends = [*(int(offsets[cut]) for cut in cuts), int(offsets[-1])]
        if starts[0] < 1:
            return f"it holds offset {starts[0]}, and offsets begin at 1"
        self.ranges = tuple(zip(starts, ends, strict=True))
        if starts[0] < self._segment.first or ends[-1] > self._segment.last:
            # They would take the place of those of the segment that should hold them.
            return f"its rows hold {self._held()}, which are beyond its name"
        begins = [int(at[0]), *(int(at[cut + 1]) for cut in cuts)]
        self.edges = tuple(zip(begins, [*(int(at[cut]) for cut in cuts), int(at[-1])], strict=True))
        back = np.flatnonzero((steps == 1) & (np.diff(at) < 0)) + 1
        self.backs = tuple((int(offsets[row]), int(at[row - 1]), int(at[row])) for row in back[:BACKS_MAX])
        self.backs_more = max(len(back) - BACKS_MAX, 0)
        if self.backs_more:
            self.extremes = int(at.min()), int(at.max())
        if self.ranges != ((self._segment.first, self._segment.last),):
            self.faults.append(f"its rows hold {self._held()}")
        if self._far:
            self.faults.append(self._far)
        for event, offset in self._unknown.items():
            self.faults.append(f"it holds the unknown event {event!r:.40}, first at offset {offset}")
        if self._nameless is not None:
            self.faults.append(f"it tells of messages and not of which, first at offset {self._nameless}")
        return None

    def _held(self) -> str:
        held = ", ".join(f"{first} to {last}" for first, last in self.ranges[:3])
        return f"the offsets {held}{' …' if len(self.ranges) > 3 else ''}"


def _iso(at: int) -> str:
    moment = datetime.datetime.fromtimestamp(at // 1_000_000, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def lines(batch: Any) -> memoryview:
    """The bytes over which the chain goes, for some rows: the contract's JSON lines, made column by column."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    columns = []
    for column in contract.COLUMNS:
        values = batch.column(column.name)
        # A line's brackets belong to its first and its last column, both of text: all is put together once.
        begin = '["' if column is contract.COLUMNS[0] else '"'
        end = "]\n" if column is contract.COLUMNS[-1] else ""
        if column.type == "string" and pa.types.is_dictionary(values.type):
            made = _quoted(values.dictionary.cast(text), begin, end).take(values.indices)
        elif column.type == "string":
            made = _quoted(values.cast(text), begin, end)
        elif column.type == "timestamp":
            made = values.cast(pa.int64()).cast(text)
        else:
            made = values.cast(text)
        columns.append(pc.fill_null(made, f"null{end}") if made.null_count else made)
    whole = pc.binary_join_element_wise(*columns, pa.scalar(",", text))
    _, ends, data = whole.buffers()
    bounds = np.frombuffer(ends, np.int64)
    return memoryview(data)[bounds[whole.offset] : bounds[whole.offset + len(whole)]]


def _quoted(values: Any, begin: str, end: str) -> Any:
    """Texts as JSON strings; ``begin`` stands for the quote before one, ``end`` is behind the one after it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    _, ends, data = values.buffers()
    bounds = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    raw = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]] if len(values) else np.zeros(0, np.uint8)
    # What JSON writes otherwise than as it is: quotes, backslashes and control characters.
    if ((raw < 0x20) | (raw == 0x22) | (raw == 0x5C)).any():
        plain = [
            None if value is None else f"{begin}{orjson.dumps(value).decode()[1:]}{end}" for value in values.to_pylist()
        ]
        return pa.array(plain, text)
    return pc.binary_join_element_wise(pa.scalar(begin, text), values, pa.scalar(f'"{end}', text), pa.scalar("", text))


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


def ddl() -> str:
    """The contract's columns as Spark reads a schema."""
    return ", ".join(f"`{column.name}` {SPARK_TYPES[column.type]}" for column in contract.COLUMNS)


def read(spark: SparkSession, schema: str | StructType, *paths: str) -> DataFrame:
    """The rows of Parquet files or folders of these names, of which no character stands for others.

    Spark can be told to take names as they are, and then reads each of several as often as there are names.
    """
    return spark.read.schema(schema).parquet(*(_STANDS_FOR_OTHERS.sub(r"\\\g<0>", path) for path in paths))


def events(
    spark: SparkSession, urls: Sequence[str], known: Mapping[str, Ranges], new: Mapping[str, Ranges]
) -> DataFrame:
    """The rows of these segments without those at offsets that are known already."""
    from pyspark.sql import functions as F

    rows = read(spark, ddl(), *urls) if urls else spark.createDataFrame([], ddl())
    for node, ranges in sorted(new.items()):
        for first, last in common(merged(ranges), merged(known.get(node, ()))):
            again = (F.col("node") == node) & F.col("offset").between(first, last)
            rows = rows.where(~again)
    return rows.select(*contract.NAMES)
