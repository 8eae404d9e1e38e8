"""Segments: one range of the journal as one Parquet file.

In: rows of the contract. Out: a durable file, byte for byte the same for the same rows (and the same
pyarrow); and rows again, and what is wrong with a file. It never touches a store.
pyarrow is an optional extra: without it every function here raises MissingExtra.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple

from ..errors import MissingExtra, StoreCorrupt, StoreError, StoreFull
from . import schema
from .finding import Finding, Kind
from .schema import COLUMNS, NAMES, Row, RowValues

BATCH_ROWS = 8_192
"""Rows that are Python objects at one time; in columns they take a tenth."""
GROUP_ROWS = 32_768
"""Rows of a row group: what a reader can skip by statistics, and what a writer keeps in memory."""

# Where values go up in small steps, their differences take next to nothing.
DELTAS = ("offset", "at", "commit")
# Statistics where a reader can skip by them; those of free text would only bloat the footer.
STATISTICS = ("node", "offset", "at", "commit", "event", "desk", "mailbox", "message_id", "sender")

SEAL_BLANK = schema.SEAL_PREFIX + "0" * 64


class Stamp(NamedTuple):
    """What a segment's metadata says of it."""

    node: str
    first: int
    last: int
    prev: str
    chain: str


class Written(NamedTuple):
    """A segment that is durable under its name; ``new`` is False where it was there already."""

    path: Path
    chain: str
    size_bytes: int
    new: bool


class Checked(NamedTuple):
    """A segment after its check; no stamp where it has none or is damaged."""

    stamp: Stamp | None
    events: int
    findings: list[Finding]


