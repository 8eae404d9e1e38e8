"""The embedded store on SQLite."""

from .store import SqliteStore, check_node, restore

__all__ = ["SqliteStore", "check_node", "restore"]
