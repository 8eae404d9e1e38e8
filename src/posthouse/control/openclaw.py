"""Taking over what OpenClaw kept: a page of its entries at a time, and undoing that.

In: entries that the reader has judged, each with its message. Out: for each one, what became of it. Every entry that
was taken leaves a receipt on the shelf ``gateway.imported``, in the transaction that posts its message: a repeat finds
it and does nothing. Rolling back finishes what nobody has touched yet, and takes the receipts away.

A receipt is JSON under the entry's key: {"digest", "root", "source", "result", "ref", "at", "by"}; ``ref`` is null
where nothing had to be posted.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from ..errors import InvalidInput, StoreCorrupt
from ..mailbox import outcome as oc
from ..mailbox import rules
from ..mailbox.command import Cancel, Command, Filter, Keep, Park, Post, Redrive, Settle, Together, Verdict
from ..mailbox.message import SECOND, Instant, Message, Ref, State
from ..mailbox.policy import Policy
from ..mailbox.store import MessageView
from . import selection
from .operation import Answer, Context, Json, operation

SHELF = "gateway.imported"
PAGE_MAX = 1_000
RESULTS = ("pending", "review", "uncertain", "dead", "delivered")
_FIELDS = {"key", "digest", "source", "result", "reason", "error", "due_at", "posted_at", "message"}
_MESSAGE_FIELDS = {"desk", "mailbox", "id", "body", "sender", "lane", "kind", "batch_key", "quiet"}


class Receipt(NamedTuple):
    """That an entry was taken over, and what became of it."""

    digest: str
    root: str
    """The folder that it came from."""
    source: str
    result: str
    ref: Ref | None
    at: Instant
    by: str

    def encode(self) -> bytes:
        """As it is kept."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def decode(value: bytes) -> Receipt:
    """A kept receipt; StoreCorrupt if it is none."""
    try:
        fields = json.loads(value)
        ref = fields["ref"]
        return Receipt(**{**fields, "ref": None if ref is None else Ref(*ref)})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"shelf {SHELF} keeps what is no receipt") from error


class _Entry(NamedTuple):
    key: str
    digest: str
    source: str
    result: str
    reason: str | None
    error: str | None
    due_at: Instant | None
    posted_at: Instant
    message: Message | None
    quiet: bool
    stands_for: Ref | None
    """The message of ours whose image the entry is."""


@operation("openclaw.import")
def take(context: Context, *, root: str, now: int, entries: dict[str, Any], dry_run: bool = False) -> Answer:
    """Take over one page ({"entries": […]}), or say what would be. ``now`` is the instant they were judged by."""
    found = entries.get("entries")
    if not isinstance(found, list) or len(found) > PAGE_MAX:
        raise InvalidInput(f"openclaw.import: entries must be a list of at most {PAGE_MAX}")
    taken = [_entry(fields) for fields in found]
    for entry in taken:
        if entry.message is not None and entry.message.desk not in context.store.policies:
            return selection.unknown_desk(context, entry.message.desk)
    plans: list[str | Command] = []
    seen: dict[str, str] = {}
    for entry in taken:
        if entry.key in seen:
            plans.append("known" if seen[entry.key] == entry.digest else "conflict")
        else:
            seen[entry.key] = entry.digest
            plans.append(_plan(context, entry, root, now))
    commands = [plan for plan in plans if not isinstance(plan, str)]
    outcomes = iter(context.call(*commands) if commands and not dry_run else [])
    became: list[str] = []
    for entry, plan in zip(taken, plans, strict=True):
        if isinstance(plan, str):
            became.append(plan)
        else:
            became.append("imported" if dry_run else _became(context, entry, next(outcomes)))
    return {"entries": became}


def _plan(context: Context, entry: _Entry, root: str, now: Instant) -> str | Command:
    """What is to be done for one entry; or why nothing is: known, conflict, duplicate, or the desk's refusal."""
    kept = context.store.kept_value(SHELF, entry.key)
    if kept is not None:
        return "known" if decode(kept).digest == entry.digest else "conflict"
    if entry.stands_for is not None and context.store.message(entry.stands_for) is not None:
        return "known"
    at = context.access.now()
    ref = None if entry.message is None else entry.message.ref
    receipt = Receipt(entry.digest, root, entry.source, entry.result, ref, at, context.by)
    keep = Keep(SHELF, entry.key, receipt.encode())
    if entry.message is None:
        return keep
    policy = context.store.policies[entry.message.desk]
    post = _post(entry, entry.message, policy, at - now)
    refusal = rules.admit(policy, post.message, 0, True, at)
    if refusal is not None:
        return str(refusal)
    first: Command = post
    view = context.store.message(post.message.ref)
    if view is not None:
        if view.state is not State.CANCELLED or view.memory:
            # Posted by somebody else, or taken back so long ago that only its id is left.
            return "duplicate"
        # It was rolled back: it comes to life again, since its id is spent.
        first = Redrive(_only(post.message.ref, State.CANCELLED), limit=1, holder=context.by)
    return Together((first, *_fate(entry, post.message.ref, context.by), keep))


def _became(context: Context, entry: _Entry, outcome: oc.Outcome) -> str:
    if isinstance(outcome, oc.Kept):
        return "imported"
    if isinstance(outcome, oc.Done):
        first = outcome.outcomes[0]
        if isinstance(first, oc.Redriven) and not first.refs:
            context.apply(Keep(SHELF, entry.key, None))
            return "full"
        return "imported"
    return str(outcome.reason) if isinstance(outcome, oc.Refused) else "refused"


