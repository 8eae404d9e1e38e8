"""Real bbolt files, made by the real library: the recipe of the Go relay's file, and the program that follows it.

`python -m tests.interop.bolt` makes anew what stands in ``files``, so that the fast tests need no Go.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from posthouse.relay.importing.bbolt import BoltFile, Bucket
from posthouse.wire.address import address_of
from posthouse.wire.envelope import (
    Envelope,
    MessageType,
    connection_request,
    delivery_confirm,
    encrypted_message,
    queue_full,
)

HERE = Path(__file__).parent
FILES = HERE / "files"
SOURCE = HERE / "go" / "bbolt"
HOST = "relay.example:8443"
T0_NS = 1_790_000_000_000_000_000
MINUTE_NS = 60_000_000_000
DAY_NS = 1_440 * MINUTE_NS

Operation = dict[str, Any]


def agent(number: int) -> str:
    """An address; the keys of these agents are as good as any for a relay that only stores."""
    return address_of(bytes([number]) * 32, HOST)


ALICE, BOB, CAROL, DAVE, ERIN = map(agent, range(1, 6))


class Told(NamedTuple):
    """One key of a file. No value: a bucket."""

    path: tuple[bytes, ...]
    key: bytes
    value: bytes | None
    sequence: int


# Recipes


def operation(do: str, path: tuple[bytes, ...], key: bytes = b"", value: bytes = b"") -> Operation:
    return {"do": do, "path": [part.hex() for part in path], "key": key.hex(), "value": value.hex()}


def put(path: tuple[bytes, ...], key: bytes, value: bytes) -> Operation:
    return operation("put", path, key, value)


def message(id: str, sender: str, recipient: str, size_bytes: int = 100) -> bytes:
    text = (id.encode() + b" ") * (size_bytes // (len(id) + 1) + 1)
    return encrypted_message(sender, recipient, id.encode(), 1, bytes(24), text[:size_bytes], bytes(32))


def queued(recipient: str, sequence: int, sender: str, envelope: bytes, enqueued_at_ns: int) -> Operation:
    """One entry of the queue, in the form in which the relay writes it."""
    key = enqueued_at_ns.to_bytes(8, "big") + sequence.to_bytes(8, "big")
    fields = {
        "enqueued_at": enqueued_at_ns,
        "sender_addr": sender,
        "envelope": base64.b64encode(envelope).decode(),
    }
    value = json.dumps(fields, separators=(",", ":")).encode()
    return put((b"queue", recipient.encode()), key, value)


def relay_file() -> dict[str, Any]:
    """A relay's file with something of everything in it, and a past."""
    box = (b"queue", BOB.encode())
    setup = [operation("bucket", (name,)) for name in (b"queue", b"blocks", b"key_registry", b"pending_registry")]
    for_bob = [
        message("m1", ALICE, BOB),
        message("m2", ALICE, BOB, 48_000),
        message("m3", CAROL, BOB, 0),
        connection_request(DAVE, BOB, b"", 1, "hello", bytes(32), 2),
        connection_request(DAVE, BOB, b"", 1, "hello", bytes(32), 2),
        delivery_confirm(ALICE, BOB, b"m9", 1, bytes(64)),
        message("m1", ALICE, BOB),
        message("m4", ALICE, BOB),
    ]
    bob = [
        queued(BOB, n, Envelope.FromString(data).from_address, data, T0_NS + n * MINUTE_NS)
        for n, data in enumerate(for_bob, 1)
    ]
    unfit = [
        put(box, (T0_NS + 20 * MINUTE_NS).to_bytes(8, "big") + bytes(8), b'{"enqueued_at":17'),
        put(box, b"short", b"{}"),
        queued(BOB, 22, CAROL, message("spoofed", ALICE, BOB), T0_NS + 22 * MINUTE_NS),
        queued(BOB, 23, ALICE, forged(ALICE, BOB), T0_NS + 23 * MINUTE_NS),
        queued(BOB, 24, ALICE, b"\xff\xff", T0_NS + 24 * MINUTE_NS),
        queued("nobody", 25, ALICE, message("lost", ALICE, "nobody"), T0_NS + 25 * MINUTE_NS),
    ]
    carol = [queued(CAROL, n, ALICE, message(f"c{n}", ALICE, CAROL), T0_NS + n * MINUTE_NS) for n in range(1, 121)]
    dave = [queued(DAVE, n, ALICE, message(f"d{n}", ALICE, DAVE), T0_NS - DAY_NS + n) for n in range(1, 4)]
    erin = [queued(ERIN, n, ALICE, message(f"e{n}", ALICE, ERIN, 2_000), T0_NS) for n in range(1, 41)]
    facts = [
        put((b"blocks",), f"{BOB}:{DAVE}".encode(), b"1"),
        put((b"blocks",), f"{CAROL}:{ALICE}".encode(), b"1"),
        put((b"blocks",), b"nobody:nothing", b"1"),
        put((b"key_registry",), base64.b64encode(bytes([1]) * 32), ALICE.encode()),
        put((b"key_registry",), b"no key", ALICE.encode()),
        put((b"pending_registry",), b"0a1b2c3d", pending(2)),
        put((b"pending_registry",), b"00000000", b"{}"),
    ]
    return {
        "transactions": [
            setup,
            erin,
            carol[:60],
            [operation("drop", (b"queue",), ERIN.encode())],
            [*facts, *bob[:4]],
            carol[60:],
            [*bob[4:], *unfit, *dave],
            [operation("delete", (b"queue", CAROL.encode()), bytes.fromhex(carol[119]["key"]))],
        ]
    }


