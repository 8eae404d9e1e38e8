"""The journal's public contract: columns, file names, metadata and the chain over rows.

In: nothing but values. Out: names, types and hashes. Other programs may write segments, and the
pipeline reads them: both need only this module, which never imports pyarrow or touches a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import orjson

from ..errors import InvalidInput
from ..mailbox.event import Event
from ..mailbox.message import Instant

SCHEMA_VERSION = 1

ColumnType = Literal["string", "int32", "int64", "timestamp"]
"""``timestamp`` is microseconds since 1970 in UTC, in Parquet TIMESTAMP_MICROS adjusted to UTC."""


class Column(NamedTuple):
    """One column of a segment."""

    name: str
    type: ColumnType
    nullable: bool
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column(
        "node",
        "string",
        False,
        "One store; equal to its folder. A restored snapshot takes a new node name, since it would reuse offsets.",
    ),
    Column("offset", "int64", False, "1, 2, 3 … per node, without gaps. Order is by offset, never by `at`."),
    Column(
        "at",
        "timestamp",
        False,
        "When the engine took the command. Not clamped: a clock that goes back is visible.",
    ),
    Column("commit", "int64", False, "The offset of the first event of the same commit."),
    Column("event", "string", False, "What happened; see Events."),
    Column(
        "desk",
        "string",
        False,
        "The policy's name: relay, outbox, inbox, inbound, outbound, or a user's own; "
        "empty where an event concerns no desk.",
    ),
    Column("mailbox", "string", False, "Whom the message is for; empty where there is none."),
    Column("lane", "string", False, "The unit of order inside a mailbox; empty where there is none."),
    Column(
        "lane_seq",
        "int64",
        False,
        "The message's number in its lane, from 1 without gaps; 0 on duplicate, refused and connections.",
    ),
    Column("message_id", "string", False, "The message's id; empty where an event concerns no message."),
    Column("kind", "string", False, "The message's type; empty where it has none."),
    Column("sender", "string", False, "Who posted the message; empty where there is none."),
    Column(
        "attempt",
        "int32",
        False,
        "The number of the attempt under way, on what begins or ends a lease; elsewhere those counted "
        "so far. A released or recalled lease reuses its number.",
    ),
    Column("holder", "string", True, "The connection, peer, worker or operator that did it."),
    Column("size_bytes", "int64", False, "The size of the body."),
    Column("reason", "string", True, "A stable code from the closed list of its event; see Events."),
    Column("error", "string", True, "The error's text as it came."),
    Column(
        "due_at",
        "timestamp",
        True,
        "When the message may be leased; on posted, retried, released and redriven.",
    ),
    Column("expires_at", "timestamp", True, "When the message passes; on posted, redriven and unparked."),
    Column("cause_id", "string", True, "The message that this one answers; relay confirmations carry none."),
    Column(
        "detail",
        "string",
        True,
        "JSON where an event needs more: `started` carries the policies in force and, after a restore, "
        '`restored_from` = {"node", "offset"}; `leased` of a batch carries {"batch": first id}; '
        '`posted` of an import carries {"posted_at": µs}, when it was posted where it came from.',
    ),
)
"""The columns in their order, which is also the order of values in the chain."""
NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)


class Row(NamedTuple):
    """One row of the journal as Python values; instants are microseconds since 1970, UTC."""

    node: str
    offset: int
    at: Instant
    commit: int
    event: str
    desk: str
    mailbox: str
    lane: str
    lane_seq: int
    message_id: str
    kind: str
    sender: str
    attempt: int
    holder: str | None
    size_bytes: int
    reason: str | None
    error: str | None
    due_at: Instant | None
    expires_at: Instant | None
    cause_id: str | None
    detail: str | None


RowValues = tuple[Any, ...]
"""The values of a Row as a plain tuple, for where rows come by the hundred thousand."""

assert Row._fields == NAMES
assert Row._fields == ("node", "offset", "at", "commit", *Event._fields[1:])


PYTHON_TYPES: Mapping[ColumnType, type] = {"string": str, "int32": int, "int64": int, "timestamp": int}
_ALLOWED = tuple(
    frozenset({PYTHON_TYPES[c.type], type(None)} if c.nullable else {PYTHON_TYPES[c.type]}) for c in COLUMNS
)
_LIMITS: Mapping[ColumnType, int] = {"int32": 2**31, "int64": 2**63, "timestamp": 2**63}


def row_fault(row: Sequence[Any]) -> str | None:
    """What is wrong with the types of a row's values, None where they fit the contract."""
    if len(row) != len(COLUMNS):
        return f"a row has {len(COLUMNS)} values, not {len(row)}"
    for column, allowed, value in zip(COLUMNS, _ALLOWED, row, strict=True):
        if type(value) not in allowed:
            return f"{column.name} at offset {row[1]} must be {column.type}, not {type(value).__name__}"
        if type(value) is int and not -_LIMITS[column.type] <= value < _LIMITS[column.type]:
            return f"{column.name} at offset {row[1]} does not fit {column.type}: {value}"
    return None