def arrow() -> Any:
    """pyarrow's modules; MissingExtra where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("journal segments need pyarrow: pip install posthouse[journal]") from error
    return SimpleNamespace(pa=pyarrow, pc=pyarrow.compute, pq=pyarrow.parquet)


def arrow_schema() -> Any:
    """The contract as a pyarrow schema."""
    pa = arrow().pa
    types = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([pa.field(c.name, types[c.type], nullable=c.nullable) for c in COLUMNS])


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, stamp: Stamp, rows: Iterable[RowValues]) -> Written:
    """Write the segment with these rows into a node's folder, and return when it is durable.

    ``stamp.chain`` is not used: the chain comes of the rows. A file that is there under the segment's
    name is kept if it holds the same, and is an error if not; nothing is ever overwritten.
    """
    path = folder / schema.file_name(stamp.first, stamp.last)
    temporary = folder / temporary_name(path.name)
    try:
        with _translated(path):
            chain = _write_rows(temporary, stamp, rows)
            _seal(temporary)
            size_bytes = temporary.stat().st_size
            new = not os.path.lexists(path)
            if new:
                os.rename(temporary, path)
            else:
                _check_same(path, temporary, stamp._replace(chain=chain))
                temporary.unlink()
            sync_folder(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Written(path, chain, size_bytes, new)


def temporary_name(name: str) -> str:
    """Under which name a file is written; readers pass over names that begin with a dot."""
    return f".{name}.tmp"


def is_temporary(name: str) -> bool:
    """Whether a file is what a run left that did not come to its end."""
    return (
        name.startswith(".") and name.endswith(".tmp") and schema.offsets_of(name[1:].removesuffix(".tmp")) is not None
    )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"cannot write {path}: {error.strerror or error}") from error


def _write_rows(path: Path, stamp: Stamp, rows: Iterable[RowValues]) -> str:
    """The file without its seal; its chain."""
    a = arrow()
    columns = arrow_schema()
    chain = schema.Chain(stamp.prev)
    with a.pa.OSFile(str(path), "wb") as sink:
        # Whatever pyarrow leaves to its default stays as it is for all readers; the rest is fixed here.
        with a.pq.ParquetWriter(
            sink,
            columns,
            version="2.6",
            compression="zstd",
            use_dictionary=[name for name in NAMES if name not in DELTAS],
            column_encoding=dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED"),
            write_statistics=list(STATISTICS),
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            batches: list[Any] = []
            waiting = 0
            due = stamp.first
            for values in _batches(rows):
                if values[0][1] != due or values[-1][1] != due + len(values) - 1:
                    raise StoreCorrupt(f"{path.name}: rows at offset {due} are not in order")
                due += len(values)
                batches.append(_columns(a.pa, columns, values))
                # After the types are known to be right: the chain speaks of values as they are read again.
                chain.add(values)
                waiting += len(values)
                if waiting >= GROUP_ROWS:
                    writer.write_table(a.pa.Table.from_batches(batches, columns), row_group_size=waiting)
                    batches, waiting = [], 0
            if batches:
                writer.write_table(a.pa.Table.from_batches(batches, columns), row_group_size=waiting)
            if due != stamp.last + 1:
                raise StoreCorrupt(f"{path.name}: the rows end at offset {due - 1} instead of {stamp.last}")
            # The seal comes first: what a damaged count cuts off the list is then another key, and missed.
            writer.add_key_value_metadata(
                {
                    schema.KEY_SEAL: SEAL_BLANK,
                    schema.KEY_VERSION: str(schema.SCHEMA_VERSION),
                    schema.KEY_NODE: stamp.node,
                    schema.KEY_FIRST: str(stamp.first),
                    schema.KEY_LAST: str(stamp.last),
                    schema.KEY_PREV: stamp.prev,
                    schema.KEY_CHAIN: chain.hex(),
                }
            )
    return chain.hex()


def _batches(rows: Iterable[RowValues]) -> Iterator[list[RowValues]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, BATCH_ROWS)):
        yield batch


def _columns(pa: Any, columns: Any, rows: list[RowValues]) -> Any:
    """Rows as a record batch; StoreCorrupt names the first value that does not fit its column."""
    arrays = []
    for column, field, values in zip(COLUMNS, columns, zip(*rows, strict=True), strict=True):
        # pyarrow would take True for 1, and the chain would not.
        if not set(map(type, values)) <= {schema.PYTHON_TYPES[column.type], type(None)}:
            raise StoreCorrupt(_fault_in(rows, column.name))
        try:
            array = pa.array(values, field.type)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise StoreCorrupt(_fault_in(rows, column.name)) from error
        if array.null_count and not column.nullable:
            raise StoreCorrupt(_fault_in(rows, column.name))
        arrays.append(array)
    return pa.record_batch(arrays, schema=columns)


def _fault_in(rows: list[RowValues], column: str) -> str:
    faults = filter(None, map(schema.row_fault, rows))
    return next(faults, f"{column} at the offsets {rows[0][1]} to {rows[-1][1]} does not fit its type")


def _seal(path: Path) -> None:
    """Put the hash of the whole file into its place in the footer, and make the file durable."""
    with open(path, "r+b") as file:
        position = _seal_position(file, SEAL_BLANK)
        assert position is not None
        digest = _digest(file, position)
        file.seek(position)
        file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())


def _check_same(path: Path, fresh: Path, stamp: Stamp) -> None:
    """Raise StoreCorrupt unless the file at ``path`` holds what ``fresh`` does."""
    if path.is_file() and not path.is_symlink() and _same_bytes(path, fresh):
        return
    # Another release of pyarrow writes other bytes for the same rows: a sound file of them is the segment.
    found = check(path)
    if found.findings:
        raise StoreCorrupt(f"{path} is in the way of the segment to be written: {found.findings[0].detail}")
    if found.stamp != stamp:
        raise StoreCorrupt(f"{path} is in the way of the segment to be written: it is a segment of other events")


def _same_bytes(one: Path, other: Path) -> bool:
    with open(one, "rb") as a, open(other, "rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


# ── The seal ─────────────────────────────────────────────────────────────────────────────────────


def _seal_position(file: BinaryIO, value: str) -> int | None:
    """Where in the file the digits of the seal with this value stand."""
    end = file.seek(-8, os.SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    start = file.seek(max(end - length, 0))
    # The last one is it: only statistics, which come before, hold text from rows.
    found = file.read(end - start).rfind(value.encode())
    return None if found < 0 else start + found + len(schema.SEAL_PREFIX)


def _digest(file: BinaryIO, position: int) -> str:
    """The SHA-256 of a file with the 64 digits at ``position`` as zeros."""
    digest = hashlib.sha256()
    file.seek(0)
    left = position
    while left and (piece := file.read(min(left, 1 << 20))):
        digest.update(piece)
        left -= len(piece)
    digest.update(b"0" * 64)
    file.seek(position + 64)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _seal_fault(path: Path, keys: Mapping[str, str]) -> str | None:
    """What is wrong with the seal, None where it is whole or the file has none.

    Key and value each tell that there is one: a fault in either leaves the other.
    """
    sealed = [key for key, value in keys.items() if key == schema.KEY_SEAL or value.startswith(schema.SEAL_PREFIX)]
    if not sealed:
        return None
    value = keys[sealed[0]]
    digits = value.removeprefix(schema.SEAL_PREFIX)
    if sealed != [schema.KEY_SEAL] or digits == value or not schema.is_hash(digits):
        return "its seal is damaged"
    with open(path, "rb") as file:
        position = _seal_position(file, value)
        if position is None or _digest(file, position) != digits:
            return "its bytes are not those that were sealed"
    return None


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def open_file(path: Path) -> Any:
    """A segment as pyarrow's ParquetFile; StoreCorrupt where it is none."""
    with reading(path):
        return arrow().pq.ParquetFile(str(path), page_checksum_verification=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises over a damaged file into StoreCorrupt that names it."""
    pa = arrow().pa
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        text = " ".join(str(error).split())
        raise StoreCorrupt(f"{path} cannot be read: {text:.300}") from error


def keys_of(file: Any) -> dict[str, str]:
    """The file's own metadata as text."""
    found: Mapping[bytes, bytes] = file.metadata.metadata or {}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in found.items()}


