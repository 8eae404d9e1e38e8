"""Segments from columns: what the generator writes, as fast as it can make it up.

In: columns of one range of offsets as pyarrow arrays, in part as numbers into lists of texts. Out: a
Parquet file of the contract with its chain. It never reads one, and knows nothing of what the rows mean.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..errors import MissingExtra
from ..journal import schema

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:  # pragma: no cover
    raise MissingExtra("the books need pyarrow: pip install posthouse[pipeline]") from error

GROUP_ROWS = 131_072
_DELTAS = ("offset", "at", "commit")
_STATISTICS = ("node", "offset", "at", "commit", "event", "desk", "mailbox", "message_id", "sender")
_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SCHEMA = pa.schema([pa.field(c.name, _TYPES[c.type], nullable=c.nullable) for c in schema.COLUMNS])

Array = np.ndarray[Any, np.dtype[Any]]


class Texts:
    """Texts that rows name by number; -1 is null. It keeps them as they stand in the chain too."""

    def __init__(self, values: Sequence[str]) -> None:
        self._plain: Any = pa.array([*values], pa.string())
        self._json: Any = pa.array([orjson.dumps(value).decode() for value in values], pa.string())

    def __len__(self) -> int:
        return len(self._plain)

    @classmethod
    def fixed(cls, raw: Array) -> Texts:
        """Texts of one width from their bytes, a row each; nothing in them needs an escape."""
        made = cls.__new__(cls)
        made._plain = _fixed(raw)
        quote = np.full((len(raw), 1), ord('"'), np.uint8)
        made._json = _fixed(np.concatenate([quote, raw, quote], axis=1))
        return made

    def take(self, numbers: Array) -> tuple[Any, Any]:
        """The texts of these numbers, and as they stand in the chain."""
        at = pa.array(numbers, mask=numbers < 0)
        return self._plain.take(at), pc.fill_null(self._json.take(at), "null")


def _fixed(raw: Array) -> Any:
    count, width = raw.shape
    offsets = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int64))
    made = pa.Array.from_buffers(pa.large_string(), count, [None, offsets, pa.py_buffer(np.ascontiguousarray(raw))])
    return made if count * width >= 2**31 else made.cast(pa.string())


def numbers(values: Array, null: int | None = None) -> tuple[Any, Any]:
    """Whole numbers as a column, and as they stand in the chain."""
    column = pa.array(values) if null is None else pa.array(values, mask=values == null)
    return column, pc.fill_null(column.cast(pa.string()), "null")


def constant(value: str, count: int) -> tuple[Any, Any]:
    """One text for all rows."""
    return pa.repeat(pa.scalar(value), count), pa.repeat(pa.scalar(orjson.dumps(value).decode()), count)


def blank(texts: tuple[Any, Any], where: Array) -> tuple[Any, Any]:
    """The texts with empty ones at these places."""
    mask = pa.array(where)
    return pc.if_else(mask, "", texts[0]), pc.if_else(mask, '""', texts[1])


def chain(prev: str, columns: Mapping[str, tuple[Any, Any]]) -> str:
    """The chain over rows that are given by their columns."""
    digest = hashlib.sha256(f"{prev}\n".encode())
    texts = [columns[name][1].cast(pa.large_string()) for name in schema.NAMES]
    joined = pc.binary_join_element_wise(*texts, pa.scalar(",", pa.large_string()))
    ends = [pa.scalar(text, pa.large_string()) for text in ("[", "]\n", "")]
    lines = pc.binary_join_element_wise(ends[0], joined, ends[1], ends[2])
    for piece in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
        _, offsets, data = piece.buffers()
        places = np.frombuffer(offsets, np.int64)
        digest.update(memoryview(data)[places[piece.offset] : places[piece.offset + len(piece)]])
    return digest.hexdigest()


def write_segment(
    folder: Path,
    node: str,
    first: int,
    last: int,
    columns: Mapping[str, tuple[Any, Any]],
    *,
    prev: str,
    said: str,
) -> Path:
    """Write one segment whose metadata says these hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / schema.file_name(first, last)
    temporary = folder / f".{path.name}.tmp"
    arrays = [columns[field.name][0].cast(field.type) for field in SCHEMA]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    with pq.ParquetWriter(
        str(temporary),
        SCHEMA,
        version="2.6",
        compression="zstd",
        use_dictionary=[name for name in schema.NAMES if name not in _DELTAS],
        column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        write_statistics=list(_STATISTICS),
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata(
            {
                schema.KEY_VERSION: str(schema.SCHEMA_VERSION),
                schema.KEY_NODE: node,
                schema.KEY_FIRST: str(first),
                schema.KEY_LAST: str(last),
                schema.KEY_PREV: prev,
                schema.KEY_CHAIN: said,
            }
        )
    os.rename(temporary, path)
    return path
