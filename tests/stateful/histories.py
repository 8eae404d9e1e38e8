"""Histories as data: steps of commands over few names, so that they meet each other often.

In: choices, by a seed or by hypothesis. Out: a ``History`` that prints as Python, and ``stamped`` commands
for a clock. One of a seed comes fast and is made smaller by ``smaller``; hypothesis shrinks its own.
In a history times are seconds from the command's own instant, and a reference may say ``#3``: the third
of the messages in flight (or, if none is, of all) when the step begins, with its token where it has one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from posthouse.mailbox.command import (
    Cancel,
    Command,
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
from posthouse.mailbox.message import IN_FLIGHT, SECOND, Instant, Message, Ref, State
from posthouse.mailbox.policy import RELAY, LostLease, OnExpiry, Poison, Policy, SettleBy, exponential, ladder
from posthouse.mailbox.store import MessageView

T0 = 1_700_000_000 * SECOND
DAY_S = 86_400

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        RELAY.replace(
            capacity=4, attempts_max=2, unreceived_max=2, parked_max=1, dedup_s=30, aside_s=60, size_bytes_max=3
        ),
        Policy(
            "sure", lease_s=10, retry=ladder(1, 5), attempts_max=3, history_s=20, dedup_s=60, aside_s=40, ttl_s=90
        ),
        Policy(
            "unsure", window_per_lane=3, lease_s=10, retry=ladder(0, 5), attempts_max=2, capacity=5, sender_max=2,
            lost_lease=LostLease.UNCERTAIN, history_s=0, dedup_s=5, aside_s=60,
        ),
        Policy(
            "block", window_per_lane=3, lease_s=10, retry=ladder(0), attempts_max=2, poison=Poison.BLOCK,
            ttl_s=30, on_expiry=OnExpiry.DIE, history_s=10, dedup_s=10, aside_s=30,
        ),
        Policy(
            "park", window_per_lane=3, lease_s=10, retry=exponential(1, 4), attempts_max=2, poison=Poison.PARK,
            parked_max=2, capacity=4, history_s=5, dedup_s=20, aside_s=None,
        ),
        Policy(
            "quiet", lease_s=10, quiet_s=2, quiet_max_s=6, retry=ladder(1), attempts_max=2, ttl_s=30,
            history_s=0, dedup_s=20, aside_s=0,
        ),
        Policy(
            "wide", window_per_lane=None, lease_s=10, settle_by=SettleBy.ID, retry=ladder(0), attempts_max=3,
            unreceived_max=2, poison=Poison.PARK, parked_max=1, ttl_s=20, history_s=10, dedup_s=0,
        ),
    )
}  # fmt: skip
"""Small caps and short times, so that a history of a few steps reaches them."""

MAILBOXES = ("m", "n")
LANES = ("", "l")
IDS = ("a", "b", "c", "d", "e", "f", "g", "h")
SENDERS = ("s", "s", "s", "z")
TOKENS = ("t", "t", "u", "v")
SHELVES = ("blocks", "blocks", "keys")
KEYS = ("a", "a b", "ä")
CRAMPED = (0, 1, 2, 3, 4, 5, 6, 7)
WAITS_S = (0, 0, 0, 0, 1, 1, 2, 5, 10, 31)
USUAL = ("post",) * 4 + ("lease",) * 4 + ("settle",) * 5


class Step(NamedTuple):
    """Time passes; perhaps the clock is set (told to the store or not); then one batch of commands."""

    wait_s: int
    commands: tuple[Command, ...]
    jump_s: int = 0
    told: bool = False
    reopen: bool = False
    """Close the store and open it again before the batch, if it is durable."""


class History(NamedTuple):
    steps: tuple[Step, ...]
    cramped: int = 0
    """0: a store has its usual sizes; else they are as small as this number chooses (see ``stores``)."""


class World(NamedTuple):
    """Who decides, and the names that occur; few of them, so that commands meet."""

    pick: Callable[[Sequence[Any]], Any]
    desks: Sequence[str]
    mailboxes: Sequence[str]
    lanes: Sequence[str]
    kinds: Sequence[str]
    """Not every history has everything in it: what stands alone is seen more clearly."""


def make_world(pick: Callable[[Sequence[Any]], Any]) -> World:
    names = sorted(POLICIES)
    desks = (pick(names),) if pick((True, True, False)) else (pick(names), pick(names))
    extras = (
        "release",
        "renew",
        "sweep",
        "sweep",
        "operator",
        "operator",
        "pause",
        "together",
        "other",
        "hurry",
        "keep",
        "hasten",
    )
    kinds = tuple(kind for kind in extras if pick((True, False)))
    return World(pick, desks, pick((("m",), MAILBOXES)), pick((("",), LANES)), kinds + USUAL)


def make_ref(w: World, desk: str) -> Ref:
    if w.pick((True,) * 5 + (False,)):
        return Ref(desk, "", "", f"#{w.pick(range(6))}")
    return Ref(desk, w.pick(w.mailboxes), w.pick(SENDERS), w.pick(IDS))


def make_filter(w: World, desk: str) -> Filter:
    kind = w.pick(("all", "all", "mailbox", "lane", "id", "reason", "error", "time", "states", "sender"))
    match kind:
        case "mailbox":
            return Filter(desk, mailbox=w.pick(w.mailboxes))
        case "lane":
            return Filter(desk, mailbox=w.pick(w.mailboxes), lane=w.pick(w.lanes))
        case "id":
            return Filter(desk, id=w.pick(IDS))
        case "reason":
            return Filter(desk, reason=w.pick(("attempts", "purged", "permanent", "operator")))
        case "error":
            return Filter(desk, error=w.pick(("", "error #")))
        case "time":
            return Filter(desk, since=w.pick((None, 0, 2)), until=w.pick((None, 0, 10)))
        case "states":
            return Filter(desk, states=frozenset({w.pick(tuple(State)), w.pick(tuple(State))}))
        case "sender":
            return Filter(desk, sender=w.pick(SENDERS), kind=w.pick((None, "k", "")))
    return Filter(desk)


def make_post(w: World, desk: str) -> Post:
    special = w.pick(("",) * 8 + ("due", "expires", "exempt", "body"))
    if "hurry" in w.kinds and w.pick((True, False, False, False)):
        special = "hurry"
    due_at = expires_at = None
    body = b"x"
    if special == "due":
        due_at = w.pick((-5, 0, 2, 20))
    if special == "expires":
        expires_at = w.pick((-1, 1, 3, 60))
    if special == "body":
        body = w.pick((b"", b"abc", b"abcd", bytes(range(256))))
    message = Message(
        desk,
        w.pick(w.mailboxes),
        w.pick(IDS),
        body,
        w.pick(SENDERS),
        w.pick(w.lanes),
        kind=w.pick(("", "k")),
        batch_key=w.pick(("", "", "key")),
        headers=w.pick(({}, {"h": "1"})),
        cause=w.pick((None, None, "q")),
        due_at=due_at,
        expires_at=expires_at,
    )
    reason = w.pick((None, None, "import"))
    posted_at = {"a": -1, "b": -25, "c": 3}.get(message.id) if reason else None
    return Post(message, special != "hurry", special == "exempt", reason, posted_at)


def make_lease(w: World, desk: str) -> Lease:
    mailbox = w.pick((*w.mailboxes, None))
    token = w.pick(TOKENS)
    besides = w.pick(((), (), (), ("m",), ("m", "other"))) if mailbox is None else ()
    # Holders that come and go in a mailbox also take ahead.
    lane = w.pick((None, None, *w.lanes)) if mailbox is not None and "hasten" in w.kinds else None
    return Lease(
        desk, mailbox, token, w.pick((None, f"h-{token}")), w.pick((1, 2, 3, 10, 10, 0)), w.pick((True, True, False)),
        besides, lane,
    )  # fmt: skip


def make_settle(w: World, desk: str) -> Settle:
    ref = make_ref(w, desk)
    token = w.pick(("own",) * 9 + (None, "u")) if ref.id.startswith("#") else w.pick((None, *TOKENS))
    verdict = w.pick((Verdict.DELIVERED, Verdict.RETRY, Verdict.RECEIVED, *Verdict))
    error = w.pick((None, "error 1", "error 22"))
    return Settle(ref, token, verdict, w.pick((None, None, 0, 3)), None, error, w.pick((None, None, "op")))


def make_operator(w: World, desk: str) -> Command:
    match w.pick(("cancel", "park", "unpark", "redrive", "redrive", "purge")):
        case "cancel":
            return Cancel(make_ref(w, desk), holder=w.pick((None, "op")))
        case "park":
            return Park(make_ref(w, desk), w.pick((None, "review")), w.pick((None, "op")))
        case "unpark":
            return Unpark(make_filter(w, desk), w.pick((1_000, 1)), w.pick((False, False, True)), "op")
        case "redrive":
            rate = w.pick((None, None, 2.0))
            return Redrive(make_filter(w, desk), w.pick((1_000, 1, 2)), rate, w.pick((False, False, True)), "op")
    return Purge(make_filter(w, desk), w.pick((1_000, 1)), w.pick((False, False, True)), "op")


def make_command(w: World, desk: str, depth: int = 0) -> Command:
    match w.pick(w.kinds):
        case "post":
            return make_post(w, desk)
        case "lease":
            return make_lease(w, desk)
        case "settle":
            return make_settle(w, desk)
        case "release":
            return Release(desk, w.pick(TOKENS), w.pick((None, "offline")))
        case "renew":
            ref = w.pick((None, make_ref(w, desk)))
            return Renew(desk, w.pick(("own", *TOKENS)) if ref else w.pick(TOKENS), ref, w.pick((None, 1, 7)))
        case "operator":
            return make_operator(w, desk)
        case "pause":
            lane = w.pick((None, *w.lanes))
            if w.pick((True, False, False)):
                return Pause(desk, w.pick(w.mailboxes), lane, holder=w.pick((None, "op")))
            return Resume(desk, w.pick(w.mailboxes), lane, w.pick((None, "op")))
        case "keep":
            return Keep(w.pick(SHELVES), w.pick(KEYS), w.pick((b"", b"1", b"22", None)))
        case "hasten":
            return Hasten(desk, w.pick(w.mailboxes))
        case "sweep":
            return Sweep(w.pick((200, 1, 2)))
        case "together" if not depth:
            group = tuple(make_command(w, desk, depth + 1) for _ in range(w.pick((2, 3))))
            # Half of them fail at the end, after all the rest was done.
            return Together((*group, Cancel(Ref(desk, "m", "s", "nobody"))) if w.pick((False, True)) else group)
    match w.pick(("start", "note", "shift", "unknown")):
        case "start":
            return Start({desk: POLICIES[desk]})
        case "note":
            return Note(
                w.pick(("connected", "refused", "posted")), desk, "m", "h", detail=w.pick((None, {"b": 1, "a": 2}))
            )
        case "shift":
            return Shift(w.pick((3, -3)) * SECOND)
    return Lease("nowhere", None, "t")


def make_step(w: World) -> Step:
    commands = tuple(make_command(w, w.pick(w.desks)) for _ in range(w.pick((1, 1, 2, 3, 5))))
    jump_s = w.pick((0,) * 38 + (DAY_S, -DAY_S))
    told = bool(jump_s) and w.pick((False, True))
    return Step(w.pick(WAITS_S), commands, jump_s, told, w.pick((False,) * 19 + (True,)))


def history_of(seed: int, steps: int = 24) -> History:
    """The history of a seed: always the same."""
    w = make_world(random.Random(seed).choice)
    return History(tuple(make_step(w) for _ in range(steps)), w.pick(CRAMPED))


@st.composite
def histories(draw: st.DrawFn, steps_max: int = 20) -> History:
    """Histories as hypothesis chooses and shrinks them."""
    w = make_world(lambda choices: draw(st.sampled_from(choices)))
    steps = draw(st.lists(st.composite(one_step)(w), min_size=1, max_size=steps_max))
    return History(tuple(steps), w.pick(CRAMPED))


def one_step(draw: st.DrawFn, w: World) -> Step:
    return make_step(w._replace(pick=lambda choices: draw(st.sampled_from(choices))))


def smaller(history: History, fails: Callable[[History], bool]) -> History:
    """A smaller history that still fails: fewer steps, fewer commands, nothing special about them."""
    tries = 500  # Enough for most; a slow store must not make the search endless.

    def still(steps: Sequence[Step], cramped: int = history.cramped) -> bool:
        nonlocal tries
        tries -= 1
        return tries >= 0 and bool(steps) and fails(History(tuple(steps), cramped))

    steps = list(history.steps)
    size = len(steps)
    while size:
        start = 0
        while start < len(steps):
            shorter = steps[:start] + steps[start + size :]
            if still(shorter):
                steps = shorter
            else:
                start += size
        size //= 2
    for index in range(len(steps)):
        progress = True
        while progress:
            progress = False
            for simpler in simpler_steps(steps[index]):
                if still((*steps[:index], simpler, *steps[index + 1 :])):
                    steps[index] = simpler
                    progress = True
                    break
    return History(tuple(steps), 0 if still(steps, 0) else history.cramped)


def simpler_steps(step: Step) -> Iterator[Step]:
    if step.jump_s:
        yield step._replace(jump_s=0, told=False)
    if step.reopen:
        yield step._replace(reopen=False)
    if step.wait_s:
        yield step._replace(wait_s=0)
    for n, command in enumerate(step.commands):
        if len(step.commands) > 1:
            yield step._replace(commands=step.commands[:n] + step.commands[n + 1 :])
        if isinstance(command, Together):
            yield step._replace(commands=step.commands[:n] + command.commands + step.commands[n + 1 :])
        if isinstance(command, Post):
            plain = Post(Message(*command.message[:4], command.message.sender, command.message.lane))
            if plain != command:
                yield step._replace(commands=(*step.commands[:n], plain, *step.commands[n + 1 :]))


def stamped(command: Any, at: Instant, known: Sequence[MessageView]) -> Any:
    """The command at this instant, with its relative times and references made absolute."""
    if isinstance(command, Together):
        return Together(tuple(stamped(c, at, known) for c in command.commands), at)
    changes: dict[str, Any] = {"at": at}
    if isinstance(command, Post):
        m = command.message
        changes["message"] = m._replace(due_at=after(m.due_at, at), expires_at=after(m.expires_at, at))
        changes["posted_at"] = after(command.posted_at, at)
    if isinstance(command, Settle):
        changes["due_at"] = after(command.due_at, at)
    if isinstance(command, Redrive | Unpark | Purge):
        f = command.filter
        changes["filter"] = f._replace(since=before(f.since, at), until=before(f.until, at))
    if isinstance(command, Settle | Renew | Cancel | Park) and command.ref is not None:
        ref, token = found(command.ref, known)
        changes["ref"] = ref
        if isinstance(command, Settle | Renew) and command.token == "own":
            changes["token"] = token or "t"
    return command._replace(**changes)


def after(seconds: int | None, at: Instant) -> Instant | None:
    return None if seconds is None else at + seconds * SECOND


def before(seconds: int | None, at: Instant) -> Instant | None:
    return None if seconds is None else at - seconds * SECOND


def found(ref: Ref, known: Sequence[MessageView]) -> tuple[Ref, str | None]:
    """The message that ``#n`` stands for."""
    if not ref.id.startswith("#"):
        return ref, None
    here = [view for view in known if view.message.desk == ref.desk]
    among = [view for view in here if view.state in IN_FLIGHT] or here
    if not among:
        return Ref(ref.desk, "m", "s", "a"), None
    view = among[int(ref.id[1:]) % len(among)]
    return view.message.ref, view.token