def stamp_of(keys: Mapping[str, str]) -> Stamp:
    """The stamp in a file's metadata; ValueError says which keys are missing or what is wrong with one."""
    missing = [key for key, _ in schema.METADATA if key not in keys]
    if missing:
        raise ValueError(f"its metadata lacks {', '.join(missing)}")
    version = keys[schema.KEY_VERSION]
    if version != str(schema.SCHEMA_VERSION):
        raise ValueError(f"its schema version is {version!r:.40}, and this program knows {schema.SCHEMA_VERSION}")
    for key in (schema.KEY_FIRST, schema.KEY_LAST):
        if not (keys[key].isascii() and keys[key].isdigit() and len(keys[key]) <= schema.OFFSET_DIGITS):
            raise ValueError(f"{key} is no offset: {keys[key]!r:.40}")
    for key in (schema.KEY_PREV, schema.KEY_CHAIN):
        if not schema.is_hash(keys[key]):
            raise ValueError(f"{key} is no SHA-256 in hex: {keys[key]!r:.80}")
    return Stamp(
        keys[schema.KEY_NODE],
        int(keys[schema.KEY_FIRST]),
        int(keys[schema.KEY_LAST]),
        keys[schema.KEY_PREV],
        keys[schema.KEY_CHAIN],
    )


def read(path: Path) -> Iterator[Row]:
    """The rows of a segment in order; StoreCorrupt where it cannot be read. Nothing is verified."""
    with open_file(path) as file:
        for values in read_batches(file, path):
            yield from map(Row._make, values)


def read_batches(file: Any, path: Path) -> Iterator[list[RowValues]]:
    """The rows of an open segment in pieces."""
    with reading(path):
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(NAMES)):
            yield values_of(batch)


def values_of(table: Any) -> list[RowValues]:
    """The rows of a table or batch with the contract's columns; times in any unit become microseconds."""
    pa = arrow().pa
    columns = []
    for field in arrow_schema():
        column = table.column(field.name).cast(field.type)
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


# ── Checking ─────────────────────────────────────────────────────────────────────────────────────


def check(path: Path) -> Checked:
    """Verify one segment by itself: name and folder, metadata and content, bytes and chain."""
    try:
        with open_file(path) as file:
            keys = keys_of(file)
            # Bytes before rows: what is known to be damaged is not decoded.
            if fault := _seal_fault(path, keys):
                return Checked(None, 0, [Finding(Kind.ALTERED, str(path), fault)])
            return _check_content(file, path, keys)
    except (StoreCorrupt, OSError) as error:
        return Checked(None, 0, [Finding(Kind.UNREADABLE, str(path), _fault(error, path))])


def _fault(error: Exception, path: Path) -> str:
    """What an error says, without the name that a finding carries already."""
    return str(error).removeprefix(f"{path} ")


