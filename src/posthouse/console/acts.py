"""The acts of the console: each operation that pages and API offer, who may do it, and with which parameters.

One row gives the path of the API, its entry in the OpenAPI document and, for what changes something, the target of
forms. What an act does is the control operation of its name: there is no second way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..control.dead import SCAN_MAX
from ..control.gateway import SCAN_MAX as GATEWAY_SCAN
from ..control.message import BODY_BYTES_MAX
from ..control.operation import PAGE_MAX, Json
from ..control.presence import WHO
from ..control.token import ROLES, SCOPES
from ..mailbox.command import Verdict
from ..mailbox.message import State
from .field import NAME, Field, boolean, instant_of, integer, moment, name, number, text
from .problem import Problem
from .role import ADMIN, OPERATOR, VIEWER, Role

API = "/api/v1"


class Act(NamedTuple):
    """One row of the table."""

    name: str
    """Of the control operation: ``mailbox.pause`` is POST /api/v1/mailbox/pause."""
    role: Role
    """The least that may do it."""
    fields: tuple[Field, ...]
    about: str
    keys: tuple[str, ...] = ()
    """What its answer holds, always."""
    changes: bool = False
    """It is posted, and left in the audit log."""
    long: bool = False
    """It runs as a job that tells how far it is."""
    adapt: Callable[[Json], Json] = lambda given: given
    """From the fields to the operation's parameters."""
    rules: Json = {}  # noqa: RUF012 (never changed)
    """Of its fields together, as JSON Schema says it; the operation holds them."""
    label: str = ""
    """What a button that does it says; the verb, by default."""

    @property
    def path(self) -> str:
        """Where it is in the API."""
        return f"{API}/{self.name.replace('.', '/')}"

    @property
    def verb(self) -> str:
        """What a button says."""
        return self.label or self.name.rpartition(".")[2].capitalize()

    def takes(self, field: str) -> bool:
        """Whether it has a field of this name."""
        return any(known.name == field for known in self.fields)


DESK = name("desk", "The desk, where several have such a mailbox or message.")
MAILBOX = name("mailbox", "The mailbox.", needed=True)
LANE = name("lane", "One lane of it; empty text is the lane without a name.", empty=True)
IN_MAILBOX = name("mailbox", "Only what is in this mailbox.")
ID = name("id", "The message's id.", needed=True)
SENDER = name("sender", "Only a message of this sender.", empty=True)
LIMIT = integer("limit", "Rows in the answer at most.", 1, PAGE_MAX, 50)
MOST = integer("limit", "Messages that are changed at most.", 1, 10**9)
AFTER_NUMBER = integer("after", "The page behind this message's number.", 0, 2**62)
DRY_RUN = boolean("dry_run", "Only tell what would be done.")
BODY_BYTES = integer("body_bytes_max", "How much of the body is in the answer.", 0, 1_048_576, BODY_BYTES_MAX)
WHO_DESK = text("desk", "Agents are at relay, peers at outbox, accounts at outbound.", needed=True, one_of=tuple(WHO))
WHICH = (ID, DESK, IN_MAILBOX, SENDER)
"""One message."""
WHERE = (
    name("desk", "Only messages of this desk."),
    IN_MAILBOX,
    name("lane", "Only of this lane.", empty=True),
    name("kind", "Only of this kind.", empty=True),
    name("sender", "Only of this sender.", empty=True),
    name("id", "Only with this id."),
    text("reason", "Only with this reason."),
    text("error", "Only with an error like this one: numbers and ids in it do not count."),
    moment("since", "Only those that were posted at this time or later."),
    moment("until", "Only those that were posted before this time."),
    text("state", "Only in this state.", one_of=tuple(State)),
)
"""Some messages."""
_WHERE_NAMES = tuple(field.name for field in WHERE)


def in_where(given: Json) -> Json:
    """Filters, as the operations on many messages take them."""
    where: Json = {key: given.pop(key) for key in _WHERE_NAMES if key in given}
    for key in ("since", "until"):
        if key in where:
            where[key] = instant_of(key, where[key])
    if "state" in where:
        where["states"] = [where.pop("state")]
    return {**given, "where": where}


def instants(given: Json) -> Json:
    """A span of time, as operations take it."""
    found = {key: instant_of(key, value) if key in ("since", "until") else value for key, value in given.items()}
    if "since" in found and "until" in found and found["since"] >= found["until"]:
        raise Problem("refused", "since must be before until")
    return found


def _after_box(given: Json) -> Json:
    desk, box = given.pop("after_desk", None), given.pop("after", None)
    return {**given, "after": [desk, box]} if desk is not None and box is not None else given


def _online(given: Json) -> Json:
    state = given.pop("state", None)
    return given if state is None else {**given, "online": state == "online"}


_MESSAGE_KEYS = ("desk", "mailbox", "lane", "id", "sender", "was", "state")

