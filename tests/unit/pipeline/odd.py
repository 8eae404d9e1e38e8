"""Segments as others may write them: each is a Parquet file that pyarrow reads, and not all readers of the books do.

In: a folder. Out: files of one node in it, each of its own offsets, and what the books shall say of each.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

from posthouse.journal import schema as contract
from posthouse.journal import segment

NODE = "relay-1"
ROWS = 3
SECOND = 1_000_000
BEGIN = 1_772_323_200 * SECOND
TEXTS = [column.name for column in contract.COLUMNS if column.type == "string"]
NUMBERS = [column.name for column in contract.COLUMNS if column.type != "string"]
INSTANTS = [column.name for column in contract.COLUMNS if column.type == "timestamp"]

Write = Callable[[Path, pa.Table], None]
"""Given a path and what a sound segment holds, metadata and all."""


class Odd(NamedTuple):
    """A way to write a segment."""

    name: str
    write: Write
    reason: str | None = None
    """How the reason begins for which it is not taken in; None where all of it is."""
    named: str | None = None
    """What is told of it though it is taken in."""


def life(first: int) -> Iterator[dict[str, Any]]:
    """A message that is posted, leased and delivered."""
    for step, event in enumerate(("posted", "leased", "delivered")):
        offset = first + step
        yield dict.fromkeys(contract.NAMES) | {
            "node": NODE, "offset": offset, "at": BEGIN + SECOND * offset, "commit": offset, "event": event,
            "desk": "relay", "mailbox": "ann", "lane": "", "lane_seq": first, "message_id": f"m{first}", "kind": "",
            "sender": "bób", "attempt": min(step, 1), "size_bytes": 3, "holder": "w" if step else None,
            "error": None if step else "no “such” thing", "due_at": None if step else BEGIN, "cause_id": "c",
        }  # fmt: skip


def sound(first: int) -> pa.Table:
    """What a sound segment holds from this offset on."""
    columns = segment.arrow_schema()
    rows = [tuple(values.values()) for values in life(first)]
    keys = {
        contract.KEY_VERSION: str(contract.SCHEMA_VERSION),
        contract.KEY_NODE: NODE,
        contract.KEY_FIRST: str(first),
        contract.KEY_LAST: str(first + ROWS - 1),
        contract.KEY_PREV: contract.GENESIS,
        contract.KEY_CHAIN: contract.chain(contract.GENESIS, rows),
    }
    arrays = [pa.array(values, f.type) for values, f in zip(zip(*rows, strict=True), columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=columns).replace_schema_metadata(keys)


def write(folder: Path, first: int, odd: Odd) -> Path:
    """A segment from this offset on, written in this way."""
    home = folder / contract.folder_name(NODE)
    home.mkdir(parents=True, exist_ok=True)
    path = home / contract.file_name(first, first + ROWS - 1)
    odd.write(path, sound(first))
    return path


# ── Ways to write one ────────────────────────────────────────────────────────────────────────────


def put(path: Path, table: pa.Table, rows: Sequence[int] = (), **options: Any) -> None:
    """Write a table and its metadata, in groups of so many rows."""
    keys = table.schema.metadata
    table = table.replace_schema_metadata(None)
    with pq.ParquetWriter(path, table.schema, **{"compression": "zstd", "store_schema": False} | options) as writer:
        begin = 0
        for count in rows or (table.num_rows,):
            writer.write_table(table.slice(begin, count))
            begin += count
        writer.add_key_value_metadata(keys)


def by(**options: Any) -> Write:
    """With other options of pyarrow's writer."""
    return functools.partial(put, **options)


def encoded(encoding: str, names: Sequence[str], **options: Any) -> Write:
    """With another encoding of some columns."""
    kept = [name for name in contract.NAMES if name not in names]
    return by(use_dictionary=kept, column_encoding=dict.fromkeys(names, encoding), **options)


def brotli(name: str) -> dict[str, str]:
    """One column compressed by brotli."""
    return dict.fromkeys(contract.NAMES, "zstd") | {name: "brotli"}


def changed(change: Callable[[pa.Table], pa.Table], **options: Any) -> Write:
    """With other columns or metadata."""
    return lambda path, table: put(path, change(table), **options)


def replaced(name: str, make: Callable[[Any], Any], **options: Any) -> Write:
    """With another column of that name."""

    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, make(table.column(name)))

    return changed(change, **options)


def cast(names: Sequence[str], kind: pa.DataType) -> Write:
    """With columns of another type."""

    def change(table: pa.Table) -> pa.Table:
        for name in names:
            values = table.column(name).cast(kind, safe=False)
            table = table.set_column(table.column_names.index(name), name, values)
        return table

    return changed(change, store_schema=True)


