"""Policies: all that makes one desk differ from another, and the five presets.

A role is a policy plus a session. When code wants ``if role == …``, a field is missing here.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidInput
from .message import SECOND, check_name

DAY_S = 86_400.0


class SettleBy(enum.StrEnum):
    """Who may finish a message: the holder of its lease, or whoever names its id."""

    TOKEN = "token"
    ID = "id"


class OnExpiry(enum.StrEnum):
    """What passing expires_at means: silently expired, or dead by deadline."""

    EXPIRE = "expire"
    DIE = "die"


class Poison(enum.StrEnum):
    """What becomes of a message whose attempts are used up, and of its lane."""

    BLOCK = "block"  # dead, and the lane is paused until an operator resumes it
    SKIP = "skip"  # dead, and the lane goes on
    PARK = "park"  # set aside, and the lane goes on


class LostLease(enum.StrEnum):
    """What becomes of a message whose lease ran out."""

    RETRY = "retry"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits between attempts: a ladder whose last step repeats, or first·factorⁿ up to a cap."""

    steps_s: tuple[float, ...] = ()
    first_s: float = 0.0
    factor: float = 1.0
    cap_s: float = 0.0

    def delay_us(self, attempts: int) -> int:
        """The wait in microseconds after ``attempts`` counted attempts (1 or more)."""
        if self.steps_s:
            delay_s = self.steps_s[min(attempts, len(self.steps_s)) - 1]
        elif self.first_s <= 0:
            return 0
        else:
            # Past the cap the power is not computed: it would overflow after a long outage.
            delay_s = self.first_s
            for _ in range(attempts - 1):
                delay_s *= self.factor
                if delay_s >= self.cap_s:
                    delay_s = self.cap_s
                    break
        return int(delay_s * SECOND)


def ladder(*steps_s: float) -> Retry:
    """Wait these seconds in turn; the last one repeats."""
    return Retry(steps_s=tuple(float(s) for s in steps_s))


def exponential(first_s: float, cap_s: float, factor: float = 2.0) -> Retry:
    """Wait ``first_s``, then ``factor`` times longer each time, never more than ``cap_s``."""
    return Retry(first_s=float(first_s), factor=float(factor), cap_s=float(cap_s))


