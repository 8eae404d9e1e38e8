"""OpenClaw's queues in its SQLite database: 2026.6 and later.

In: ``state/openclaw.sqlite`` of a state folder. Out: the rows of its two queues, the oldest first. The database and its
log are copied before they are read, so that the original is not touched, not even by a lock; if one of them changed
meanwhile, the program is still running, and nothing is taken.

    delivery_queue_entries     what is to be sent, and turns for its own agent; namespaces by queue_name
    channel_ingress_events     what came from channels
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import BadFile, InvalidInput
from ...mailbox.message import Instant
from ...mailbox.policy import Policy
from .. import strict
from . import judge
from .entry import Entry, Found, Json, Left, Queue, Result, Unfit, Verdict

PATH = "state/openclaw.sqlite"
DELIVERY, INGRESS = "delivery_queue_entries", "channel_ingress_events"
QUEUES = {"outbound": Queue.OUTBOUND, "outbound-prepared-v1": Queue.OUTBOUND, "session": Queue.SESSION}
_UNPREPARED = ("outbound-legacy-preparing-v1", "outbound-preparing-v1", "outbound-prepared-migration-v1")
"""Entries that another part of the program had not finished with."""
_NO_MESSAGES = ("outbound-media-staging",)
_DELIVERY_NEEDS = {"queue_name", "id", "status", "entry_json", "enqueued_at"}
_INGRESS_NEEDS = {"queue_name", "event_id", "channel_id", "account_id", "status", "payload_json", "received_at"}


class Database:
    """A copy of the database, open for reading; close it."""

    def __init__(self, folder: Path) -> None:
        self._stack = contextlib.ExitStack()
        try:
            copy = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="posthouse-import-"))) / "copy"
            _copy(folder / PATH, copy)
            self._connection = self._stack.enter_context(
                contextlib.closing(sqlite3.connect(f"file:{copy}?mode=rw", uri=True, isolation_level=None))
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.text_factory = bytes
            self._columns = {table: self._columns_of(table) for table in (DELIVERY, INGRESS)}
            if not self._columns[DELIVERY] and not self._columns[INGRESS]:
                raise BadFile(f"{PATH} has neither {DELIVERY} nor {INGRESS}: it is no database of OpenClaw")
        except (sqlite3.Error, OSError) as error:
            self._stack.close()
            raise BadFile(f"{PATH} cannot be read: {error}") from error
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Remove the copy."""
        self._stack.close()

    def _columns_of(self, table: str) -> set[str]:
        return {_text(row["name"]) for row in self._connection.execute(f"PRAGMA table_info({table})")}

    def delivery_ids(self) -> frozenset[str]:
        """The ids of everything that is to be sent."""
        if "id" not in self._columns[DELIVERY]:
            return frozenset()
        return frozenset(_text(row["id"]) for row in self._rows(f"SELECT id FROM {DELIVERY}"))

    def read(
        self, now: Instant, policies: Mapping[Queue, Policy], review_after_s: Mapping[Queue, float]
    ) -> Iterator[Found]:
        """All rows. Damage is told as Left, and what is before it was read."""
        for table, needs, order, take in (
            (DELIVERY, _DELIVERY_NEEDS, "enqueued_at", self._delivery),
            (INGRESS, _INGRESS_NEEDS, "received_at", self._ingress),
        ):
            columns = self._columns[table]
            if not columns:
                continue
            if not needs <= columns:
                missing = ", ".join(sorted(needs - columns))
                yield Left(f"{PATH}#{table}", Result.QUARANTINED, "unsupported", f"the table lacks columns: {missing}")
                continue
            try:
                for row in self._rows(f"SELECT * FROM {table} ORDER BY {order}, rowid"):
                    yield take(row, now, policies, review_after_s)
            except BadFile as error:
                yield Left(f"{PATH}#{table}", Result.QUARANTINED, "unreadable", str(error))

    def _rows(self, query: str) -> Iterator[sqlite3.Row]:
        try:
            yield from self._connection.execute(query)
        except sqlite3.Error as error:
            raise BadFile(f"{PATH} cannot be read further: {error}") from error

    def _delivery(
        self, row: sqlite3.Row, now: Instant, policies: Mapping[Queue, Policy], review_after_s: Mapping[Queue, float]
    ) -> Found:
        name, id = _lenient(row["queue_name"]), _lenient(row["id"])
        source = f"{PATH}#{DELIVERY}/{name}/{id}"
        if name in _NO_MESSAGES:
            return Left(source, Result.IGNORED, "not_an_entry", "it holds no message")
        queue = Queue.OUTBOUND if name in _UNPREPARED else QUEUES.get(name)
        try:
            if queue is None:
                raise Unfit("unsupported", f"a queue that is not known: {name[:80]!r}")
            plain = _plain(row)
            status = _str(plain, "status")
            fields = _object(plain, "entry_json")
            if fields.get("id", id) != id or not id:
                raise Unfit("malformed", f"its id is not that of its row: {str(fields.get('id'))[:80]!r}")
            for column, field in (
                ("recovery_state", "recoveryState"),
                ("platform_send_started_at", "platformSendStartedAt"),
                ("retry_count", "retryCount"),
                ("last_attempt_at", "lastAttemptAt"),
                ("last_error", "lastError"),
                ("failed_at", "failedAt"),
                ("channel", "channel"),
                ("target", "to"),
                ("account_id", "accountId"),
                ("session_key", "sessionKey"),
                ("entry_kind", "kind"),
            ):
                # The columns are written with the JSON; where that lacks a field, they have it.
                if plain.get(column) is not None and fields.get(field) is None:
                    fields[field] = plain[column]
            enqueued_at = judge.instant(plain["enqueued_at"], now)
            verdict = judge.outbound(fields, status, enqueued_at, now, review_after_s=review_after_s[queue])
            if name in _UNPREPARED and verdict.result is Result.PENDING:
                verdict = Verdict(Result.REVIEW, "the program was still preparing it")
            error = fields.get("lastError")
            due_at = judge.due_at(fields, enqueued_at, policies[queue].retry, now)
            return Entry(
                queue,
                source,
                id,
                _digest(plain),
                verdict,
                enqueued_at,
                judge.retries(fields),
                due_at if verdict.result is Result.PENDING else None,
                error if isinstance(error, str) else None,
                fields,
            )
        except Unfit as unfit:
            return Left(source, Result.QUARANTINED, unfit.reason, str(unfit))

    def _ingress(
        self, row: sqlite3.Row, now: Instant, policies: Mapping[Queue, Policy], review_after_s: Mapping[Queue, float]
    ) -> Found:
        id = _lenient(row["event_id"])
        source = f"{PATH}#{INGRESS}/{_lenient(row['queue_name'])}/{id}"
        try:
            plain = _plain(row)
            status = _str(plain, "status")
            received_at = judge.instant(plain["received_at"], now)
            verdict = judge.ingress(status, received_at, now, review_after_s[Queue.INGRESS])
            payload = _json(plain, "payload_json")
            fields: Json = {
                "channel": _str(plain, "channel_id"),
                "accountId": _str(plain, "account_id"),
                "payload": payload,
                **{
                    field: plain[column]
                    for column, field in (
                        ("lane_key", "laneKey"),
                        ("failed_reason", "failedReason"),
                        ("failed_at", "failedAt"),
                        ("claimed_at", "claimedAt"),
                        ("completed_at", "completedAt"),
                    )
                    if plain.get(column) is not None
                },
            }
            if plain.get("metadata_json") is not None:
                fields["metadata"] = _json(plain, "metadata_json")
            attempts, error = plain.get("attempts"), plain.get("last_error")
            return Entry(
                Queue.INGRESS,
                source,
                id,
                _digest(plain),
                verdict,
                received_at,
                attempts if isinstance(attempts, int) and attempts > 0 else 0,
                None,
                error if isinstance(error, str) else None,
                fields,
            )
        except Unfit as unfit:
            return Left(source, Result.QUARANTINED, unfit.reason, str(unfit))


