"""Scratch: what several tables, of a batch or derived, are made of; written once and read back.

In: DataFrames. Out: the same rows as a DataFrame that begins at a file, so that plans stay small whatever came before.
It lies beside the tables, is emptied before and after each batch and each making of derived tables, and nothing in it
outlives one. Each has its own folder: what a killed process left at work on a server may still write to another. Where
no lock keeps others off, the folder of one who may be at work is left alone: rows that he has kept and reads back while
they are removed would be too few. Its name says what it is for; once that is committed, nothing that he makes counts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import uuid
from typing import TYPE_CHECKING

from . import bronze
from .ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER = "_scratch"


BUSY = 8
"""Tasks that rows are not joined into fewer than: so many cores have work."""


def together(frame: DataFrame, joined: int = 1) -> DataFrame:
    """The same rows in no more pieces than a shuffle makes: what is put together of many frames has many more.

    Of a large batch so many of those pieces are ``joined`` into one.
    """
    pieces = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or "200")
    return frame.coalesce(max(pieces // joined, min(pieces, BUSY)))


class Scratch:
    """The scratch of a batch, or of the derived tables that are made after it."""

    def __init__(self, ledger: Ledger, batch: int, *, derived: bool = False) -> None:
        self._place = ledger.table(FOLDER)
        self._locks = ledger.locks
        self._for = f"{batch:012d}-{derived:d}"
        self._own = f"{self._for}-{uuid.uuid4().hex}"
        self._numbers = itertools.count(1)
        self._paths: dict[int, tuple[DataFrame, str]] = {}

    def keep(self, frame: DataFrame, beside: DataFrame | None = None) -> DataFrame:
        """The same rows, computed now and once. Of two frames that were kept, the rows of both as one table."""
        read = functools.partial(bronze.read, frame.sparkSession, frame.schema)
        if beside is not None:
            return read(*(self._paths[id(each)][1] for each in (frame, beside)))
        path = f"{self._place}/{self._own}/{next(self._numbers)}"
        together(frame).write.mode("overwrite").parquet(path)
        kept = read(path)
        self._paths[id(kept)] = kept, path
        return kept

    def clear(self, *, done: bool = False) -> None:
        """Remove all that was kept; where others may be at work, what was kept for what is committed.

        That is all before this batch, and with ``done`` this one, too.
        """
        system, root = bronze.open_place(self._place)
        fs = bronze.arrow_fs()
        if self._locks:
            gone = [root] if system.get_file_info(root).type != fs.FileType.NotFound else []
        else:
            found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
            gone = [each.path for each in found if self._is_past(each.base_name, done)]
        for path in gone:
            # What is being written to by one who was killed is left for the next time.
            with contextlib.suppress(OSError):
                system.delete_dir(path)

    def _is_past(self, name: str, done: bool) -> bool:
        """Whether a folder was kept for what is committed. A name that does not tell is of an earlier Posthouse."""
        kept_for = name[: len(self._for)]
        return "-" not in name or kept_for < self._for or (done and kept_for == self._for)
