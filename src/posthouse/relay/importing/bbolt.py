"""A reader of bbolt files, the Go database that the public Pinch relay keeps its queue in.

In: a file that nobody writes to. Out: buckets, and their keys and values in order; or BadFile, which names
the page that is wrong. It never writes, never reads outside of the file, and never reads a page twice in one walk,
so a damaged file ends the walk and not the program.

The form of the file (little-endian, as on every machine that Go's relay runs on):

    page      id u64, flags u16 (1 branch, 2 leaf, 4 meta, 16 free list), count u16, overflow u32, then elements;
              it is 1 + overflow pages long
    meta      pages 0 and 1, written in turn: magic, version, page size, flags (u32 each), root bucket, free list,
              high-water mark, transaction (u64 each), FNV-1a of all that; of valid ones the later transaction holds
    bucket    root page u64, sequence u64; root 0: the bucket's one page follows in place
    branch    for each child: offset from here u32, key length u32, page u64
    leaf      for each key: flags u32 (1: the value is a bucket), offset from here, key length, value length u32
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import BadFile

_PAGE = struct.Struct("<QHHI")
_META = struct.Struct("<IIIIQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_BUCKET = struct.Struct("<QQ")
_BRANCH = struct.Struct("<IIQ")
_LEAF = struct.Struct("<IIII")

_MAGIC = 0xED0CDAED
_VERSION = 2
_IS_BRANCH, _IS_LEAF = 1, 2
_IS_BUCKET = 1

PAGE_SIZES = tuple(1 << power for power in range(9, 17))
"""Where the second meta page can stand: its place is the page size, which the first one may no longer tell."""
RUN_BYTES_MAX = 64 << 20
"""The longest run of pages that is read at once; a queued envelope takes a thousandth of it."""

Path = tuple[bytes, ...]


class Meta(NamedTuple):
    """What a valid meta page says."""

    page_size: int
    root: int
    sequence: int
    high_water: int
    transaction: int


class Entry(NamedTuple):
    """One key of a bucket: its value, or the bucket that it names."""

    key: bytes
    value: bytes
    bucket: Bucket | None


class _Page(NamedTuple):
    name: str
    data: bytes
    flags: int
    count: int  # type: ignore[assignment]  # a tuple's own count() is of no use here


class BoltFile:
    """A bbolt file, open for reading and locked against the program that writes it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadFile(f"cannot open {self.path}: {error.strerror}") from error
        try:
            self._lock()
            self._size_bytes = os.fstat(self._fd).st_size
            self._owner: dict[int, Path] = {}
            self.meta = self._read_meta()
        except BaseException:
            os.close(self._fd)
            raise
        self.root = Bucket(self, (), self.meta.root, self.meta.sequence, b"")

    def close(self) -> None:
        """Let go of the file and its lock."""
        os.close(self._fd)

    def __enter__(self) -> BoltFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wrong(self, what: str) -> BadFile:
        """An error that names the file."""
        return BadFile(f"{self.path}: {what}")

    def _lock(self) -> None:
        try:
            # The relay holds it exclusively for as long as it runs.
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self.wrong("another program has it open, most likely the relay: stop it first") from None
        except OSError as error:
            raise self.wrong(f"cannot be locked: {error.strerror}") from error

    def _pread(self, size_bytes: int, place: int) -> bytes:
        try:
            return os.pread(self._fd, size_bytes, place)
        except OSError as error:
            raise self.wrong(f"cannot be read: {error.strerror}") from error

    def _read_meta(self) -> Meta:
        if not self._size_bytes:
            raise self.wrong("the file is empty")
        first, foreign = self._meta_at(0)
        found = [first]
        for place in (first.page_size,) if first else PAGE_SIZES:
            second, unknown = self._meta_at(place)
            foreign = foreign and unknown
            if second is not None and second.page_size == place:
                found.append(second)
        valid = [meta for meta in found if meta is not None]
        if not valid:
            if foreign:
                raise self.wrong("this is no bbolt file")
            raise self.wrong("both meta pages are damaged; a copy of the file is needed")
        return max(valid, key=lambda meta: meta.transaction)

    def _meta_at(self, place: int) -> tuple[Meta | None, bool]:
        """The meta page at this place, if it is a valid one; and whether nothing there looks like one."""
        data = self._pread(_PAGE.size + _META.size + _CHECKSUM.size, place)
        if len(data) < _PAGE.size + _META.size + _CHECKSUM.size:
            return None, True
        body = data[_PAGE.size : _PAGE.size + _META.size]
        magic, version, page_size, _, root, sequence, _, high_water, transaction = _META.unpack(body)
        if magic != _MAGIC:
            return None, True
        (checksum,) = _CHECKSUM.unpack_from(data, _PAGE.size + _META.size)
        if checksum != _fnv1a(body) or page_size not in PAGE_SIZES:
            return None, False
        if version != _VERSION:
            raise self.wrong(f"it has format {version}; only {_VERSION} is known")
        return Meta(page_size, root, sequence, high_water, transaction), False

    def _page(self, number: int, path: Path, seen: set[int]) -> _Page:
        """A page with its overflow, checked to be in the file, and read only once in a walk and by one bucket."""
        name = f"page {number}"
        size_bytes = self.meta.page_size
        if not 2 <= number < self.meta.high_water:
            raise self.wrong(f"{name} is not one of its {self.meta.high_water}")
        place = number * size_bytes
        header = self._pread(_PAGE.size, place)
        if len(header) < _PAGE.size:
            raise self.wrong(f"{name} is missing: the file is cut off at {self._size_bytes} bytes")
        id, flags, count, overflow = _PAGE.unpack(header)
        if id != number:
            raise self.wrong(f"{name} says that it is page {id}")
        run_bytes = size_bytes * (1 + overflow)
        if run_bytes > RUN_BYTES_MAX or number + overflow >= self.meta.high_water:
            raise self.wrong(f"{name} claims to be {run_bytes} bytes long")
        for part in range(number, number + 1 + overflow):
            if part in seen or self._owner.setdefault(part, path) != path:
                raise self.wrong(f"{name} is used twice")
            seen.add(part)
        data = self._pread(run_bytes, place)
        if len(data) < run_bytes:
            raise self.wrong(f"{name} is cut off: the file ends at {self._size_bytes} bytes")
        return _Page(name, data, flags, count)


