"""Reading a lake without Spark and without Java: the tables that the books wrote, by the deltalake package.

In: a lake's folder or URL, the name of a table, and what to keep of it. Out: plain rows, in a fixed order.
Filters, the choice of columns and the limit are pushed down to the files: a table's log says which files can hold
such rows, and of those only the pages that do are read. It never writes, and it runs no SQL that came from outside.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BadFile, InvalidInput, MissingExtra
from . import where, withdrawn
from .schema import IDENTITY, TABLES

if TYPE_CHECKING:
    from deltalake import DeltaTable

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """How a table is read: what ``--since`` means, in which order it comes, and what of it fits on a screen."""

    time: str = ""
    """The column that --since and --until look at; '' where there is none."""
    order: tuple[str, ...] = ()
    """Columns, those with a minus downwards."""
    shown: tuple[str, ...] = ()
    """Columns for people; all of them where it is empty."""
    large: bool = False
    """Too large to be sorted as a whole: it is read part by part, the newest first."""
    begun: str = ""
    """Of rows that last from one instant to another: the column with the first, at which --until looks."""
    instead: str = ""
    """The column that is looked at where a row has no such time."""
    timeless: bool = False
    """Rows may be without any time; they belong to every span."""


VIEWS: Mapping[str, View] = {
    "books": View("window", ("window", "desk", "kind")),
    "messages": View(
        "posted_at",
        ("-posted_at", "node", "-first_offset", "message_id"),
        ("posted_at", "desk", "mailbox", "message_id", "kind", "outcome", "reason", "attempts", "latency"),
        instead="finished_at",
        timeless=True,
        large=True,
    ),
    "attempts": View(
        "started_at",
        ("-started_at", "node", "-lease_offset"),
        ("started_at", "desk", "mailbox", "message_id", "life", "attempt", "holder", "ended_at", "ended", "reason"),
        large=True,
    ),
    "events": View(
        "at",
        ("-at", "node", "-offset"),
        ("node", "offset", "at", "event", "desk", "mailbox", "message_id", "attempt", "holder", "reason", "error"),
        large=True,
    ),
    "anomalies": View(
        "at",
        ("kind", *IDENTITY, "offsets"),
        ("kind", "node", "desk", "mailbox", "message_id", "at", "offsets", "detail"),
        timeless=True,
    ),
    "latency": View(
        "window",
        ("window", "desk", "kind", "live"),
        ("window", "desk", "kind", "live", "count", "p50", "p95", "p99", "max"),
    ),
    "depth": View("window", ("window", "node", "desk", "mailbox")),
    "availability": View("day", ("day", "node", "desk", "mailbox")),
    "deadletters": View("last_at", ("-count", "desk", "error"), begun="first_at"),
    "outages": View("window", ("window", "desk", "mailbox")),
    "replays": View("", ("desk", "policy")),
    "segments": View(
        "last_at",
        ("node", "first", "name"),
        ("node", "name", "first", "last", "events", "first_at", "last_at", "state", "faults"),
        begun="first_at",
        timeless=True,
    ),
    "restores": View("at", ("at", "node")),
}
_KINDS = {
    "string": "text",
    "long": "whole",
    "integer": "whole",
    "short": "whole",
    "byte": "whole",
    "double": "number",
    "float": "number",
    "boolean": "switch",
    "timestamp": "instant",
    "timestamp_ntz": "instant",
    "date": "date",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a table."""

    since: int | None = None
    until: int | None = None
    """Microseconds since 1970; the first belongs to it, the second does not."""
    equal: Mapping[str, str] = field(default_factory=dict)
    """Columns and the text that they must hold."""
    where: str = ""
    columns: tuple[str, ...] = ()
    limit: int | None = None