def _post(entry: _Entry, message: Message, policy: Policy, shift: int) -> Post:
    """Its waits and limits are those it had by the instant that counted as now."""
    due_at = None if entry.due_at is None else max(0, entry.due_at + shift)
    expires_at: Instant | None = None
    if entry.result == "pending" and policy.ttl_s is not None:
        expires_at = entry.posted_at + int(policy.ttl_s * SECOND) + shift
    message = message._replace(due_at=due_at, expires_at=expires_at)
    return Post(message, quiet=entry.quiet, exempt=True, reason="import", posted_at=entry.posted_at)


def _fate(entry: _Entry, ref: Ref, by: str) -> list[Command]:
    """What is said of the message once it is posted."""
    if entry.result == "review":
        return [Park(ref, reason="review", holder=by)]
    if entry.result == "uncertain":
        return [Settle(ref, None, Verdict.UNCERTAIN, reason="unknown", error=entry.error, holder=by)]
    if entry.result == "dead":
        # Rejected rather than dead: what died elsewhere blocks no lane here.
        return [Settle(ref, None, Verdict.REJECTED, reason=entry.reason or "attempts", error=entry.error, holder=by)]
    if entry.result == "delivered":
        # By hand only what is uncertain can be said to be delivered.
        doubt = Settle(ref, None, Verdict.UNCERTAIN, holder=by)
        return [doubt, Settle(ref, None, Verdict.DELIVERED, holder=by)]
    return []


def _entry(fields: Any) -> _Entry:
    if not isinstance(fields, dict) or not fields.keys() >= _FIELDS:
        raise InvalidInput(f"openclaw.import: an entry is {{{', '.join(sorted(_FIELDS))}}}")
    if fields["result"] not in RESULTS:
        raise InvalidInput(f"openclaw.import: result must be one of {', '.join(RESULTS)}")
    for name in ("key", "digest", "source"):
        if type(fields[name]) is not str:
            raise InvalidInput(f"openclaw.import: {name} must be text")
    for name, kinds in (("due_at", (int, type(None))), ("posted_at", (int,)), ("error", (str, type(None)))):
        if type(fields[name]) not in kinds:
            raise InvalidInput(f"openclaw.import: {name} is of the wrong type")
    plain = fields["message"]
    message: Message | None = None
    if plain is not None:
        if not isinstance(plain, dict) or not plain.keys() >= _MESSAGE_FIELDS:
            raise InvalidInput(f"openclaw.import: a message is {{{', '.join(sorted(_MESSAGE_FIELDS))}}}")
        try:
            body = base64.b64decode(plain["body"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise InvalidInput(f"openclaw.import: a body is not base64: {error}") from error
        message = Message(
            plain["desk"],
            plain["mailbox"],
            plain["id"],
            body,
            plain["sender"],
            plain["lane"],
            plain["kind"],
            plain["batch_key"],
        )
    return _Entry(
        fields["key"],
        fields["digest"],
        fields["source"],
        fields["result"],
        fields["reason"],
        fields["error"],
        fields["due_at"],
        fields["posted_at"],
        message,
        plain is None or plain["quiet"] is not False,
        _ref(fields.get("stands_for")),
    )


def _ref(value: Any) -> Ref | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 4 or not all(type(name) is str for name in value):
        raise InvalidInput("openclaw.import: stands_for is [desk, mailbox, sender, id]")
    return Ref(*value)


def _only(ref: Ref, state: State) -> Filter:
    return Filter(ref.desk, ref.mailbox, sender=ref.sender, id=ref.id, states=frozenset({state}))


@operation("openclaw.rollback")
def rollback(context: Context, *, root: str, after: str = "", limit: int = 500, dry_run: bool = False) -> Answer:
    """Undo what was imported from a folder, a page of receipts at a time: {"undone", "kept", "next"}."""
    undone: list[Json] = []
    kept: list[Json] = []
    page = context.store.kept(SHELF, after, min(limit, PAGE_MAX))
    for key, value in page:
        receipt = decode(value)
        if receipt.root != root:
            continue
        why = _undo(context, key, receipt, dry_run)
        row = {"key": key, "source": receipt.source, "result": receipt.result}
        if why is None:
            undone.append(row)
        else:
            kept.append({**row, "why": why})
    return {"undone": undone, "kept": kept, "next": page[-1][0] if page else None}


def _undo(context: Context, key: str, receipt: Receipt, dry_run: bool) -> str | None:
    """Take one back; or why it stays as it is."""
    forget = Keep(SHELF, key, None)
    view = None if receipt.ref is None else context.store.message(receipt.ref)
    if view is None or (view.memory and view.state is State.CANCELLED):
        if not dry_run:
            context.apply(forget)
        return None
    why = _touched(view, receipt)
    if why is not None:
        return why
    if dry_run:
        return None
    steps: list[Command] = [Cancel(view.message.ref, holder=context.by), forget]
    if view.state is State.DEAD:
        # What is finished cannot be cancelled; it is brought to life for that one moment.
        steps.insert(0, Redrive(_only(view.message.ref, State.DEAD), limit=1, holder=context.by))
    outcome = context.apply(Together(tuple(steps)))
    if isinstance(outcome, oc.Done):
        return None
    return str(outcome.reason) if isinstance(outcome, oc.Refused) else "it was changed meanwhile"


def _touched(view: MessageView, receipt: Receipt) -> str | None:
    """Why a message is no longer as the import left it."""
    expected = {
        "pending": State.READY,
        "review": State.PARKED,
        "uncertain": State.UNCERTAIN,
        "dead": State.DEAD,
        "delivered": None,
    }[receipt.result]
    if expected is None:
        return "its id is remembered as worked on, so that it is not worked on twice"
    if view.state is not expected:
        return f"it is {view.state} now"
    if view.attempts:
        return f"{view.attempts} attempts were made here"
    return None