class Bucket:
    """Keys in order; a value may be a bucket again."""

    def __init__(self, file: BoltFile, path: Path, root: int, sequence: int, inline: bytes) -> None:
        self.path = path
        self.sequence = sequence
        self._file = file
        self._root = root
        self._inline = inline

    def bucket(self, name: bytes) -> Bucket | None:
        """The bucket of this name in this one."""
        for entry in self:
            if entry.key == name:
                return entry.bucket
        return None

    def __iter__(self) -> Iterator[Entry]:
        """Every key in order, until the end or BadFile."""
        file = self._file
        seen: set[int] = set()
        last: bytes | None = None
        if self._root:
            pages = [iter([self._root])]
        else:
            pages = []
            yield from self._entries(self._inline_page(), None)
        while pages:
            number = next(pages[-1], None)
            if number is None:
                pages.pop()
                continue
            page = file._page(number, self.path, seen)
            if page.flags == _IS_BRANCH:
                pages.append(iter(self._children(page)))
            elif page.flags == _IS_LEAF:
                for entry in self._entries(page, last):
                    yield entry
                    last = entry.key
            else:
                raise file.wrong(f"{page.name} is neither branch nor leaf (flags {page.flags})")

    def _inline_page(self) -> _Page:
        name = f"the page inside bucket {self.path[-1][:80]!r}" if self.path else "the root bucket"
        if len(self._inline) < _PAGE.size:
            raise self._file.wrong(f"{name} is cut off")
        _, flags, count, _ = _PAGE.unpack_from(self._inline)
        if flags != _IS_LEAF:
            raise self._file.wrong(f"{name} is no leaf (flags {flags})")
        return _Page(name, self._inline, flags, count)

    def _children(self, page: _Page) -> list[int]:
        if _PAGE.size + page.count * _BRANCH.size > len(page.data):
            raise self._file.wrong(f"{page.name} claims {page.count} children and has no room for them")
        if not page.count:
            raise self._file.wrong(f"{page.name} is a branch without children")
        return [_BRANCH.unpack_from(page.data, _PAGE.size + i * _BRANCH.size)[2] for i in range(page.count)]

    def _entries(self, page: _Page, last: bytes | None) -> Iterator[Entry]:
        data = page.data
        room = len(data)
        if _PAGE.size + page.count * _LEAF.size > room:
            raise self._file.wrong(f"{page.name} claims {page.count} keys and has no room for them")
        behind = _PAGE.size + page.count * _LEAF.size
        for i in range(page.count):
            place = _PAGE.size + i * _LEAF.size
            flags, offset, key_bytes, value_bytes = _LEAF.unpack_from(data, place)
            start = place + offset
            end = start + key_bytes + value_bytes
            if start < behind or end > room:
                raise self._file.wrong(f"{page.name}: key {i} of {page.count} lies outside of it")
            key = data[start : start + key_bytes]
            if last is not None and key <= last:
                raise self._file.wrong(f"{page.name}: key {i} of {page.count} is out of order")
            last = key
            value = data[start + key_bytes : end]
            yield Entry(key, value, self._nested(page, i, key, value) if flags & _IS_BUCKET else None)

    def _nested(self, page: _Page, i: int, key: bytes, value: bytes) -> Bucket:
        if len(value) < _BUCKET.size:
            raise self._file.wrong(f"{page.name}: the bucket of key {i} is cut off")
        root, sequence = _BUCKET.unpack_from(value)
        return Bucket(self._file, (*self.path, key), root, sequence, value[_BUCKET.size :])


def _fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
