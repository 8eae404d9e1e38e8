"""Operations on the audit log: what operators did, the newest first."""

from __future__ import annotations

import json

from ..errors import StoreCorrupt
from ..mailbox.message import check_name
from . import view
from .operation import PAGE_MAX, Answer, Context, Json, operation
from .record import SHELF


@operation("audit.ls")
def ls(context: Context, *, after: str = "", limit: int = 50) -> Answer:
    """A page of what was done, the newest first; ``next`` is the ``after`` of the page behind it."""
    check_name("after", after, empty=True)
    limit = min(limit, PAGE_MAX)
    found = context.store.kept(SHELF, after, limit + 1)
    return {
        "actions": [_action(key, value) for key, value in found[:limit]],
        "next": found[limit - 1][0] if len(found) > limit else None,
    }


def _action(key: str, value: bytes) -> Json:
    try:
        fields = json.loads(value)
        return {
            "at": view.instant(fields["at"]),
            "by": fields["by"],
            "act": fields["act"],
            "with": fields["with"],
            "result": fields.get("result", {}),
            "refused": fields.get("refused"),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(f"shelf {SHELF} keeps under {key!r} what is no record of an action") from error