AT_ONCE = ladder(0.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one desk. Times are seconds; None means "no limit"."""

    name: str
    capacity: int | None = None
    """Messages ready, leased or received in one mailbox."""
    sender_max: int | None = None
    """Of those, messages of one sender, so that one alone cannot fill a mailbox. Counted at each post into a
    mailbox that holds as many."""
    parked_max: int | None = 1_000
    """Parked messages in one mailbox; past it what would be parked dies instead."""
    size_bytes_max: int = 1_048_576
    ttl_s: float | None = None
    window_per_lane: int | None = 1
    """Messages of one lane in flight at once; None is all of them."""
    lease_s: float | None = 60.0
    """None: a lease ends only when its holder leaves (Release) or the process does."""
    settle_by: SettleBy = SettleBy.TOKEN
    retry: Retry = AT_ONCE
    attempts_max: int | None = None
    unreceived_max: int | None = None
    """Holders that may leave in a row with the same first message unreceived before it is parked."""
    on_expiry: OnExpiry = OnExpiry.EXPIRE
    poison: Poison = Poison.SKIP
    lost_lease: LostLease = LostLease.RETRY
    quiet_s: float = 0.0
    quiet_max_s: float = 0.0
    dedup_s: float = 7 * DAY_S
    history_s: float = 0.0
    """How long delivered, expired and cancelled messages are kept with their bodies."""
    aside_s: float | None = 30 * DAY_S
    """How long dead, parked and uncertain messages are kept for an operator."""

    def __post_init__(self) -> None:
        check_name("policy name", self.name)
        for field, least in (
            ("capacity", 1),
            ("sender_max", 1),
            ("parked_max", 0),
            ("window_per_lane", 1),
            ("attempts_max", 1),
            ("unreceived_max", 1),
            ("size_bytes_max", 0),
        ):
            value = getattr(self, field)
            if value is None and field != "size_bytes_max":
                continue
            if type(value) is not int or value < least:
                raise InvalidInput(f"policy {self.name}: {field} must be a whole number of at least {least}: {value!r}")
        for field in ("ttl_s", "lease_s", "quiet_s", "quiet_max_s", "dedup_s", "history_s", "aside_s"):
            value = getattr(self, field)
            if value is None and field in ("ttl_s", "lease_s", "aside_s"):
                continue
            if not _is_number(value) or not 0 <= value <= 1e10:
                raise InvalidInput(f"policy {self.name}: {field} must be a number of seconds, 0 or more: {value!r}")
        for field in ("ttl_s", "lease_s"):
            if getattr(self, field) == 0:
                raise InvalidInput(f"policy {self.name}: {field} must be more than 0 (or none at all)")
        if self.quiet_s and self.window_per_lane != 1:
            raise InvalidInput(f"policy {self.name}: a quiet period needs window_per_lane = 1")
        if self.quiet_s and self.quiet_max_s < self.quiet_s:
            raise InvalidInput(f"policy {self.name}: quiet_max_s must be at least quiet_s")
        for field, kind in (
            ("settle_by", SettleBy),
            ("on_expiry", OnExpiry),
            ("poison", Poison),
            ("lost_lease", LostLease),
            ("retry", Retry),
        ):
            if not isinstance(getattr(self, field), kind):
                raise InvalidInput(f"policy {self.name}: {field} must be a {kind.__name__}: {getattr(self, field)!r}")
        for value in (*self.retry.steps_s, self.retry.first_s, self.retry.cap_s):
            if not _is_number(value) or not 0 <= value <= 1e10:
                raise InvalidInput(f"policy {self.name}: retry waits must be 0 s or more: {value!r}")

    def replace(self, **changes: Any) -> Policy:
        """The same policy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the journal's ``started`` event carries them; ``policy_from`` reads them back."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["retry"] = _retry_as_json(self.retry)
        return {name: str(v) if isinstance(v, enum.StrEnum) else v for name, v in plain.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _retry_as_json(retry: Retry) -> list[float] | dict[str, float]:
    if retry.steps_s or not retry.first_s:
        return list(retry.steps_s)
    return {"first_s": retry.first_s, "factor": retry.factor, "cap_s": retry.cap_s}


def _retry_from(name: str, value: object) -> Retry:
    if isinstance(value, Retry):
        return value
    if isinstance(value, list | tuple) and all(_is_number(v) for v in value):
        return ladder(*value)
    if isinstance(value, Mapping) and set(value) <= {"first_s", "factor", "cap_s"} and "first_s" in value:
        return exponential(value["first_s"], value.get("cap_s", value["first_s"]), value.get("factor", 2.0))
    raise InvalidInput(f"policy {name}: retry must be a list of seconds or {{first_s, factor, cap_s}}: {value!r}")


def policy_from(name: str, values: Mapping[str, Any], start: Policy | None = None) -> Policy:
    """A policy from plain values (a config table) over ``start``; an unknown field is an error."""
    known = {f.name for f in dataclasses.fields(Policy)} - {"name"}
    changes: dict[str, Any] = {}
    for field, value in values.items():
        if field == "name" and value == name:
            continue
        if field not in known:
            near = difflib.get_close_matches(field, sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidInput(f"policy {name}: unknown field {field!r}{hint}")
        changes[field] = value
    if "retry" in changes:
        changes["retry"] = _retry_from(name, changes["retry"])
    for field, kind in (
        ("settle_by", SettleBy),
        ("on_expiry", OnExpiry),
        ("poison", Poison),
        ("lost_lease", LostLease),
    ):
        if field in changes and not isinstance(changes[field], kind):
            try:
                changes[field] = kind(changes[field])
            except ValueError:
                allowed = ", ".join(kind)
                raise InvalidInput(f"policy {name}: {field} must be one of {allowed}: {changes[field]!r}") from None
    return dataclasses.replace(start or Policy(name), name=name, **changes)


GATEWAY_LADDER = ladder(1, 5, 25, 120, 600)

RELAY = Policy(
    "relay",
    capacity=1_000,
    size_bytes_max=131_072,
    ttl_s=7 * DAY_S,
    window_per_lane=None,
    lease_s=None,
    settle_by=SettleBy.ID,
    retry=AT_ONCE,
    attempts_max=5,
    unreceived_max=5,
    on_expiry=OnExpiry.EXPIRE,
    poison=Poison.PARK,
    dedup_s=DAY_S,
    history_s=0.0,
)
OUTBOX = Policy(
    "outbox",
    window_per_lane=1,
    lease_s=30.0,
    # The first confirmation counts, whichever way it comes, and however late.
    settle_by=SettleBy.ID,
    retry=exponential(10, 600),
    on_expiry=OnExpiry.DIE,
    poison=Poison.SKIP,
    history_s=7 * DAY_S,
)
INBOX = Policy(
    "inbox",
    window_per_lane=1,
    lease_s=60.0,
    retry=exponential(1, 60),
    poison=Poison.SKIP,
    dedup_s=7 * DAY_S,
    history_s=7 * DAY_S,
)
INBOUND = Policy(
    "inbound",
    capacity=100_000,
    window_per_lane=1,
    lease_s=60.0,
    retry=GATEWAY_LADDER,
    attempts_max=6,
    poison=Poison.SKIP,
    history_s=7 * DAY_S,
)
OUTBOUND = Policy(
    "outbound",
    capacity=100_000,
    ttl_s=DAY_S,
    window_per_lane=1,
    lease_s=60.0,
    retry=GATEWAY_LADDER,
    attempts_max=6,
    poison=Poison.SKIP,
    lost_lease=LostLease.UNCERTAIN,
    history_s=7 * DAY_S,
)
PRESETS: Mapping[str, Policy] = {p.name: p for p in (RELAY, OUTBOX, INBOX, INBOUND, OUTBOUND)}