def _check_content(file: Any, path: Path, keys: Mapping[str, str]) -> Checked:
    findings: list[Finding] = []

    def found(kind: Kind, detail: str) -> None:
        findings.append(Finding(kind, str(path), detail))

    stamp: Stamp | None = None
    try:
        stamp = stamp_of(keys)
    except ValueError as error:
        found(Kind.UNVERIFIED, str(error))

    named = schema.offsets_of(path.name)
    if named is None:
        found(Kind.MISPLACED, "its name is not <first>-<last>.parquet with 20 digits each")
    elif stamp is not None and named != (stamp.first, stamp.last):
        found(Kind.MISPLACED, f"its metadata says that it holds the offsets {stamp.first} to {stamp.last}")
    housed = schema.node_of(path.parent.name)
    if housed is None:
        found(Kind.MISPLACED, "its folder is not node=<node>")
    elif stamp is not None and stamp.node != housed:
        found(Kind.MISPLACED, f"its metadata says that it is of node {stamp.node!r:.80}")

    if fault := _schema_fault(file):
        found(Kind.INVALID, fault)
        return Checked(None, 0, findings)
    # What the rows must agree with: the metadata, or the name where there is none.
    if stamp is not None:
        events, faults = _check_rows(file, path, stamp.node, stamp.first, stamp.last, stamp)
    elif housed is not None and named is not None:
        events, faults = _check_rows(file, path, housed, *named, None)
    else:
        return Checked(None, 0, findings)
    for kind, detail in faults:
        found(kind, detail)
    return Checked(stamp, events, findings)


def _schema_fault(file: Any) -> str | None:
    """How the file's columns differ from the contract's; None where they do not."""
    pa = arrow().pa
    found = file.schema_arrow
    if len(set(found.names)) != len(found.names):
        return "it has two columns of one name"
    if lacking := [name for name in NAMES if name not in found.names]:
        return f"it lacks the columns {', '.join(lacking)}"
    if more := [name for name in found.names if name not in NAMES]:
        return f"it has columns that are not in the contract: {', '.join(more):.200}"
    texts = (pa.string(), pa.large_string(), pa.string_view())
    for field in arrow_schema():
        kind = found.field(field.name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind != field.type and not (pa.types.is_string(field.type) and kind in texts):
            return f"its column {field.name} is {kind}, and should be {field.type}"
    return None


def _check_rows(
    file: Any, path: Path, node: str, first: int, last: int, stamp: Stamp | None
) -> tuple[int, list[tuple[Kind, str]]]:
    """How many rows there are and what is wrong with them, the first fault of each sort."""
    faults: dict[str, tuple[Kind, str]] = {}
    chain = schema.Chain(stamp.prev) if stamp else None
    due, commit = first, 0
    required = [(index, column.name) for index, column in enumerate(COLUMNS) if not column.nullable]
    try:
        for rows in read_batches(file, path):
            columns = list(zip(*rows, strict=True))
            for index, name in required:
                if "null" not in faults and None in columns[index]:
                    offset = due + columns[index].index(None)
                    faults["null"] = (Kind.INVALID, f"{name} is null in the row of offset {offset}")
            if "node" not in faults and set(columns[0]) != {node}:
                other = next(value for value in columns[0] if value != node)
                faults["node"] = (Kind.MISPLACED, f"it holds rows of node {other!r:.80}, not {node!r:.80}")
            if "offset" not in faults and list(columns[1]) != list(range(due, due + len(rows))):
                wanted, found = next((w, f) for w, f in enumerate(columns[1], due) if w != f)
                kind = Kind.MISSING if found is not None and found > wanted else Kind.REORDERED
                faults["offset"] = (kind, f"offset {found} stands where {wanted} should")
            # Where offsets are wrong, commits cannot be right.
            if not faults.keys() & {"null", "offset", "commit"}:
                for offset, value in zip(columns[1], columns[3], strict=True):
                    # Other programs may cut inside a commit: the first row may go on with an earlier one.
                    goes_on = value == commit if commit else 1 <= value < offset
                    if value != offset and not goes_on:
                        fault = f"offset {offset} says that its commit began at {value}"
                        faults["commit"] = (Kind.INVALID, fault)
                        break
                    commit = value
            if chain is not None:
                chain.add(rows)
            due += len(rows)
    except StoreCorrupt as error:
        faults["read"] = (Kind.UNREADABLE, _fault(error, path))
        return due - first, list(faults.values())
    if due != last + 1 and "offset" not in faults:
        kind = Kind.MISSING if due <= last else Kind.OVERLAP
        faults["offset"] = (kind, f"its rows end at offset {due - 1} instead of {last}")
    if chain is not None and stamp is not None and chain.hex() != stamp.chain:
        faults["chain"] = (Kind.ALTERED, "its rows do not give the chain in its metadata")
    return due - first, list(faults.values())
