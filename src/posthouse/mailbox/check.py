"""What is valid input for commands: asked once, in the caller's own thread, before the engine takes them.

In: a command and the policies in force. Out: nothing, or InvalidInput with the first thing that is wrong.
It looks at the command alone; what depends on stored messages is the store's to answer with an outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidInput
from . import event as ev
from .command import (
    Cancel,
    Filter,
    Hasten,
    Keep,
    Lease,
    Note,
    Park,
    Pause,
    Post,
    Purge,
    Redrive,
    Release,
    Renew,
    Resume,
    Settle,
    Shift,
    Start,
    Sweep,
    Together,
    Unpark,
    Verdict,
)
from .message import INSTANT_MAX, Ref, State, check_headers, check_instant, check_message, check_name, check_place
from .policy import Policy

LIMIT_MAX = 100_000
ERROR_CHARS_MAX = 65_536
DETAIL_BYTES_MAX = 16_384
TOGETHER_MAX = 1_000
"""Commands in one all-or-nothing group: it is one step of a commit and cannot be cut."""
BESIDES_MAX = 20_000
COUNT_MAX = 2**63 - 1
KEY_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 65_536
"""Of what is kept on a shelf: facts, not payloads."""

Policies = Mapping[str, Policy]

_SETTLE_REASONS: Mapping[Verdict, tuple[str, ...]] = {
    Verdict.RECEIVED: ev.REASONS.get(ev.RECEIVED, ()),
    Verdict.DELIVERED: ev.REASONS.get(ev.DELIVERED, ()),
    Verdict.RETRY: ev.REASONS[ev.RETRIED],
    Verdict.RETURN: ev.REASONS[ev.RELEASED],
    Verdict.DEAD: ev.REASONS[ev.DIED],
    Verdict.REJECTED: ev.REASONS[ev.DIED],
    Verdict.UNCERTAIN: ev.REASONS[ev.UNCERTAIN],
}


def check_command(given: Any, policies: Policies) -> None:
    """Raise InvalidInput with the first thing that is wrong; a command that passes can be applied."""
    # Any, here and below: nothing is believed of a command before it was looked at, not even when compiled.
    # Posts come first and alone, since a busy engine checks tens of thousands of them a second.
    if type(given) is Post:
        post: tuple[Any, ...] = given
        message, quiet, exempt, reason, posted_at, _ = post
        check_message(message)
        # It takes any empty value for an empty string or no headers; a store does not.
        if type(message[6]) is not str or type(message[7]) is not str or type(message[8]) is not dict:
            _check_empty(message)
        if message[0] not in policies:
            raise _unknown_desk(message[0], policies)
        if quiet is not True:
            _check_flag("quiet", quiet)
        if exempt is not False:
            _check_flag("exempt", exempt)
        if reason is not None:
            _check_reason(reason, ev.REASONS[ev.POSTED])
        if posted_at is not None:
            check_instant("posted_at", posted_at)
            if reason != "import":
                raise InvalidInput("posted_at is for imports: the reason must say so")
        return
    if type(given) is Lease:
        _check_lease(given, policies)
        return
    if type(given) is Settle:
        _check_settle(given, policies)
        return
    check = _CHECKS.get(type(given))
    if check is None:
        raise InvalidInput(f"expected a command, not {type(given).__name__}")
    check(given, policies)


def _check_empty(message: Any) -> None:
    check_name("kind", message.kind, empty=True)
    check_name("batch_key", message.batch_key, empty=True)
    check_headers(message.headers)


def _check_lease(c: Any, policies: Policies) -> None:
    lease: tuple[Any, ...] = c
    desk, mailbox, token, holder, limit, bodies, besides, lane, _ = lease
    _check_desk(desk, policies)
    if mailbox is not None:
        check_place("mailbox", mailbox)
    check_name("token", token)
    if holder is not None:
        check_name("holder", holder)
    _check_limit(limit)
    if bodies is not True:
        _check_flag("bodies", bodies)
    if besides:
        _check_besides(c)
    if lane is not None:
        check_name("lane", lane, empty=True)
        if mailbox is None:
            raise InvalidInput("a lane is of one mailbox: say which")


def _check_besides(c: Any) -> None:
    if type(c.besides) is not tuple:
        raise InvalidInput(f"besides must be a tuple of mailboxes, not {type(c.besides).__name__}")
    if c.mailbox is not None:
        raise InvalidInput("besides is for a lease by desk: mailbox must be None")
    if len(c.besides) > BESIDES_MAX:
        raise InvalidInput(f"besides names at most {BESIDES_MAX} mailboxes, not {len(c.besides)}")
    for mailbox in c.besides:
        check_place("besides", mailbox)


def _check_renew(c: Any, policies: Policies) -> None:
    _check_desk(c.desk, policies)
    check_name("token", c.token)
    if c.ref is not None:
        _check_ref(c.ref, policies)
        if c.ref.desk != c.desk:
            raise InvalidInput(f"the message is of desk {c.ref.desk!r}, the lease of {c.desk!r}")
    if c.progress is not None:
        if c.ref is None:
            raise InvalidInput("progress is of one message: say which (ref)")
        _check_count("progress", c.progress)


def _check_settle(c: Any, policies: Policies) -> None:
    settle: tuple[Any, ...] = c
    ref, token, verdict, due_at, reason, error, holder, _ = settle
    _check_ref(ref, policies)
    if token is not None:
        check_name("token", token)
    if type(verdict) is not Verdict:
        raise InvalidInput(f"verdict must be a Verdict, not {verdict!r}")
    if due_at is not None:
        check_instant("due_at", due_at)
    if reason is not None:
        _check_reason(reason, _SETTLE_REASONS[verdict])
    if error is not None:
        _check_error(error)
    if holder is not None:
        check_name("holder", holder)


def _check_release(c: Any, policies: Policies) -> None:
    _check_desk(c.desk, policies)
    check_name("token", c.token)
    if c.reason is not None:
        _check_reason(c.reason, ev.REASONS[ev.RELEASED])


def _check_sweep(c: Any, policies: Policies) -> None:
    _check_limit(c.limit)


def _check_note(c: Any, policies: Policies) -> None:
    check_name("event", c.event)
    if c.event not in ev.NOTABLE:
        raise InvalidInput(f"event must be one of {', '.join(sorted(ev.NOTABLE))}: {c.event!r}")
    # Not asked of the policies: a store answers a note for an unknown desk with a refusal.
    check_name("desk", c.desk)
    for field in ("mailbox", "message_id", "kind", "sender"):
        check_name(field, getattr(c, field), empty=True)
    _check_holder(c.holder)
    if c.reason is not None:
        _check_reason(c.reason, ev.REASONS.get(c.event, ()))
    _check_error(c.error)
    _check_count("size_bytes", c.size_bytes)
    if c.detail is not None:
        _check_detail("detail", c.detail)


def _check_start(c: Any, policies: Policies) -> None:
    if not isinstance(c.policies, Mapping):
        raise InvalidInput(f"policies must be a mapping, not {type(c.policies).__name__}")
    for name, policy in c.policies.items():
        _check_policy(name, policy)
    if c.restored_from is not None:
        _check_detail("restored_from", c.restored_from)


def _check_policy(name: object, policy: object) -> None:
    if not isinstance(policy, Policy) or policy.name != name:
        raise InvalidInput(f"policies must map each name to its policy: {name!r}")


def _check_shift(c: Any, policies: Policies) -> None:
    _check_count("by_us", c.by_us, least=-INSTANT_MAX, most=INSTANT_MAX)


def _check_hasten(c: Any, policies: Policies) -> None:
    _check_desk(c.desk, policies)
    check_place("mailbox", c.mailbox)


def _check_redrive(c: Any, policies: Policies) -> None:
    _check_selection(c, policies)
    if c.rate_per_s is not None:
        _check_rate(c.rate_per_s)


def _check_cancel(c: Any, policies: Policies) -> None:
    _check_ref(c.ref, policies)
    _check_holder(c.holder)
    if c.reason is not None:
        _check_reason(c.reason, ev.REASONS[ev.CANCELLED])


def _check_park(c: Any, policies: Policies) -> None:
    _check_ref(c.ref, policies)
    _check_holder(c.holder)
    if c.reason is not None:
        # The other reasons say that the engine parked it. (Corrupt: a holder could not read what it leased.)
        _check_reason(c.reason, ("operator", "review", "corrupt"))


def _check_selection(c: Any, policies: Policies) -> None:
    _check_filter(c.filter, policies)
    _check_limit(c.limit)
    _check_flag("dry_run", c.dry_run)
    _check_holder(c.holder)


def _check_pause(c: Any, policies: Policies) -> None:
    _check_switch(c, policies)
    _check_reason(c.reason, ev.REASONS[ev.PAUSED])


def _check_switch(c: Any, policies: Policies) -> None:
    _check_desk(c.desk, policies)
    check_name("mailbox", c.mailbox)
    if c.lane is not None:
        check_name("lane", c.lane, empty=True)
    _check_holder(c.holder)


def _check_together(c: Any, policies: Policies) -> None:
    if type(c.commands) is not tuple:
        raise InvalidInput(f"the commands of a Together must be a tuple, not {type(c.commands).__name__}")
    if len(c.commands) > TOGETHER_MAX:
        raise InvalidInput(f"a Together of {len(c.commands)} commands; at most {TOGETHER_MAX} are allowed")
    for inner in c.commands:
        if type(inner) is Together:
            raise InvalidInput("a Together cannot hold another one")
        check_command(inner, policies)


def _check_keep(c: Any, policies: Policies) -> None:
    check_name("shelf", c.shelf)
    _check_key(c.key)
    if c.value is None:
        return
    if type(c.value) is not bytes:
        raise InvalidInput(f"value must be bytes or None, not {type(c.value).__name__}")
    if len(c.value) > VALUE_BYTES_MAX:
        raise InvalidInput(f"value is {len(c.value)} bytes long; at most {VALUE_BYTES_MAX} are allowed")


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise InvalidInput(f"key must be a string, not {type(key).__name__}")
    if not key:
        raise InvalidInput("key must not be empty")
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidInput("key holds a lone surrogate, which is not text") from None
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidInput(f"key is {size_bytes} bytes long; at most {KEY_BYTES_MAX} are allowed")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in key):
        raise InvalidInput(f"key holds a control character: {key[:40]!r}")


# Keyed by exact type, so each entry is called with the command that it is written for.
_CHECKS: dict[type, Callable[[Any, Policies], None]] = {
    Lease: _check_lease,
    Renew: _check_renew,
    Settle: _check_settle,
    Release: _check_release,
    Sweep: _check_sweep,
    Note: _check_note,
    Start: _check_start,
    Shift: _check_shift,
    Hasten: _check_hasten,
    Redrive: _check_redrive,
    Cancel: _check_cancel,
    Park: _check_park,
    Unpark: _check_selection,
    Pause: _check_pause,
    Resume: _check_switch,
    Purge: _check_selection,
    Keep: _check_keep,
    Together: _check_together,
}


def _unknown_desk(desk: object, policies: Policies) -> InvalidInput:
    return InvalidInput(f"unknown desk {desk!r}; known: {', '.join(sorted(policies)) or 'none'}")


def _check_desk(desk: object, policies: Policies) -> None:
    # A name that a policy has is a good one.
    if type(desk) is not str or desk not in policies:
        check_name("desk", desk)
        raise _unknown_desk(desk, policies)


def _check_ref(ref: Any, policies: Policies) -> None:
    if type(ref) is not Ref:
        raise InvalidInput(f"ref must be a Ref, not {type(ref).__name__}")
    fields: tuple[Any, ...] = ref
    desk, mailbox, sender, id = fields
    _check_desk(desk, policies)
    check_place("mailbox", mailbox)
    if type(sender) is not str or sender:
        check_place("sender", sender)
    check_name("id", id)


def _check_filter(filter: Any, policies: Policies) -> None:
    if type(filter) is not Filter:
        raise InvalidInput(f"filter must be a Filter, not {type(filter).__name__}")
    given: Any = filter
    _check_desk(given.desk, policies)
    for field in ("mailbox", "lane", "kind", "sender", "id", "reason"):
        value = getattr(given, field)
        if value is not None:
            check_name(field, value, empty=field in ("lane", "kind", "sender"))
    _check_error(given.error)
    if given.since is not None:
        check_instant("since", given.since)
    if given.until is not None:
        check_instant("until", given.until)
    states: Any = given.states
    if not isinstance(states, frozenset) or not all(isinstance(s, State) for s in states):
        raise InvalidInput("states must be a frozenset of State")


def _check_reason(reason: object, allowed: tuple[str, ...]) -> None:
    if reason not in allowed:
        raise InvalidInput(f"reason must be {' or '.join(allowed) or 'left out'}: {str(reason)[:40]!r}")


def _check_holder(holder: object) -> None:
    if holder is not None:
        check_name("holder", holder)


def _check_flag(field: str, value: object) -> None:
    if type(value) is not bool:
        raise InvalidInput(f"{field} must be True or False, not {type(value).__name__}")


def _check_limit(limit: object) -> None:
    _check_count("limit", limit, least=1, most=LIMIT_MAX)


def _check_count(field: str, value: object, *, least: int = 0, most: int = COUNT_MAX) -> None:
    if type(value) is not int:
        raise InvalidInput(f"{field} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidInput(f"{field} must be between {least} and {most}")


def _check_rate(rate: object) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise InvalidInput(f"rate_per_s must be a number, not {type(rate).__name__}")
    # Written so that NaN fails too.
    if not 1e-6 <= rate <= 1e6:
        raise InvalidInput(f"rate_per_s must be between 0.000001 and 1,000,000: {rate!r}")


def _check_error(error: object) -> None:
    if error is None:
        return
    if type(error) is not str:
        raise InvalidInput(f"error must be a string, not {type(error).__name__}")
    if len(error) > ERROR_CHARS_MAX:
        raise InvalidInput(f"error is {len(error)} characters long; at most {ERROR_CHARS_MAX} are allowed")
    try:
        error.encode()
    except UnicodeEncodeError:
        raise InvalidInput("error holds a lone surrogate, which is not text") from None


def _check_detail(field: str, detail: object) -> None:
    if not isinstance(detail, Mapping):
        raise InvalidInput(f"{field} must be a mapping, not {type(detail).__name__}")
    try:
        size_bytes = len(json.dumps(dict(detail), allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{field} is not JSON: {error}") from None
    if size_bytes > DETAIL_BYTES_MAX:
        raise InvalidInput(f"{field} takes {size_bytes} bytes; at most {DETAIL_BYTES_MAX} are allowed")