ACTS: tuple[Act, ...] = (
    Act(
        "mailbox.ls",
        VIEWER,
        (
            name("desk", "Only mailboxes of this desk."),
            text("contains", "Only those with this in their names."),
            name("after_desk", "The desk of the last mailbox of the page before."),
            name("after", "The name of that mailbox."),
            LIMIT,
        ),
        "Mailboxes in order of desk and name, a page at a time.",
        ("mailboxes", "next"),
        adapt=_after_box,
    ),
    Act(
        "mailbox.show",
        VIEWER,
        (MAILBOX, DESK, name("after", "The page behind this lane.", empty=True), LIMIT),
        "One mailbox with a page of its lanes.",
        ("desk", "mailbox", "depth", "counts", "lanes", "paused", "oldest_at", "capacity", "lane_list", "next"),
    ),
    Act(
        "mailbox.pause",
        OPERATOR,
        (MAILBOX, DESK, LANE),
        "Let nobody lease from a mailbox, or from one lane of it.",
        ("desk", "mailbox", "lane", "paused", "changed"),
        changes=True,
    ),
    Act(
        "mailbox.resume",
        OPERATOR,
        (MAILBOX, DESK, LANE),
        "Undo a pause.",
        ("desk", "mailbox", "lane", "paused", "changed"),
        changes=True,
    ),
    Act(
        "mailbox.purge",
        OPERATOR,
        (
            MAILBOX,
            DESK,
            LANE,
            text("state", "Only messages in this state.", one_of=tuple(State)),
            MOST,
            DRY_RUN,
        ),
        "Cancel what is unfinished in a mailbox, and remove from sight what is finished.",
        ("cancelled", "removed", "skipped", "dry_run", "more"),
        changes=True,
        long=True,
        adapt=lambda given: {
            **{key: value for key, value in given.items() if key not in ("lane", "state")},
            "where": {
                **({"lane": given["lane"]} if "lane" in given else {}),
                **({"states": [given["state"]]} if "state" in given else {}),
            },
        },
    ),
    Act(
        "lane.why",
        VIEWER,
        (MAILBOX, LANE, DESK),
        "Why a lane does not move: a stable code and a sentence.",
        ("desk", "mailbox", "lane", "depth", "in_flight", "code", "sentence", "head", "aside"),
    ),
    Act(
        "lane.unblock",
        OPERATOR,
        (MAILBOX, LANE, DESK),
        "Resume a lane that poison or an operator paused.",
        ("desk", "mailbox", "lane", "was", "changed"),
        changes=True,
    ),
    Act(
        "message.show",
        VIEWER,
        (*WHICH, BODY_BYTES),
        "One message; its body only where the role allows it (`body_hidden` says so).",
        ("desk", "mailbox", "lane", "seq", "id", "sender", "state", "posted_at", "attempts", "headers", "body"),
    ),
    Act(
        "message.history",
        VIEWER,
        WHICH,
        "All that the journal tells of a message.",
        ("id", "events", "findings"),
    ),
    Act("message.cancel", OPERATOR, WHICH, "Finish a message without delivery.", _MESSAGE_KEYS, changes=True),
    Act("message.park", OPERATOR, WHICH, "Set a message aside, so that its lane goes on.", _MESSAGE_KEYS, changes=True),
    Act("message.unpark", OPERATOR, WHICH, "Return a parked message to its lane.", _MESSAGE_KEYS, changes=True),
    Act(
        "message.resolve",
        OPERATOR,
        (
            *WHICH,
            text(
                "verdict",
                "What became of it.",
                needed=True,
                one_of=(Verdict.DELIVERED, Verdict.RETRY, Verdict.DEAD, Verdict.REJECTED),
            ),
        ),
        "Say what became of an uncertain message.",
        _MESSAGE_KEYS,
        changes=True,
    ),
    Act(
        "dead.ls",
        VIEWER,
        (*WHERE, LIMIT, integer("scan", "Dead letters to look at, the oldest.", 1, SCAN_MAX, 2_000)),
        "Dead letters in groups of like errors, the largest first.",
        ("groups", "messages", "total", "more"),
        adapt=lambda given: in_where({"scan": 2_000, **given}),
    ),
    Act(
        "dead.messages",
        VIEWER,
        (*WHERE, AFTER_NUMBER, LIMIT),
        "Dead letters one by one.",
        ("messages", "next"),
        adapt=in_where,
    ),
    Act(
        "dead.redrive",
        OPERATOR,
        (*WHERE, MOST, number("rate_per_s", "How many fall due each second.", 0.001, 1_000_000), DRY_RUN),
        "Give dead letters a new life in their old order.",
        ("redriven", "skipped", "dry_run", "more", "ids"),
        changes=True,
        long=True,
        adapt=in_where,
    ),
    Act(
        "dead.park",
        OPERATOR,
        (*WHERE, MOST, DRY_RUN),
        "Set dead letters aside, until somebody unparks, cancels or purges them.",
        ("parked", "skipped", "dry_run", "more"),
        changes=True,
        long=True,
        adapt=in_where,
    ),
    Act(
        "dead.unpark",
        OPERATOR,
        (*WHERE, MOST, DRY_RUN),
        "Return what was set aside to its lanes, each with a new life.",
        ("unparked", "skipped", "dry_run", "more"),
        changes=True,
        long=True,
        adapt=in_where,
    ),
    Act(
        "dead.purge",
        OPERATOR,
        (*WHERE, MOST, DRY_RUN),
        "Remove dead letters from sight; their ids are still remembered.",
        ("cancelled", "removed", "skipped", "dry_run", "more"),
        changes=True,
        long=True,
        adapt=in_where,
    ),
    Act(
        "gateway.stats",
        VIEWER,
        (
            integer("sessions", "The longest sessions to tell of.", 0, 1_000, 20),
            integer("scan", "Messages that channels and sessions are counted over, the oldest.", 1, GATEWAY_SCAN, 500),
        ),
        "How long the gateway's queues are, how fast they move, and what fails.",
        ("running", "accounts", "desks"),
        adapt=lambda given: {"scan": 500, **given},
    ),
    Act("alerts.ls", VIEWER, (), "Alert rules, what each sees now and how it stands.", ("alerts",)),
    Act(
        "presence.counts",
        VIEWER,
        (),
        "How many agents, peers and accounts are online, and how many were of late.",
        ("since", "desks"),
    ),
    Act(
        "presence.ls",
        VIEWER,
        (
            WHO_DESK,
            text("contains", "Only those with this in their names."),
            text("state", "Only those who are so.", one_of=("online", "away")),
            name("after", "The page behind this name.", empty=True),
            LIMIT,
        ),
        "Who is or was connected in the last day, with what waits for each.",
        ("who", "parties", "next"),
        adapt=_online,
    ),
    Act(
        "presence.show",
        VIEWER,
        (WHO_DESK, name("called", "The agent's address, the peer's id or the account.", needed=True)),
        "One of them: when it was online, and what the books say of its days.",
        ("who", "name", "online", "share", "depth", "rtt_s", "can", "stretches", "days"),
    ),
    Act("peer.peers", VIEWER, (), "With whom the peer is connected.", ("running", "id", "addresses", "peers")),
    Act(
        "relay.keys",
        VIEWER,
        (
            text("state", "Only keys in this state.", one_of=("pending", "approved", "revoked")),
            LIMIT,
        ),
        "Which agents' keys are known to the relay.",
        ("keys", "locked"),
    ),
    Act(
        "audit.ls",
        VIEWER,
        (name("after", "The page behind this key."), LIMIT),
        "What operators did.",
        ("actions", "next"),
    ),
    Act(
        "books.status",
        VIEWER,
        (),
        "Where the books are, whether this server keeps them or what they lack, and what became of the last turn.",
        ("lake", "kept", "lacking", "running", "every_s", "last"),
    ),
    Act(
        "books.summary",
        VIEWER,
        (
            moment("since", "Only what was posted at this time or later."),
            moment("until", "Only what was posted before this time."),
            name("desk", "Only messages of this desk."),
        ),
        "What the books say: outcomes that add up, findings, latency, waits, and replays.",
        ("written_at", "totals", "closes", "kinds", "hours", "findings", "latency", "waits", "replays"),
        adapt=instants,
    ),
    Act(
        "books.findings",
        VIEWER,
        (
            name("kind", "Only findings of this kind."),
            name("desk", "Only of this desk."),
            moment("since", "Only those whose evidence is of this time or later, or has no time."),
            moment("until", "Only those whose evidence is from before this time, or has no time."),
            LIMIT,
        ),
        "Findings with the ids and the offsets that prove them.",
        ("findings", "more"),
        adapt=instants,
    ),
    Act(
        "books.run",
        OPERATOR,
        (),
        "Export the journal and bring the books up to date.",
        ("exported", "events", "segments", "rejected"),
        changes=True,
        long=True,
        label="Bring the books up to date",
    ),
    Act("token.ls", ADMIN, (), "Tokens, without what they are made of.", ("tokens",)),
    Act(
        "token.add",
        ADMIN,
        (
            Field(
                "called",
                {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$"},
                "Its name.",
                True,
            ),
            text("role", "What it is in the console.", one_of=ROLES),
            Field(
                "scopes",
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": len(SCOPES),
                    "items": {"type": "string", "enum": list(SCOPES)},
                },
                "What it allows in the gateway's API.",
            ),
            Field("tenant", NAME, "Only for messages of this tenant; not with a role."),
        ),
        "Make a token. The answer is the only place that ever has it.",
        ("name", "scopes", "role", "tenant", "token"),
        changes=True,
        rules={"anyOf": [{"required": ["role"]}, {"required": ["scopes"]}], "not": {"required": ["role", "tenant"]}},
    ),
    Act(
        "token.revoke",
        ADMIN,
        (text("called", "Its name.", needed=True),),
        "Refuse a token from now on.",
        ("name", "scopes", "role", "tenant"),
        changes=True,
    ),
)
BY_NAME = {act.name: act for act in ACTS}