class Lake:
    """The tables below one folder or URL."""

    def __init__(self, place: str) -> None:
        if not place.strip():
            raise InvalidInput("the lake's folder or URL is empty")
        self.place = place.rstrip("/") or place
        self._open: dict[str, DeltaTable | None] = {}
        self._readers: dict[str, withdrawn.Reader] = {}

    def tables(self) -> list[str]:
        """The tables that are there."""
        return [name for name in VIEWS if self.has(name)]

    def has(self, name: str) -> bool:
        """Whether the table is there."""
        return self._table(name) is not None

    def columns(self, name: str) -> dict[str, str]:
        """A table's columns with what each holds: text, whole, number, switch, instant, date or list."""
        found = {}
        for each in self._need(name).schema().fields:
            found[each.name] = _KINDS.get(str(getattr(each.type, "type", "")), "list")
        return found

    def version(self, name: str) -> int:
        """The table's version: it grows with every change."""
        return int(self._need(name).version())

    def written_at(self, name: str) -> str | None:
        """When the table was last changed, as ISO text; None where its record does not say."""
        last = self._need(name).history(1)
        at_ms = last[0].get("timestamp") if last else None
        return None if at_ms is None else _plain(datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC))

    def parts(self, name: str) -> list[str]:
        """The parts into which a table is cut, the newest first; none where it is not."""
        table = self._need(name)
        names = table.metadata().partition_columns
        # "open" sorts behind every date, so what is unfinished comes first.
        found = {str(each[column]) for each in table.partitions() for column in names if each[column] is not None}
        return sorted(found, reverse=True)

    def rows(self, name: str, selection: Selection = Selection()) -> Iterator[Row]:  # noqa: B008
        """The selected rows, with plain values: instants and dates as ISO text."""
        types = self.columns(name)
        view = VIEWS[name]
        conditions = _conditions(name, view, selection, types)
        wanted = list(dict.fromkeys(selection.columns)) or list(types)
        for column in wanted:
            _known(name, column, types)
        ordered = selection.limit is not None or not view.large
        order = [column for column in view.order if ordered and column.removeprefix("-") in types]
        reader = self._reader(name)
        told = [column for column in reader.told if column not in wanted]
        select = ", ".join(where.name(column) for column in (*wanted, *told))
        left = selection.limit
        for part in self._parts(name, types, view, selection):
            for row in self._ask(name, select, [*conditions, *part], order, left):
                yield {column: row[column] for column in wanted} if told else row
                if left is not None:
                    left -= 1
            if left == 0:
                return

    def count(self, name: str, selection: Selection = Selection()) -> int:  # noqa: B008
        """How many rows are selected."""
        conditions = _conditions(name, VIEWS[name], selection, self.columns(name))
        (row,) = self._query(name, "SELECT count(*) AS n FROM t" + _where(conditions))
        return int(row["n"])

    def totals(self, name: str, by: Sequence[str], selection: Selection = Selection()) -> list[Row]:  # noqa: B008
        """Rows counted by some columns, the most frequent first."""
        types = self.columns(name)
        for column in by:
            _known(name, column, types)
        conditions = _conditions(name, VIEWS[name], selection, types)
        names = ", ".join(where.name(column) for column in by)
        sql = f"SELECT {names}, count(*) AS n FROM t" + _where(conditions)
        return list(self._query(name, f"{sql} GROUP BY {names} ORDER BY n DESC, {names}"))

    def sums(
        self,
        name: str,
        by: Sequence[str],
        of: Sequence[str],
        selection: Selection = Selection(),  # noqa: B008
    ) -> list[Row]:
        """Columns added up by some others, in their order."""
        types = self.columns(name)
        for column in (*by, *of):
            _known(name, column, types)
        conditions = _conditions(name, VIEWS[name], selection, types)
        names = ", ".join(where.name(column) for column in by)
        added = ", ".join(f"sum({where.name(column)}) AS {where.name(column)}" for column in of)
        sql = f"SELECT {names}, {added} FROM t" + _where(conditions)
        return list(self._query(name, f"{sql} GROUP BY {names} ORDER BY {names}"))

    def top(
        self,
        name: str,
        by: Sequence[str],
        of: Sequence[str],
        order: Sequence[str],
        selection: Selection = Selection(),  # noqa: B008
        *,
        most: Sequence[str] = (),
    ) -> list[Row]:
        """Columns added up by some others, the first groups in an order of the sums, and those that are equal by name.

        ``most`` adds, under the name of its first column, the most that a row of the group has of it. Where a row has
        nothing there, or 0, the next column of ``most`` counts for it. It is 0 at least.
        """
        ordered = ", ".join(map(_ordered, (*order, *by)))
        sql = f"SELECT * FROM ({self._grouped(name, by, of, selection, most)}) ORDER BY {ordered}"
        return list(self._query(name, sql + ("" if selection.limit is None else f" LIMIT {selection.limit:d}")))

    def tenths(
        self,
        name: str,
        by: Sequence[str],
        part: str,
        whole: str,
        selection: Selection = Selection(),  # noqa: B008
    ) -> dict[int, int]:
        """How many groups there are of each number of tenths, rounded down, that ``part`` makes of ``whole``.

        Both are added up by group first. Of nothing everything is 0 tenths.
        """
        tenth = f"coalesce(10 * {where.name(part)} / nullif({where.name(whole)}, 0), 0)"
        shares = f"SELECT {tenth} AS tenth FROM ({self._grouped(name, by, (part, whole), selection)})"
        found = self._query(name, f"SELECT tenth, count(*) AS n FROM ({shares}) GROUP BY tenth ORDER BY tenth")
        return {int(row["tenth"]): int(row["n"]) for row in found}

    def _grouped(
        self, name: str, by: Sequence[str], of: Sequence[str], selection: Selection, most: Sequence[str] = ()
    ) -> str:
        """A query for columns added up by some others, and for the most of one; never null."""
        types = self.columns(name)
        for column in by:
            _known(name, column, types)
        asked = [f"coalesce(sum({_amount(name, column, types)}), 0) AS {where.name(column)}" for column in of]
        if most:
            there = ", ".join(f"nullif({_amount(name, column, types)}, 0)" for column in most)
            value = f"coalesce({there}, 0)"
            asked.append(f"max(CASE WHEN {value} > 0 THEN {value} ELSE 0 END) AS {where.name(most[0])}")
        names = ", ".join(where.name(column) for column in by)
        conditions = _conditions(name, VIEWS[name], selection, types)
        return f"SELECT {names}, {', '.join(asked)} FROM t{_where(conditions)} GROUP BY {names}"

    def message(self, id: str, equal: Mapping[str, str] | None = None) -> list[Row]:
        """Every message with this id, in order: its row with its attempts, anomalies and events.

        ``equal`` tells apart messages of the same id: desk, mailbox, sender, node.
        """
        named = {"message_id": id, **(equal or {})}
        found = list(self.rows("messages", Selection(equal=named)))
        found.sort(key=lambda row: (row["posted_at"] or "", row["node"], row["first_offset"]))
        findings = self._optional("anomalies", Selection(equal=named))
        for row in found:
            whose = {name: row[name] for name in IDENTITY}
            row["anomalies"] = [each for each in findings if all(each[name] == value for name, value in whose.items())]
            # Offsets lead straight to the files; an id alone would have to be looked for in all of them.
            offsets = [row["first_offset"], row["last_offset"]]
            offsets += [offset for each in row["anomalies"] for offset in each["offsets"] or ()]
            row["events"] = self._events(whose, min(offsets), max(offsets))
            between = f"lease_offset >= {min(offsets)} and lease_offset <= {max(offsets)}"
            # Those of a life that was over may lie in the day's part though the message is open again.
            leases = [
                each
                for part in {row["part"], *(event["at"][:10] for event in row["events"][:1])}
                for each in self._optional("attempts", Selection(equal={**whose, "part": part}, where=between))
                if each["generation"] == row["generation"]
            ]
            row["attempts_made"] = sorted(leases, key=lambda lease: int(lease["lease_offset"]))
        known = {_identity(each) for row in found for each in row["anomalies"]}
        rest = [each for each in findings if _identity(each) not in known]
        if rest and not found:
            # A finding may name what no message is known of, such as a cause that was answered twice.
            found.append({"message_id": id, "anomalies": rest, "events": [], "attempts_made": []})
        for each in rest:
            # The desk of such a finding is that of the answers.
            same = [row for row in found if row.get("node") == each["node"]] or found
            if each not in same[0]["anomalies"]:
                same[0]["anomalies"].append(each)
        return found

    def _events(self, whose: Mapping[str, str], first: int, last: int) -> list[Row]:
        """The events of a message between two offsets of the books, in order; ``place`` is their offset there.

        Where its store was restored, some were written by another node, under offsets of that node's own.
        """
        found = []
        for node, shift, end in self._written_by(whose["node"]):
            low, high = max(first - shift, 1), last - shift if end is None else min(last - shift, end)
            if low <= high:
                between = f"offset >= {low} and offset <= {high}"
                for event in self._optional("events", Selection(equal={**whose, "node": node}, where=between)):
                    found.append({**event, "place": event["offset"] + shift})
        return sorted(found, key=lambda event: int(event["place"]))

    def _written_by(self, node: str) -> list[tuple[str, int, int | None]]:
        """The nodes whose events are in the books as this one's, with what is added to their offsets and their last."""
        known = [row for row in self._optional("restores", Selection(equal={"known_as": node})) if row["node"] != node]
        end = next((row["from_offset"] for row in known if row["from_node"] == node), None)
        return [(node, 0, end), *((row["node"], row["shift"], row["last"]) for row in known)]

    def _optional(self, name: str, selection: Selection) -> list[Row]:
        return list(self.rows(name, selection)) if self.has(name) else []

    def _parts(self, name: str, types: Mapping[str, str], view: View, selection: Selection) -> Iterator[list[str]]:
        """Conditions that cut a large table into parts, the newest first: most answers end with the first ones."""
        table = self._need(name)
        partitioned = list(table.metadata().partition_columns)
        # Ids have filters in their files: one question to all of them is the shortest.
        if not view.large or len(partitioned) != 1 or "message_id" in selection.equal:
            yield []
            return
        column = partitioned[0]
        values = self.parts(name)
        done, size = 0, 1 if selection.limit is not None else 16
        while done < len(values):
            taken = values[done : done + max(size, done)]
            as_sql = [
                f"arrow_cast({where.literal(value)}, 'Date32')" if types[column] == "date" else where.literal(value)
                for value in taken
            ]
            yield [f"{where.name(column)} IN ({', '.join(as_sql)})"]
            done += len(taken)

    def _ask(self, name: str, select: str, conditions: list[str], order: list[str], limit: int | None) -> Iterator[Row]:
        """So many rows of the table's source that hold, or all of them."""
        reader = self._reader(name)
        sql = f"SELECT {select} FROM {reader.source}"
        if limit is None or not reader.spare:
            asked = self._query(name, sql + self._rest(name, conditions, order, limit))
            yield from (row for row in asked if not reader.is_gone(row))
            return
        # Hardly ever is one of the first rows gone.
        for spare in (min(_SPARE, reader.spare), reader.spare):
            found = list(self._query(name, sql + self._rest(name, conditions, order, limit + spare)))
            kept = [row for row in found if not reader.is_gone(row)]
            if len(kept) >= limit or len(found) < limit + spare:
                break
        yield from kept[:limit]

    def _rest(self, name: str, conditions: list[str], order: list[str], limit: int | None) -> str:
        """A query's conditions, order and limit.

        Of a large table the first rows are found by their time alone: then the other columns are read of hardly more
        than those, and not of all rows for which the conditions hold.
        """
        time = VIEWS[name].time
        if limit and VIEWS[name].large and order[:1] == [f"-{time}"]:
            first = f"{_where(conditions)} ORDER BY {_ordered(order[0])} LIMIT {limit:d}"
            times = f"SELECT CAST({where.name(time)} AS BIGINT) AS at FROM {self._reader(name).source}{first}"
            (found,) = self._query(name, f"SELECT count(at) AS n, min(at) AS last FROM ({times})")
            if found["n"] == limit:
                conditions = [*conditions, f"{where.name(time)} >= {where.instant(found['last'])}"]
        by = " ORDER BY " + ", ".join(map(_ordered, order)) if order else ""
        return _where(conditions) + by + ("" if limit is None else f" LIMIT {limit:d}")

    def _query(self, name: str, sql: str) -> Iterator[Row]:
        for batch in self._batches(name, sql):
            names = batch.schema.names
            columns = [map(_plain, batch.column(column).to_pylist()) for column in names]
            for values in zip(*columns, strict=True):
                yield dict(zip(names, values, strict=True))

    def _batches(self, name: str, sql: str) -> Iterator[Any]:
        """What a query gives, piece by piece. No pyarrow: to load it takes longer than most answers."""
        reader = self._reader(name)
        try:
            yield from reader.execute(sql)
        # The reader has no exception of its own: whatever it is, the file is to blame.
        except Exception as error:
            raise BadFile(f"the table {name} of {self.place} cannot be read: {_first_line(error)}") from error

    def _reader(self, name: str) -> withdrawn.Reader:
        if name not in self._readers:
            table = self._need(name)
            gone = self._opened(withdrawn.NAME) if name in withdrawn.TOLD else None
            self._readers[name] = withdrawn.Reader(name, table, gone)
        return self._readers[name]

    def _need(self, name: str) -> DeltaTable:
        table = self._table(name)
        if table is None:
            have = self.tables()
            if not have:
                raise BadFile(f"there are no books in {self.place}: `posthouse books run` writes them")
            raise BadFile(f"{self.place} has no table {name} yet; it has {', '.join(have)}")
        return table

    def _table(self, name: str) -> DeltaTable | None:
        if name not in VIEWS:
            near = difflib.get_close_matches(name, VIEWS, n=1)
            hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(VIEWS)
            raise InvalidInput(f"no table {name[:60]!r}; {hint}")
        return self._opened(name)

    def _opened(self, name: str) -> DeltaTable | None:
        if name not in self._open:
            try:
                from deltalake import DeltaTable
                from deltalake.exceptions import DeltaError, TableNotFoundError
            except ModuleNotFoundError as error:
                raise MissingExtra(f"reading the books needs {error.name}: pip install posthouse[pipeline]") from error
            try:
                self._open[name] = DeltaTable(f"{self.place}/{name}")
            except TableNotFoundError:
                self._open[name] = None
            except (DeltaError, OSError) as error:
                raise BadFile(f"the table {name} of {self.place} cannot be read: {_first_line(error)}") from error
        return self._open[name]


