"""Taking over what a Pinch relay kept: a page of its envelopes, blocks and keys at a time.

In: entries as they were found in its file. Out: for each one, what became of it. Envelopes are posted to the
relay's desk with the time at which they were queued, beyond its capacity too; nothing that is here already
is changed, so that a page can be sent again.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ..errors import InvalidInput
from ..mailbox import outcome as oc
from ..mailbox import rules
from ..mailbox.command import Keep, Post
from ..mailbox.message import Instant, Message
from ..mailbox.policy import RELAY, Policy
from ..wire.address import PUBLIC_KEY_BYTES
from . import relay, selection
from .operation import Answer, Context, Json, operation

BLOCKS = "relay.blocks"
PAGE_MAX = 1_000


@operation("pinch.import")
def take(context: Context, *, page: dict[str, Any], dry_run: bool = False) -> Answer:
    """Take over one page: {"messages": […], "blocks": [[blocker, blocked], …], "keys": […]}, or say what would be."""
    policy = context.store.policies.get(RELAY.name)
    if policy is None:
        return selection.unknown_desk(context, RELAY.name)
    messages, blocks, keys = (_list(page, name) for name in ("messages", "blocks", "keys"))
    return {
        **_messages(context, policy, messages, dry_run),
        "blocks": _blocks(context, blocks, dry_run),
        "keys": [_key(context, key, dry_run) for key in keys],
    }


def _list(page: dict[str, Any], name: str) -> list[Any]:
    found = page.get(name, [])
    if not isinstance(found, list) or len(found) > PAGE_MAX:
        raise InvalidInput(f"pinch.import: {name} must be a list of at most {PAGE_MAX}")
    return found


def _messages(context: Context, policy: Policy, plain: list[Any], dry_run: bool) -> Json:
    """What became of each: posted, duplicate, expired, or why it was refused."""
    now = context.access.now()
    posts = [_post(fields) for fields in plain]
    became: list[str] = []
    taken: list[Post] = []
    for post in posts:
        assert post.posted_at is not None
        if rules.has_expired(rules.expiry(policy, post.message, min(post.posted_at, now)), now):
            became.append("expired")
        elif dry_run:
            became.append(_foreseen(context, policy, post, now))
        else:
            became.append("")
            taken.append(post)
    outcomes = iter(context.call(*taken) if taken else [])
    became = [word or _word(next(outcomes)) for word in became]
    depths = {}
    for mailbox in dict.fromkeys(post.message.mailbox for post in posts):
        view = context.store.mailbox(RELAY.name, mailbox)
        depths[mailbox] = 0 if view is None else view.depth
    return {"messages": became, "depths": depths, "capacity": policy.capacity}


def _post(fields: Any) -> Post:
    if not isinstance(fields, dict) or not {"mailbox", "id", "sender", "kind", "body", "posted_at"} <= fields.keys():
        raise InvalidInput("pinch.import: a message is {mailbox, id, sender, kind, body, posted_at}")
    try:
        body = base64.b64decode(fields["body"], validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidInput(f"pinch.import: a body is not base64: {error}") from error
    message = Message(RELAY.name, fields["mailbox"], fields["id"], body, fields["sender"], kind=fields["kind"])
    posted_at = fields["posted_at"]
    if type(posted_at) is not int:
        raise InvalidInput("pinch.import: posted_at must be whole microseconds since 1970")
    return Post(message, exempt=True, reason="import", posted_at=posted_at)


def _foreseen(context: Context, policy: Policy, post: Post, now: Instant) -> str:
    if context.store.message(post.message.ref) is not None:
        return "duplicate"
    refusal = rules.admit(policy, post.message, 0, True, now)
    return "posted" if refusal is None else str(refusal)


def _word(outcome: oc.Outcome) -> str:
    if isinstance(outcome, oc.Posted):
        return "posted"
    if isinstance(outcome, oc.Duplicate):
        return "duplicate"
    assert isinstance(outcome, oc.Refused)
    return str(outcome.reason)


def _blocks(context: Context, pairs: list[Any], dry_run: bool) -> list[str]:
    """Whether each was added or known."""
    if not all(isinstance(pair, list) and len(pair) == 2 and all(type(x) is str for x in pair) for pair in pairs):
        raise InvalidInput("pinch.import: a block is [blocker, blocked]")
    names = [f"{blocker} {blocked}" for blocker, blocked in pairs]
    if dry_run:
        return ["added" if context.store.kept_value(BLOCKS, name) is None else "known" for name in names]
    outcomes = context.call(*(Keep(BLOCKS, name, b"1") for name in names)) if names else []
    return ["added" if isinstance(outcome, oc.Kept) and outcome.changed else "known" for outcome in outcomes]


def _key(context: Context, fields: Any, dry_run: bool) -> str:
    """Whether the key was approved, is pending, or was known. What was decided here stays decided."""
    if not isinstance(fields, dict) or not {"public_key", "approved", "code", "registered_at"} <= fields.keys():
        raise InvalidInput("pinch.import: a key is {public_key, approved, code, registered_at}")
    public_key = relay.public_key_of(fields["public_key"]) if isinstance(fields["public_key"], str) else b""
    registered_at, code = fields["registered_at"], fields["code"]
    now = context.access.now()
    if len(public_key) != PUBLIC_KEY_BYTES or type(code) is not str or type(registered_at) not in (int, type(None)):
        raise InvalidInput("pinch.import: that is no key")
    state = relay.APPROVED if fields["approved"] is True else relay.PENDING
    at = now if registered_at is None else max(0, min(registered_at, now))
    became = "known"

    def decide(before: relay.Key | None) -> relay.Key | None:
        nonlocal became
        if before is None:
            became = state
            after = relay.Key(state, code, at, now, "import")
        elif before.state == relay.PENDING and state == relay.APPROVED:
            became = state
            after = before._replace(state=state, changed_at=now, by="import")
        else:
            return None
        return None if dry_run else after

    relay.change(context, public_key, decide)
    return became
