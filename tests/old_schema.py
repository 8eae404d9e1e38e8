"""Stores as older programs left them.

In: the file of a closed store. Out: the same messages in the tables of an older schema.
"""

from __future__ import annotations

import importlib.resources
import os
from contextlib import closing
from pathlib import Path

import apsw

from posthouse.stores.sqlite.connection import APPLICATION_ID, PAGE_SIZE


def make_older(path: Path, version: int) -> None:
    """Give a store the schema of this version; what that has no place for is left out."""
    older = path.with_name(path.name + ".older")
    with closing(apsw.Connection(str(older))) as db:
        db.execute(f"PRAGMA page_size={PAGE_SIZE}; PRAGMA auto_vacuum=INCREMENTAL")
        for step in range(1, version + 1):
            db.execute(importlib.resources.files("posthouse.stores").joinpath(f"schema/{step:04}.sql").read_text())
        db.execute("ATTACH ? AS now", (str(path),))
        with db:
            for (table,) in db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall():
                columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
                db.execute(f"DELETE FROM main.{table}")
                db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM now.{table}")
        db.execute("DETACH now")
        db.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={version}")
    os.replace(older, path)