def row_values(node: str, offset: int, commit: int, event: Event) -> RowValues:
    """An event in its place as a row of the contract."""
    return (node, offset, event[0], commit, *event[1:])


# ── Files ────────────────────────────────────────────────────────────────────────────────────────

KEY_VERSION = "posthouse.schema_version"
KEY_NODE = "posthouse.node"
KEY_FIRST = "posthouse.first"
KEY_LAST = "posthouse.last"
KEY_PREV = "posthouse.prev"
KEY_CHAIN = "posthouse.chain"
KEY_SEAL = "posthouse.seal"

METADATA: tuple[tuple[str, str], ...] = (
    (KEY_VERSION, f"Version of this contract: {SCHEMA_VERSION}."),
    (KEY_NODE, "The node, equal to the column and to the folder."),
    (KEY_FIRST, "Offset of the first row, in decimal."),
    (KEY_LAST, "Offset of the last row, in decimal."),
    (KEY_PREV, "The chain of the segment before; 64 zeros in a node's first segment."),
    (KEY_CHAIN, "The chain over the rows of this segment; see Chain."),
)
"""Keys of the file metadata that make a segment verifiable; without them it is read as unverified."""

SEAL_PREFIX = "sha256="
"""The seal's value is this and the SHA-256 of the file with these 64 digits as zeros, in hex.

The chain speaks of rows; the seal also covers what is no row, such as the statistics by which readers
skip data. Posthouse writes it, other programs need not.
"""

GENESIS = "0" * 64
"""``prev`` of a node's first segment."""

NODE_PATTERN = r"[A-Za-z0-9._-]+"
NODE_LENGTH_MAX = 250  # `node=` and it must fit into a file name
OFFSET_DIGITS = 20

_NODE = re.compile(NODE_PATTERN)
_SEGMENT = re.compile(rf"([0-9]{{{OFFSET_DIGITS}}})-([0-9]{{{OFFSET_DIGITS}}})\.parquet")
_HASH = re.compile(r"[0-9a-f]{64}")


def check_node(node: object) -> None:
    """Raise InvalidInput unless ``node`` can name a store and its folder."""
    if not isinstance(node, str) or not _NODE.fullmatch(node):
        raise InvalidInput(f"a node is named by letters, digits, '.', '_' and '-' only: {node!r:.80}")
    if len(node) > NODE_LENGTH_MAX:
        raise InvalidInput(f"a node's name has at most {NODE_LENGTH_MAX} characters, not {len(node)}")


def folder_name(node: str) -> str:
    """The folder of a node inside the journal."""
    check_node(node)
    return f"node={node}"


def node_of(folder_name: str) -> str | None:
    """The node that a folder belongs to, None where it is no node's folder."""
    label, _, node = folder_name.partition("=")
    is_one = label == "node" and len(node) <= NODE_LENGTH_MAX and _NODE.fullmatch(node)
    return node if is_one else None


def file_name(first: int, last: int) -> str:
    """The name of the segment that holds these offsets, both included."""
    if not 1 <= first <= last < 2**63:
        raise InvalidInput(f"no segment has the offsets {first} to {last}")
    return f"{first:0{OFFSET_DIGITS}d}-{last:0{OFFSET_DIGITS}d}.parquet"


def offsets_of(file_name: str) -> tuple[int, int] | None:
    """First and last offset from a segment's name, None where it is no segment's name."""
    found = _SEGMENT.fullmatch(file_name)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    return (first, last) if 1 <= first <= last < 2**63 else None


def is_hash(value: str) -> bool:
    """Whether this is a SHA-256 in lower-case hex, as ``prev`` and ``chain`` are."""
    return _HASH.fullmatch(value) is not None


# ── Chain ────────────────────────────────────────────────────────────────────────────────────────


class Chain:
    """The hash over a segment's rows, fed in pieces.

    SHA-256 over ``prev`` in hex, a newline, then each row as a compact JSON array in column order
    (no spaces, non-ASCII as it is in UTF-8, times as integers of µs, null as null) and a newline.
    """

    def __init__(self, prev: str) -> None:
        if not is_hash(prev):
            raise InvalidInput(f"prev must be 64 hex digits: {prev!r:.80}")
        self._hash = hashlib.sha256(f"{prev}\n".encode())

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Go on with these rows."""
        if rows:
            # Plain tuples: orjson refuses named ones.
            self._hash.update(b"\n".join([orjson.dumps(tuple(row)) for row in rows]) + b"\n")

    def hex(self) -> str:
        """The chain up to here."""
        return self._hash.hexdigest()


def chain(prev: str, rows: Iterable[Sequence[Any]]) -> str:
    """The chain of a segment with these rows after the segment with chain ``prev``."""
    link = Chain(prev)
    remaining = iter(rows)
    while piece := list(islice(remaining, 4_096)):
        link.add(piece)
    return link.hex()