_HOUR = 3_600_000_000
_SPARE = 10
"""Rows beyond those that are wanted, in case that some of them are gone."""


def _conditions(name: str, view: View, selection: Selection, types: Mapping[str, str]) -> list[str]:
    found = []
    for column, text in selection.equal.items():
        _known(name, column, types)
        found.append(f"({where.name(column)} = {where.literal(text)})")
    if selection.since is not None or selection.until is not None:
        if view.time not in types:
            raise InvalidInput(f"the table {name} has no time by which to choose")
        if selection.since is not None and selection.until is not None and selection.since >= selection.until:
            raise InvalidInput("since must be before until")
        is_date = types[view.time] == "date"
        # Hours, days and whatever else lasts belong to it as soon as a part of them does.
        if selection.since is not None:
            since = selection.since - selection.since % _HOUR if view.time == "window" else selection.since
            found.append(_timed(view, view.time, f">= {where.date(since) if is_date else where.instant(since)}"))
        if selection.until is not None:
            until = selection.until
            before = f"<= {where.date(until - 1)}" if is_date else f"< {where.instant(until)}"
            found.append(_timed(view, view.begun or view.time, before))
    if selection.where.strip():
        found.append(where.condition(selection.where, types))
    return found


def _timed(view: View, column: str, compared: str) -> str:
    """Whether a row's time compares so, or that which stands for it, or there is none."""
    if not view.timeless:
        return f"({where.name(column)} {compared})"
    untold = f"{where.name(column)} IS NULL"
    if view.instead:
        instead = where.name(view.instead)
        untold = f"({untold} AND ({instead} {compared} OR {instead} IS NULL))"
    # Not coalesced: by columns as they are, whole files and pages are left out.
    return f"({where.name(column)} {compared} OR {untold})"


def _where(conditions: Sequence[str]) -> str:
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def _known(name: str, column: str, types: Mapping[str, str]) -> None:
    if column not in types:
        raise InvalidInput(f"the table {name} has no column {column[:60]}; it has {', '.join(types)}")


def _amount(name: str, column: str, types: Mapping[str, str]) -> str:
    """A column to reckon with, in SQL. A lake may lack columns that came later; it has 0 of them."""
    if column in TABLES[name].names and column not in types:
        return "0"
    _known(name, column, types)
    return where.name(column)


def _identity(finding: Row) -> tuple[Any, ...]:
    return (*(finding[name] for name in ("kind", *IDENTITY)), tuple(finding["offsets"] or ()))


def _ordered(column: str) -> str:
    return where.name(column.removeprefix("-")) + (" DESC NULLS LAST" if column.startswith("-") else " ASC NULLS FIRST")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            # A map.
            return {str(key): _plain(each) for key, each in value}
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