def more(name: str, values: pa.Array, **options: Any) -> Write:
    """With a column besides."""
    return changed(lambda table: table.append_column(name, values), store_schema=True, **options)


def one(value: Any, kind: pa.DataType) -> pa.Array:
    """A column with something in it."""
    return pa.array([value, None, value], kind)


def holding(name: str, text: bytes) -> Write:
    """With these bytes as a text."""
    return replaced(name, lambda values: pa.array([text, b"sound", text], pa.binary()).view(pa.string()))


def counting(name: str, number: int) -> Write:
    """With this number in its last row."""
    return replaced(name, lambda values: pa.array([*values.to_pylist()[:-1], number], pa.int64()))


def saying(values: dict[bytes, bytes]) -> Write:
    """With metadata besides."""
    return changed(lambda table: table.replace_schema_metadata({**table.schema.metadata, **values}))


def in_arrow(columns: Sequence[tuple[str, pa.DataType]]) -> dict[bytes, bytes]:
    """The metadata in which Arrow keeps its types."""
    return {b"ARROW:schema": base64.b64encode(pa.schema(columns).serialize().to_pybytes())}


def damaged(old: bytes, new: bytes) -> Write:
    """With other bytes where these stood last."""

    def put_damaged(path: Path, table: pa.Table) -> None:
        put(path, table)
        before, found, after = path.read_bytes().rpartition(old)
        assert len(found) == len(new)
        path.write_bytes(before + new + after)

    return put_damaged


