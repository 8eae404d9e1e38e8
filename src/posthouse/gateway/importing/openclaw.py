"""All that OpenClaw kept in a state folder, of whichever version.

In: the folder and the instant that counts as now. Out: entries with what becomes of each, and files that are left. The
database comes first, since what is in files beside one are left-overs. Nothing is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path

from ...errors import BadFile
from ...mailbox.message import Instant
from ...mailbox.policy import Policy
from ..letter import INBOUND_DESK, OUTBOUND_DESK
from . import database, files
from .database import Database
from .entry import Found, Left, Queue, Result
from .judge import REVIEW_AFTER_S

DESKS = {Queue.OUTBOUND: OUTBOUND_DESK, Queue.SESSION: INBOUND_DESK, Queue.INGRESS: INBOUND_DESK}
"""Where each queue's entries go."""


def read(folder: Path, now: Instant, policies: Mapping[str, Policy]) -> Generator[Found, None, None]:
    """Everything in the folder; to be closed. BadFile if there is no queue of OpenClaw in it."""
    if not folder.is_dir():
        raise BadFile(f"{folder} is no folder; name OpenClaw's state folder, such as ~/.openclaw")
    by_queue = {queue: policies[desk] for queue, desk in DESKS.items()}
    review = {queue: review_after_s(policy) for queue, policy in by_queue.items()}
    if not os.path.lexists(folder / database.PATH) and not files.has_queue(folder):
        if folder.name in files.FOLDERS.values():
            raise BadFile(f"{folder} is one of OpenClaw's queues; name the folder around it")
        known = ", ".join((*files.FOLDERS.values(), database.PATH))
        raise BadFile(f"{folder} has no queue of OpenClaw in it: none of {known}")
    return _found(folder, now, by_queue, review)


def _found(
    folder: Path, now: Instant, policies: dict[Queue, Policy], review: Mapping[Queue, float]
) -> Generator[Found, None, None]:
    beside: frozenset[str] | None = None
    if os.path.lexists(folder / database.PATH):
        # Whatever is the matter with it: its queue has moved there, so files beside it are left-overs.
        beside = frozenset()
        try:
            with contextlib.closing(Database(folder)) as opened:
                beside = opened.delivery_ids()
                yield from opened.read(now, policies, review)
        except BadFile as error:
            yield Left(database.PATH, Result.QUARANTINED, "unreadable", str(error))
    yield from files.read(folder, now, policies, review, beside)


def review_after_s(policy: Policy) -> float:
    """What the desk would have let expire is for a person to look at, too."""
    return REVIEW_AFTER_S if policy.ttl_s is None else min(REVIEW_AFTER_S, policy.ttl_s)
