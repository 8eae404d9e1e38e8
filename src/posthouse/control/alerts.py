"""Operations on alert rules: how each stands.

In: the configuration's rules, the store, the books, and the shelf on which a running gateway keeps how rules stand.
Out: rows. Nothing is changed: the gateway alone judges and tells.
"""

from __future__ import annotations

import json

from ..errors import StoreCorrupt
from ..mailbox.store import Store
from . import view
from .measure import readings
from .operation import Answer, Context, Json, operation
from .rule import QUIET, Rule, Standing, rules_of

SHELF = "gateway.alerts"


def encode(standing: Standing) -> bytes:
    """As it is kept."""
    return json.dumps(standing._asdict(), separators=(",", ":")).encode()


def decode(value: bytes) -> Standing:
    """What was kept; StoreCorrupt if it is no standing."""
    try:
        found = Standing(**json.loads(value))
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"shelf {SHELF} keeps what is no standing of an alert") from error
    return found


def standings(store: Store) -> dict[str, Standing]:
    """How rules stand, by the key of their reading."""
    found: dict[str, Standing] = {}
    after = ""
    while page := store.kept(SHELF, after):
        found |= {key: decode(value) for key, value in page}
        after = page[-1][0]
    return found


@operation("alerts.ls")
def ls(context: Context) -> Answer:
    """Every rule with what it sees now and how it stands."""
    kept = standings(context.store)
    rows: list[Json] = []
    for rule in rules_of(context.config):
        for reading in readings(rule, context.store, context.access.now(), context.config.text("books.lake")):
            rows.append(
                {
                    **_plain(rule),
                    "desk": reading.desk,
                    "value": reading.value,
                    "trouble": reading.trouble or None,
                    **_standing(kept.get(reading.key, QUIET)),
                }
            )
    return {"alerts": rows}


def _plain(rule: Rule) -> Json:
    return {
        "rule": rule.name,
        "on": str(rule.on),
        "mailbox": rule.mailbox,
        "above": rule.above,
        "for_s": rule.for_s,
        "repeat_s": rule.repeat_s,
        "account": rule.account,
        "to": rule.to,
    }


def _standing(standing: Standing) -> Json:
    return {
        "state": standing.word,
        "since": view.instant_or_none(standing.since or None),
        "told_at": view.instant_or_none(standing.told_at or None),
        "notices": standing.notices,
    }