class _Keys(pe.KmsClient):  # type: ignore[misc, unused-ignore]
    """Keeps no secret."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def secret(name: str, *, plain_footer: bool) -> Write:
    """With one column that only the owner of a key can read; one besides if there is none of that name."""

    def put_secret(path: Path, table: pa.Table) -> None:
        if name not in table.column_names:
            table = table.append_column(name, one("x", pa.string()))
        wanted = pe.EncryptionConfiguration(
            footer_key="f", column_keys={"c": [name]}, plaintext_footer=plain_footer, double_wrapping=False
        )
        factory = pe.CryptoFactory(lambda config: _Keys())
        put(path, table, encryption_properties=factory.file_encryption_properties(pe.KmsConnectionConfig(), wanted))

    return put_secret


def _deep(depth: int) -> pa.Array:
    values: Any = pa.array([1, 2, 3])
    for _ in range(depth):
        values = pa.StructArray.from_arrays([values], ["x"])
    return values


def _nullable(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.with_nullable(True) for field in table.schema], table.schema.metadata))


def _two_more(table: pa.Table) -> pa.Table:
    return table.append_column("x", one(1, pa.int64())).append_column("X", one(1, pa.int64()))


def _doubled(table: pa.Table) -> pa.Table:
    table = table.append_column("x", one(1, pa.int64()))
    return pa.concat_tables([table, table.slice(0, 1)])


# ── The ways ─────────────────────────────────────────────────────────────────────────────────────

COMPRESSED = "its column {} is compressed as BROTLI, which Spark does not read"
ENCODED = "its column {} is encoded as BYTE_STREAM_SPLIT, which Spark does not read"
TYPED = "its column {} is {}, and should be {}"
SAME = "its columns {} and {} are one and the same to Spark"
UNTEXT = "its column {} holds bytes that are no UTF-8"
MORE = "it has columns that are not in the contract: {}"
UNREAD = "it cannot be read: "

LAYOUTS = (
    Odd("as Posthouse does", encoded("DELTA_BINARY_PACKED", ["offset", "at", "commit"])),
    *(Odd(f"codec {name}", by(compression=name)) for name in ("none", "snappy", "gzip", "zstd", "lz4")),
    Odd("codec brotli", by(compression="brotli"), COMPRESSED.format("node")),
    Odd("codec brotli of a column", by(compression=brotli("detail")), COMPRESSED.format("detail")),
    Odd("pages of version 2", by(data_page_version="2.0")),
    Odd("pages of version 2, bare", by(data_page_version="2.0", compression="none", use_dictionary=False)),
    Odd("pages of version 2, lz4", by(data_page_version="2.0", compression="lz4")),
    Odd("no dictionaries", by(use_dictionary=False)),
    Odd("dictionaries that are too large", by(dictionary_pagesize_limit=1, data_page_size=1, write_batch_size=1)),
    *(
        Odd(f"{encoding} of {what} in pages of {version}", encoded(encoding, names, data_page_version=version), reason)
        for version in ("1.0", "2.0")
        for encoding, what, names, reason in (
            ("DELTA_BINARY_PACKED", "numbers", NUMBERS, None),
            ("DELTA_LENGTH_BYTE_ARRAY", "texts", TEXTS, None),
            ("DELTA_BYTE_ARRAY", "texts", TEXTS, None),
            ("PLAIN", "all", list(contract.NAMES), None),
            ("BYTE_STREAM_SPLIT", "numbers", NUMBERS, ENCODED.format("offset")),
            ("BYTE_STREAM_SPLIT", "attempt", ["attempt"], ENCODED.format("attempt")),
        )
    ),
    Odd("format 1.0", by(version="1.0")),
    Odd("format 2.4", by(version="2.4")),
    Odd("groups of one row", by(rows=(1, 1, 1))),
    Odd("an empty group first", by(rows=(0, 3))),
    Odd("an empty group between", by(rows=(1, 0, 2))),
    Odd("an empty group last", by(rows=(3, 0))),
    Odd("an index of pages", by(write_page_index=True, max_rows_per_page=1)),
    Odd("checksums", by(write_page_checksum=True)),
    Odd("no statistics", by(write_statistics=False)),
    Odd("Bloom filters", by(bloom_filter_options={"message_id": True})),
    Odd("sorted, so it says", by(sorting_columns=[pq.SortingColumn(4, descending=True)])),
    Odd("another order of columns", changed(lambda table: table.select(list(reversed(table.column_names))))),
    Odd("all may be null", changed(_nullable)),
)
TYPES = (
    Odd("large strings", cast(TEXTS, pa.large_string())),
    Odd("string views", cast(TEXTS, pa.string_view())),
    Odd("dictionaries", cast(TEXTS, pa.dictionary(pa.int32(), pa.string()))),
    Odd("small dictionaries", cast(TEXTS, pa.dictionary(pa.int8(), pa.large_string()))),
    Odd(
        "dictionaries of numbers",
        replaced("attempt", lambda values: values.combine_chunks().dictionary_encode(), store_schema=True),
    ),
    Odd("JSON", cast(["detail"], pa.json_()), TYPED.format("detail", "extension<arrow.json>", "string")),
    Odd("binary", cast(["error"], pa.binary()), TYPED.format("error", "binary", "string")),
    Odd("nothing", replaced("detail", lambda values: pa.nulls(ROWS)), TYPED.format("detail", "null", "string")),
    *(
        Odd(f"milliseconds ({told})", by(coerce_timestamps="ms", allow_truncated_timestamps=True, store_schema=told),
            TYPED.format("at", "timestamp[ms, tz=UTC]", "timestamp"))
        for told in (False, True)
    ),
    *(
        Odd(f"INT96 ({told})", by(use_deprecated_int96_timestamps=True, store_schema=told),
            TYPED.format("at", "timestamp[ns]", "timestamp"))
        for told in (False, True)
    ),
    *(
        Odd(f"instants as {kind}", cast(INSTANTS, kind), TYPED.format("at", kind, "timestamp"))
        for kind in (pa.timestamp("ns", "UTC"), pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin"), pa.int64())
    ),
    *(
        Odd(f"sizes as {kind}", cast(["size_bytes"], kind), TYPED.format("size_bytes", kind, "int64"))
        for kind in (pa.uint64(), pa.int32(), pa.float64(), pa.decimal128(19), pa.duration("us"))
    ),
)  # fmt: skip
COLUMNS = (
    Odd("two of one name", changed(lambda t: t.append_column("error", t["error"])), "it has two columns of one name"),
    Odd("a doubled offset, and more", changed(_doubled), "it holds offset "),
    *(
        Odd(f"{name} besides", more(name, one("x", pa.string())), SAME.format(name.lower(), name))
        for name in ("Offset", "MESSAGE_ID", "\u212aind")
    ),
    *(
        Odd(f"{name!r} besides", more(name, one("x", pa.string())), named=MORE.format(name))
        for name in ("node.x", "offset.list.element", "day", "ſender", "", "a;{}()\n= ,", "x" * 150)
    ),
    Odd("x and X besides", changed(_two_more), named=MORE.format("x, X")),
    Odd("brotli besides", more("x", one(1, pa.int64()), compression=brotli("x")), named=MORE.format("x")),
    Odd("BYTE_STREAM_SPLIT besides", more("x", one(1, pa.float64()), use_dictionary=False, use_byte_stream_split=["x"]),
        named=MORE.format("x")),
    *(
        Odd(f"{values.type} besides", more("x", values), named=MORE.format("x"))
        for values in (
            one(1.5, pa.float16()),
            one(Decimal(1), pa.decimal256(60)),
            one(Decimal(1), pa.decimal128(5)),
            one(1, pa.time32("ms")),
            one(1, pa.time64("us")),
            one(1, pa.time64("ns")),
            one(1, pa.duration("us")),
            one(1, pa.uint64()),
            one(1, pa.int8()),
            one(1, pa.timestamp("ns", "UTC")),
            one(1, pa.date64()),
            one(True, pa.bool_()),
            one(None, pa.null()),
            one("x", pa.string()).dictionary_encode(),
            one(b"\xff", pa.binary()),
            one(b"\xff", pa.binary()).view(pa.string()),
            one(b"1234", pa.binary(4)),
            one([1], pa.list_(pa.int64())),
            one([1, 2], pa.list_(pa.int64(), 2)),
            one([1], pa.list_view(pa.int64())),
            one([("k", 1)], pa.map_(pa.string(), pa.int64())),
            one({"Offset": 1, "offset": 2}, pa.struct([("Offset", pa.int64()), ("offset", pa.int64())])),
            one("{}", pa.json_()),
            one(UUID(int=1).bytes, pa.uuid()),
        )
    ),
    Odd("what is deep besides", more("x", _deep(90)), named=MORE.format("x")),
    Odd("an encrypted column besides", secret("x", plain_footer=True), named=MORE.format("x")),
    Odd("an encrypted column", secret("error", plain_footer=True), UNREAD),
    Odd("encrypted", secret("error", plain_footer=False), UNREAD),
)  # fmt: skip
WORDS = (
    *(
        Odd(f"{text!r} as {name}", holding(name, text), UNTEXT.format(name))
        for name, text in (
            ("error", b"\xff"), ("message_id", b"\xff"), ("cause_id", b"a\xc3"), ("detail", b"\xed\xa0\x80"),
            ("event", b"\xff"), ("node", b"\xff"), ("holder", b'"\xff'), ("sender", b"\xf5\x80\x80\x80"),
        )
    ),
    Odd("NUL as error", holding("error", b"\0")),
)  # fmt: skip
COUNTS = tuple(
    Odd(f"{number} as {name}", counting(name, number), f"its {name} {number} is beyond all that is counted")
    for name, number in (("lane_seq", 2**63 - 1), ("lane_seq", -(2**63)), ("commit", 2**62), ("offset", 2**53 + 1))
)
METADATA = (
    Odd("a value that is no text", saying({b"note": b"\xff"})),
    Odd("a key that is no text", saying({b"\xff": b"note"})),
    Odd("a seal that is no text", saying({contract.KEY_SEAL.encode(): b"\xff"})),
    Odd("a writer that is no text", damaged(b"parquet-cpp-arrow", b"parquet-cpp-arro\xff")),
    Odd("more", saying({b"note": b"hello", b"": b"", b"pandas": b"{", b"iceberg.schema": b"{"})),
    Odd("Arrow's types", by(store_schema=True)),
    Odd("Arrow's types of none", saying(in_arrow([]))),
    Odd("Arrow's types of another", saying(in_arrow([("x", pa.int64())]))),
    Odd("Arrow's types of one more", saying(in_arrow([(name, pa.string()) for name in (*contract.NAMES, "x")]))),
    Odd("Arrow's types of others", saying(in_arrow([(f"{name}2", pa.string()) for name in contract.NAMES]))),
    Odd("Arrow's types, and others", saying(in_arrow([(name, pa.int64()) for name in contract.NAMES]))),
    Odd("no types of Arrow", saying({b"ARROW:schema": b"nonsense"}), UNREAD),
    Odd("no types of Spark", saying({b"org.apache.spark.sql.parquet.row.metadata": b"{nonsense"})),
    Odd(
        "an old Spark nowhere",
        saying(
            {
                b"org.apache.spark.version": b"2.4.0",
                b"org.apache.spark.timeZone": b"Nowhere/Land",
                b"org.apache.spark.legacyDateTime": b"",
            }
        ),
    ),
    Odd("another name in a group", damaged(b"\x0asize_bytes", b"\x0asize_bytez"),
        "its column size_bytes has another name in a row group"),
    Odd("a name in a group that is no text", damaged(b"\x0asize_bytes", b"\x0asize_byte\xff"), UNREAD),
)  # fmt: skip
ALL = (*LAYOUTS, *TYPES, *COLUMNS, *WORDS, *COUNTS, *METADATA)
