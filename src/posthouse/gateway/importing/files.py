"""OpenClaw's queues as folders of JSON files: 2026.2 to 2026.5.

In: a state folder. Out: what stands in ``delivery-queue`` and ``session-delivery-queue``, file by file. Nothing is
changed or moved, no link is followed, and no more than ``FILE_BYTES_MAX`` is read of a file.

    <uuid>.json             waits, or a send was begun
    <uuid>.delivered        was sent; only its removal is missing
    failed/<uuid>.json      was given up
    *.tmp                   was never finished

First each file is read for its age and its hash. Then they are read again, in order of age, one at a time; a file whose
hash is another then has changed meanwhile, and is left alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...errors import InvalidInput
from ...mailbox.message import Instant
from ...mailbox.policy import Policy
from .. import strict
from . import judge
from .entry import Entry, Found, Json, Left, Queue, Result, Unfit, Verdict

FOLDERS = {Queue.OUTBOUND: "delivery-queue", Queue.SESSION: "session-delivery-queue"}
FILE_BYTES_MAX = 16 * 1_048_576
FAILED = "failed"
_PENDING, _DELIVERED, _DEAD = "pending", "delivered", "failed"
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class _Seen(NamedTuple):
    """One file as the first reading found it."""

    rank: int
    """What is looked at first: delivered, then failed, then pending."""
    at: Instant
    id: str
    path: Path
    source: str
    status: str
    digest: str
    mtime: Instant


def has_queue(folder: Path) -> bool:
    """Whether there is anything for ``read``."""
    return any((folder / name).is_dir() for name in FOLDERS.values())


def read(
    folder: Path,
    now: Instant,
    policies: Mapping[Queue, Policy],
    review_after_s: Mapping[Queue, float],
    beside: frozenset[str] | None,
) -> Iterator[Found]:
    """All files, the oldest first. ``beside``: the ids in a database of the same folder, where there is one."""
    for queue, name in FOLDERS.items():
        if os.path.lexists(folder / name):
            yield from _queue(folder, queue, now, policies[queue], review_after_s[queue], beside)


def _queue(
    folder: Path, queue: Queue, now: Instant, policy: Policy, review_after_s: float, beside: frozenset[str] | None
) -> Iterator[Found]:
    seen: list[_Seen] = []
    top = folder / FOLDERS[queue]
    for place, failed in ((top, False), (top / FAILED, True)):
        for found in _listed(folder, place, failed, now):
            if isinstance(found, Left):
                yield found
            else:
                seen.append(found)
    seen.sort(key=lambda one: (one.rank, one.at, one.source))
    taken: dict[str, str] = {}
    for one in seen:
        known = taken.get(one.id)
        if known is not None:
            if one.status == _PENDING and known == _DELIVERED:
                yield Left(one.source, Result.IGNORED, "delivered", "it was delivered: the mark beside it says so")
            elif known in (one.digest, _DELIVERED):
                yield Left(one.source, Result.IGNORED, "known", "a second copy of the same entry")
            else:
                yield Left(one.source, Result.QUARANTINED, "conflict", f"another entry with the id {one.id} differs")
            continue
        taken[one.id] = _DELIVERED if one.status == _DELIVERED else one.digest
        if beside is not None and one.id in beside:
            yield Left(one.source, Result.IGNORED, "known", "the database beside it has this entry")
            continue
        try:
            yield _entry(queue, one, now, policy, review_after_s, beside is not None)
        except Unfit as unfit:
            yield Left(one.source, Result.QUARANTINED, unfit.reason, str(unfit))


def _listed(folder: Path, place: Path, failed: bool, now: Instant) -> Iterator[_Seen | Left]:
    source = str(place.relative_to(folder))
    try:
        if place.is_symlink():
            raise Unfit("symlink", "a link, which is not followed")
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return
    except (OSError, Unfit) as error:
        yield Left(source, Result.QUARANTINED, *_why(error))
        return
    for name in names:
        path = place / name
        where = f"{source}/{_shown(name)}"
        stem, _, suffix = name.rpartition(".")
        if name == FAILED and not failed and not path.is_symlink() and path.is_dir():
            continue
        if suffix == "tmp":
            yield Left(where, Result.IGNORED, "temporary", "a temporary file that was never finished")
        elif suffix not in ("json", _DELIVERED) or (failed and suffix == _DELIVERED):
            yield Left(where, Result.IGNORED, "not_an_entry", "its name is not that of an entry")
        elif not _ID.fullmatch(stem):
            yield Left(where, Result.QUARANTINED, "malformed", "its name holds what no id holds")
        else:
            yield _first_look(path, where, stem, _DEAD if failed else _PENDING if suffix == "json" else _DELIVERED, now)


def _first_look(path: Path, where: str, id: str, status: str, now: Instant) -> _Seen | Left:
    try:
        data, mtime = _bytes(path)
        digest = hashlib.sha256(data).hexdigest()
        if status == _DELIVERED:
            # The mark alone says that it was sent, whatever is left of its contents.
            return _Seen(0, 0, id, path, where, status, digest, mtime)
        fields = _fields(data, id)
    except (OSError, Unfit) as error:
        return Left(where, Result.QUARANTINED, *_why(error))
    at = judge.instant(fields.get("enqueuedAt"), now)
    rank = 1 if status == _DEAD else 2
    return _Seen(rank, mtime if at is None else at, id, path, where, status, digest, mtime)


def _entry(queue: Queue, one: _Seen, now: Instant, policy: Policy, review_after_s: float, beside: bool) -> Entry:
    if one.status == _DELIVERED:
        return Entry(queue, one.source, one.id, one.digest, Verdict(Result.DELIVERED), None, 0, None, None, {})
    try:
        data, _ = _bytes(one.path)
    except OSError as failed:
        raise Unfit(*_why(failed)) from failed
    if hashlib.sha256(data).hexdigest() != one.digest:
        raise Unfit("changed", "it changed while it was read: stop the program that writes it")
    fields = _fields(data, one.id)
    enqueued_at = judge.instant(fields.get("enqueuedAt"), now)
    verdict = judge.outbound(fields, one.status, enqueued_at, now, review_after_s=review_after_s, beside=beside)
    error = fields.get("lastError")
    if one.status == _DEAD:
        # The program writes no time of death; the file was moved there then.
        fields = {**fields, "failedAt": one.mtime // 1_000}
    return Entry(
        queue,
        one.source,
        one.id,
        one.digest,
        verdict,
        enqueued_at,
        judge.retries(fields),
        judge.due_at(fields, enqueued_at, policy.retry, now) if verdict.result is Result.PENDING else None,
        error if isinstance(error, str) else None,
        fields,
    )


def _fields(data: bytes, id: str) -> Json:
    try:
        fields = strict.loads(data)
    except InvalidInput as error:
        raise Unfit("malformed", str(error)) from None
    if not isinstance(fields, dict):
        raise Unfit("malformed", "not a JSON object")
    if fields.get("id") != id:
        raise Unfit("malformed", f"its id is not that of its name: {str(fields.get('id'))[:80]!r}")
    return fields


def _bytes(path: Path) -> tuple[bytes, Instant]:
    """A regular file's contents and when it was last written."""
    # Not blocking: what pretends to be a file may be a pipe that nobody writes to.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise Unfit("not_a_file", "not a regular file")
        if facts.st_size > FILE_BYTES_MAX:
            raise Unfit("oversize", f"{facts.st_size} bytes; at most {FILE_BYTES_MAX} are read")
        with open(file, "rb", closefd=False) as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(file)
    if len(data) > FILE_BYTES_MAX:
        raise Unfit("oversize", f"more than {FILE_BYTES_MAX} bytes")
    return data, max(0, facts.st_mtime_ns // 1_000)


def read_file(path: Path) -> bytes:
    """The contents of a regular file that is not too large; OSError or Unfit if it is none."""
    return _bytes(path)[0]


def _why(error: OSError | Unfit) -> tuple[str, str]:
    if isinstance(error, Unfit):
        return error.reason, str(error)
    if error.errno == errno.ELOOP:
        return "symlink", "a link, which is not followed"
    return "unreadable", error.strerror or str(error)


def _shown(name: str) -> str:
    """A file's name as text, whatever bytes it is made of."""
    return os.fsencode(name).decode(errors="backslashreplace")