def _copy(path: Path, copy: Path) -> None:
    """The file and its log, as they are at one moment. The index of the log is made anew by whoever opens it."""
    files = [(path, copy), (path.with_name(path.name + "-wal"), copy.with_name(copy.name + "-wal"))]
    before = [_stamp(source) for source, _ in files]
    if before[0] is None:
        raise BadFile(f"{PATH} is no file that can be read")
    for (source, target), stamp in zip(files, before, strict=True):
        if stamp is not None:
            shutil.copyfile(source, target, follow_symlinks=False)
    if [_stamp(source) for source, _ in files] != before:
        raise BadFile(f"{PATH} changed while it was copied: stop the program that writes it, and try again")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    if not path.is_file() or path.is_symlink():
        raise BadFile(f"{path.name} is a link or no regular file, and is not followed")
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _plain(row: sqlite3.Row) -> Json:
    """The columns with their texts decoded."""
    plain: Json = {}
    for name in row.keys():  # noqa: SIM118 (a Row iterates over its values)
        value = row[name]
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise Unfit("malformed", f"{name} is not UTF-8") from None
        plain[name] = value
    return plain


def _digest(plain: Json) -> str:
    # Without the column that a running program touches again and again.
    kept = sorted((name, value) for name, value in plain.items() if name != "updated_at")
    return hashlib.sha256(repr(kept).encode()).hexdigest()


def _str(plain: Json, name: str) -> str:
    value = plain.get(name)
    if not isinstance(value, str) or not value:
        raise Unfit("malformed", f"{name} is no text")
    return value


def _json(plain: Json, name: str) -> Any:
    try:
        return strict.loads(_str(plain, name))
    except InvalidInput as error:
        raise Unfit("malformed", f"{name}: {error}") from None


def _object(plain: Json, name: str) -> Json:
    value = _json(plain, name)
    if not isinstance(value, dict):
        raise Unfit("malformed", f"{name} is not a JSON object")
    return value


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _lenient(value: Any) -> str:
    """A name for the report, whatever the row holds."""
    return value.decode(errors="backslashreplace")[:300] if isinstance(value, bytes) else str(value)[:300]
