"""The command line: one module per group of commands."""

from .root import main

__all__ = ["main"]