def forged(sender: str, recipient: str) -> bytes:
    """A notice that only a relay may send."""
    envelope = Envelope.FromString(queue_full(recipient, "full", b"m"))
    envelope.from_address, envelope.to_address = sender, recipient
    assert envelope.type == MessageType.QUEUE_FULL
    return envelope.SerializeToString()


def pending(number: int) -> bytes:
    fields = {
        "pubKeyB64": base64.b64encode(bytes([number]) * 32).decode(),
        "address": agent(number),
        "registeredAt": T0_NS // 10**9,
    }
    return json.dumps(fields).encode()


# The maker


def maker(folder: Path) -> Path:
    """The Go program, built; a test that needs it fails where there is no Go."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.fail("this test makes files with Go's bbolt: install Go 1.24 or newer", pytrace=False)
    program = folder / "bbolt"
    built = subprocess.run([go, "build", "-o", str(program), "."], cwd=SOURCE, capture_output=True, text=True)
    if built.returncode:
        pytest.fail(f"the maker of bbolt files cannot be built: {built.stderr.strip()[-400:]}", pytrace=False)
    return program


def make(program: Path, file: Path, recipe: dict[str, Any]) -> list[Told]:
    """Make a file; what the library itself reads in it."""
    done = subprocess.run(
        [str(program), str(file)], input=json.dumps(recipe), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return parse_told(done.stdout)


def parse_told(text: str) -> list[Told]:
    rows = map(json.loads, text.splitlines())
    return [
        Told(
            tuple(bytes.fromhex(part) for part in row["path"]),
            bytes.fromhex(row["key"]),
            None if row["value"] is None else bytes.fromhex(row["value"]),
            row.get("sequence", 0),
        )
        for row in rows
    ]


def read_all(file: BoltFile) -> list[Told]:
    """The same by our reader."""

    def walk(bucket: Bucket) -> list[Told]:
        rows = []
        for entry in bucket:
            if entry.bucket is None:
                rows.append(Told(bucket.path, entry.key, entry.value, 0))
            else:
                rows.append(Told(bucket.path, entry.key, None, entry.bucket.sequence))
                rows += walk(entry.bucket)
        return rows

    return walk(file.root)


def kept_file(folder: Path) -> Path:
    """The file that stands here ready-made, in a folder of its own."""
    path = folder / "pinch-relay.db"
    path.write_bytes(gzip.decompress((FILES / "pinch-relay.db.gz").read_bytes()))
    return path


def kept_told() -> list[Told]:
    """What Go's library read in it."""
    return parse_told(gzip.decompress((FILES / "pinch-relay.jsonl.gz").read_bytes()).decode())


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = maker(folder)
        done = subprocess.run(
            [str(program), str(folder / "relay.db")], input=json.dumps(relay_file()), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        for name, data in (
            ("pinch-relay.db.gz", (folder / "relay.db").read_bytes()),
            ("pinch-relay.jsonl.gz", done.stdout.encode()),
        ):
            (FILES / name).write_bytes(gzip.compress(data, 9, mtime=0))
            print(name, os.path.getsize(FILES / name))


if __name__ == "__main__":
    main()
