"""One batch of the books: what is new and what was open in, rows and the next open set out. It never reads or writes."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame


class Batch(NamedTuple):
    """What a batch of events comes to; see the package's text for what replaces and what is appended."""

    messages: DataFrame
    attempts: DataFrame
    anomalies: DataFrame
    partials: DataFrame
    carried: DataFrame


def advance(
    events: DataFrame,
    carried: DataFrame | None = None,
    recalled: DataFrame | None = None,
    before: DataFrame | None = None,
    answered: DataFrame | None = None,
) -> Batch:
    """The rows that these events make or change, and what the next batch needs of them."""
    raise NotImplementedError


def strays(events: DataFrame, carried: DataFrame | None = None) -> DataFrame:
    """(node, desk, mailbox, sender, message_id) of events whose `posted` is neither new nor carried."""
    raise NotImplementedError


def causes(events: DataFrame) -> DataFrame:
    """(node, desk, cause_id) of the new posts that answer something."""
    raise NotImplementedError
