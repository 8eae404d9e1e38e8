"""The tasks of a part of the peer."""

from __future__ import annotations

import logging

from ..engine import tasks

log = logging.getLogger("posthouse.peer")


class Tasks(tasks.Tasks):
    """Those under way; what fails in them is told as the peer's."""

    def __init__(self, failed: str) -> None:
        """``failed``: what is told of one that fails."""
        super().__init__(log, failed)
