"""Statements over many rows whose values are bound, not written into the statement.

In: the rows' values, one after the other. Out: a few statements, whatever the number of rows, each of a size that comes
again, so that it is prepared once. To bind values costs a third of having SQLite find them in JSON.
"""

from __future__ import annotations

import functools
from typing import Any

SIZES = (1, 4, 16, 32, 64, 128, 256)
"""Rows of the statements that take any number: what is missing to the next size is filled with NULL."""
WHOLE_SIZES = (128, 64)
"""Rows of the statements that insert many without such filling, which costs a third less. Not smaller: beside a busy
event loop the number of statements counts."""


def insert(db: Any, into: str, columns: int, values: list[Any], otherwise: str = "") -> None:
    """Insert rows, of which none begins with NULL; ``otherwise`` says what to do with those that are there."""
    begin, end = 0, len(values)
    for size in WHOLE_SIZES:
        step = size * columns
        while end - begin >= step:
            db.execute(_insert_sql(into, columns, size, otherwise), values[begin : begin + step])
            begin += step
    if begin < end:
        part = values[begin:]
        size = _fill(part, columns)
        db.execute(_insert_few_sql(into, columns, size, otherwise), part)


def select(db: Any, query: str, columns: int, values: list[Any]) -> list[tuple[Any, ...]]:
    """The answers to a query that joins the rows in the place of ``{rows}``; one that is NULL must match nothing."""
    found: list[tuple[Any, ...]] = []
    most = SIZES[-1] * columns
    for begin in range(0, len(values), most):
        part = values[begin : begin + most]
        size = _fill(part, columns)
        found += db.execute(_select_sql(query, columns, size), part).fetchall()
    return found


def _fill(part: list[Any], columns: int) -> int:
    """Fill with NULL up to the next size; return it."""
    size = next(size for size in SIZES if size * columns >= len(part))
    part.extend([None] * (size * columns - len(part)))
    return size


@functools.cache
def _insert_sql(into: str, columns: int, size: int, otherwise: str) -> str:
    return f"INSERT {into} VALUES {_rows(columns, size)}{otherwise}"


@functools.cache
def _insert_few_sql(into: str, columns: int, size: int, otherwise: str) -> str:
    return f"INSERT {into} SELECT * FROM (VALUES {_rows(columns, size)}) WHERE column1 IS NOT NULL{otherwise}"


@functools.cache
def _select_sql(query: str, columns: int, size: int) -> str:
    return query.replace("{rows}", f"(VALUES {_rows(columns, size)})")


def _rows(columns: int, size: int) -> str:
    return ",".join([f"({','.join('?' * columns)})"] * size)
