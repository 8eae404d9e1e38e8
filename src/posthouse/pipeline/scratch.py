"""Scratch: what several tables of a batch are made of, written once and read back.

In: DataFrames. Out: the same rows as a DataFrame that begins at a file, so that plans stay small whatever came before.
It lies beside the tables, is emptied before and after each batch, and nothing in it outlives one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import bronze
from .ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER = "_scratch"


class Scratch:
    """The scratch of one lake."""

    def __init__(self, ledger: Ledger) -> None:
        self._place = ledger.table(FOLDER)
        self._count = 0

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed now and once."""
        self._count += 1
        path = f"{self._place}/{self._count}"
        frame.write.mode("overwrite").parquet(path)
        return frame.sparkSession.read.schema(frame.schema).parquet(path)

    def clear(self) -> None:
        """Remove all that was kept."""
        system, root = bronze.open_place(self._place)
        if system.get_file_info(root).type != bronze.arrow_fs().FileType.NotFound:
            system.delete_dir(root)
        self._count = 0
