"""Stores: where messages live. Each agrees with ``memory`` in rows, outcomes and journal."""
