"""The journal's reference page, made from the contract itself.

python -m posthouse.journal.reference > docs/reference/journal.md
"""

from __future__ import annotations

import sys
from string import Template

from ..mailbox import event as ev
from . import schema

PARQUET_TYPES = {
    "string": "string",
    "int32": "int32",
    "int64": "int64",
    "timestamp": "timestamp(µs, UTC)",
}

MEANINGS = {
    ev.POSTED: "A message was stored and has its number in its lane.",
    ev.DUPLICATE: "A post was the repeat of a message that is known; nothing was stored.",
    ev.REFUSED: "A post, or something at the door, was refused; nothing was stored.",
    ev.LEASED: "A holder took the message.",
    ev.RECEIVED: "The message arrived at its holder; that finishes nothing.",
    ev.DELIVERED: "The message is finished: its recipient confirmed it, or its handler succeeded.",
    ev.RETRIED: "An attempt failed and counts; the message is tried again at `due_at`.",
    ev.RELEASED: "The message came back from its holder; the attempt does not count.",
    ev.RECALLED: "The message came back because one before it in its lane failed; uncounted too.",
    ev.UNCERTAIN: "A send was started and its outcome is unknown; it is never repeated blindly.",
    ev.DIED: "The message is finished: it could not be delivered, and an operator may redrive it.",
    ev.EXPIRED: "The message is finished: its time to live passed.",
    ev.CANCELLED: "The message is finished without delivery.",
    ev.PARKED: "The message was set aside; its lane goes on without it.",
    ev.UNPARKED: "A parked message returned to its lane for a new life.",
    ev.REDRIVEN: "A dead, expired, cancelled or uncertain message returned to its lane for a new life.",
    ev.CONNECTED: "A holder of the mailbox connected.",
    ev.DISCONNECTED: "A holder of the mailbox disconnected.",
    ev.PAUSED: "Nothing is leased from this mailbox, or from this lane of it, until it is resumed.",
    ev.RESUMED: "Leasing goes on.",
    ev.STARTED: "A process took the store: connections left open have ended; `detail` holds the policies.",
}


PAGE = Template("""\
# The journal

<!-- Made by `python -m posthouse.journal.reference`; do not edit. -->

Every state change of every message, as Parquet files. This page is a public contract, version
$version: any program may read these files, and any program may write them.

## Files

```
<journal>/node=<node>/<first>-<last>.parquet
journal/node=relay-1/$file_1
journal/node=relay-1/$file_2
```

- A node is one store; its name matches `$node_pattern`.
- `first` and `last` are the offsets of the first and the last row, padded with zeros to $digits digits.
  Offsets begin at 1; the files of a node leave no gaps and do not overlap.
- Compression is zstd. A file is written under a temporary name that begins with a dot, synced and then
  renamed: what has a segment's name is complete, and never changes again.
- Posthouse cuts between commits only. The boundaries of a segment are committed before it is written,
  so an export that is repeated after a crash gives the same files, byte for byte.

## Columns

| column | type | null | meaning |
|---|---|---|---|
$columns

Timestamps are TIMESTAMP_MICROS, adjusted to UTC.

## Events

`reason` is one of the codes of its event; an event without codes carries none.

| event | meaning | reasons |
|---|---|---|
$events

## Metadata

Key-value metadata of the file. Without these keys a segment is read, and reported as unverified.

| key | value |
|---|---|
$metadata

## Chain

`$chain` is the SHA-256, in lower-case hex, over:

1. `$prev` (64 hex digits) and a newline;
2. for each row its values as a JSON array in the order of the columns, and a newline. No spaces; text in
   UTF-8, in which only `"`, `\\` and control characters are escaped; times as integers of microseconds;
   null as `null`.

```python
import hashlib, json

def chain(prev, rows):
    digest = hashlib.sha256(prev.encode() + b"\\n")
    for row in rows:
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode() + b"\\n")
    return digest.hexdigest()
```

## Seal

The chain speaks of rows. Files that Posthouse writes carry `$seal` as well, which also covers what is no
row, such as the statistics by which readers skip data. Its value is `$seal_prefix` and the SHA-256 in hex of
the whole file with these 64 digits replaced by zeros. Other programs need not write it.
""")


def render() -> str:
    """The page in Markdown."""
    columns = [
        f"| `{c.name}` | {PARQUET_TYPES[c.type]} | {'yes' if c.nullable else 'no'} | {c.meaning} |"
        for c in schema.COLUMNS
    ]
    events = []
    for event in ev.EVENTS:
        reasons = ", ".join(f"`{reason}`" for reason in ev.REASONS.get(event, ())) or "–"
        events.append(f"| `{event}` | {MEANINGS[event]} | {reasons} |")
    return PAGE.substitute(
        version=schema.SCHEMA_VERSION,
        file_1=schema.file_name(1, 500_000),
        file_2=schema.file_name(500_001, 731_204),
        node_pattern=schema.NODE_PATTERN,
        digits=schema.OFFSET_DIGITS,
        columns="\n".join(columns),
        events="\n".join(events),
        metadata="\n".join(f"| `{key}` | {meaning} |" for key, meaning in schema.METADATA),
        chain=schema.KEY_CHAIN,
        prev=schema.KEY_PREV,
        seal=schema.KEY_SEAL,
        seal_prefix=schema.SEAL_PREFIX,
    )


if __name__ == "__main__":
    sys.stdout.write(render())
