"""Seeded traffic for a store, the ledger of what was acknowledged, and the check of a store against it.

In: a source of randomness and the outcomes of what it asked for. Out: batches of commands, and a list
of what a store holds that contradicts the acknowledgements. It never touches files and reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from posthouse.journal import chunk as chunks
from posthouse.mailbox import event as ev
from posthouse.mailbox.command import (
    Cancel,
    Command,
    Filter,
    Keep,
    Lease,
    Post,
    Release,
    Renew,
    Settle,
    Sweep,
    Together,
    Verdict,
)
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import FINISHED, IN_LANE, Message, Ref, State
from posthouse.mailbox.outcome import Done, Kept, Leased, Outcome, Posted, Settled
from posthouse.mailbox.policy import INBOX, RELAY, Policy, ladder
from posthouse.mailbox.store import Chunk, Segment, Store

POLICIES = {
    p.name: p
    for p in (
        RELAY.replace(capacity=None),
        INBOX.replace(retry=ladder(0)),
        # Nothing is kept: rows come and go within a commit or two.
        Policy("brief", window_per_lane=4, lease_s=None, attempts_max=3),
    )
}
SIZES = (0, 20, 300, 1000, 1000, 3000, 20_000)
SHELF = "shelf"
START_AT = 1_700_000_000_000_000
ENDS = {
    ev.DELIVERED: State.DELIVERED,
    ev.DIED: State.DEAD,
    ev.EXPIRED: State.EXPIRED,
    ev.CANCELLED: State.CANCELLED,
}

Lane = tuple[str, str, str]


@dataclass
class Ledger:
    """What callers were told. A store that was cut must still agree with every line of it."""

    posted: dict[Ref, tuple[Lane, int, bytes]] = field(default_factory=dict)
    finished: dict[Ref, State] = field(default_factory=dict)
    last_seq: dict[Lane, int] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    """What the shelf holds."""
    chunks: list[tuple[int, int, bytes]] = field(default_factory=list)
    """First, last and hash of every journal chunk whose commit was acknowledged."""
    offset: int = 0
    segments: list[Segment] = field(default_factory=list)
    """Every segment whose end was acknowledged; its chunks may be gone."""
    trimming: int = 0
    """The last offset of a segment that was being finished when the store failed."""
    doubt: list[Command] = field(default_factory=list)
    """The batch under way when the store failed: it took effect whole, or not at all."""
    settles: int = 0
    wrong: list[str] = field(default_factory=list)
    """What was seen to be wrong while the store still answered."""

    def note(self, command: Command, outcome: Outcome) -> None:
        """This was answered, so it is durable."""
        if isinstance(command, Together) and isinstance(outcome, Done):
            for inner, its in zip(command.commands, outcome.outcomes, strict=True):
                self.note(inner, its)
        elif isinstance(command, Post) and isinstance(outcome, Posted):
            m = command.message
            self.post(m.ref, (m.desk, m.mailbox, m.lane), outcome.seq, m.body)
        elif isinstance(command, Keep) and isinstance(outcome, Kept):
            if outcome.changed != (self.kept.get(command.key) != command.value):
                self.wrong.append(f"{command.key}: {outcome} where {self.kept.get(command.key)!r} was kept")
            self.keep(command)
        elif isinstance(command, Settle | Cancel) and isinstance(outcome, Settled):
            self.settles += 1
            if outcome.state in FINISHED:
                self.finish(command.ref, outcome.state)

    def note_events(self, events: Iterable[Event], bodies: dict[Ref, bytes]) -> None:
        """Nobody was told of these, but they are in the journal: from now on they hold as well."""
        for e in events:
            ref = Ref(e.desk, e.mailbox, e.sender, e.message_id)
            if e.event == ev.POSTED:
                self.post(ref, (e.desk, e.mailbox, e.lane), e.lane_seq, bodies[ref])
            elif e.event in ENDS:
                self.finish(ref, ENDS[e.event])

    def post(self, ref: Ref, lane: Lane, seq: int, body: bytes) -> None:
        if ref in self.posted:
            self.wrong.append(f"{ref} was accepted twice")
        if seq != self.last_seq.get(lane, 0) + 1:
            self.wrong.append(f"{ref} got number {seq} after {self.last_seq.get(lane, 0)} in lane {lane}")
        self.posted[ref] = (lane, seq, body)
        self.last_seq[lane] = seq

    def keep(self, command: Keep) -> None:
        if command.value is None:
            self.kept.pop(command.key, None)
        else:
            self.kept[command.key] = command.value

    def finish(self, ref: Ref, state: State) -> None:
        if ref not in self.posted:
            self.wrong.append(f"{ref} ended as {state} and was never accepted")
        if ref in self.finished:
            self.wrong.append(f"{ref} ended twice: {self.finished[ref]}, then {state}")
        self.finished[ref] = state


class Traffic:
    """Posts, leases and settlements as sessions would send them; the ledger learns what was answered."""

    def __init__(self, rng: Random, ledger: Ledger, sizes: Sequence[int] = SIZES, trims: bool = False) -> None:
        self.rng = rng
        self.trims = trims
        self.sizes = sizes
        self.ledger = ledger
        self.at = START_AT
        self._number = 0
        self._held: dict[str, list[Ref]] = {}
        """What each token holds, as far as its holder knows."""

    def batch(self) -> list[Command]:
        """The next commit's commands."""
        self.at += self.rng.randint(1, 2_000_000)
        if not self._held and self.rng.random() < 0.5:
            boxes = [(desk, f"m{n}") for desk in POLICIES for n in range(4)]
            return [self._lease(*box) for box in self.rng.sample(boxes, 6)]
        if self.rng.random() < 0.05:
            # A commit without an event.
            return [self._keep(), self._keep()]
        return [self._command() for _ in range(self.rng.choice((1, 2, 5, 12, 30)))]

    def forget(self) -> None:
        """The process ended, and its leases with it."""
        self._held.clear()

    def send(self, store: Store, commands: list[Command]) -> None:
        """Apply a batch; where it fails it stays in doubt and the error goes on."""
        self.ledger.doubt = commands
        outcomes = store.apply(commands)
        self.ledger.doubt = []
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, Leased):
                self._check_lease(outcome)
                if outcome.deliveries:
                    self._held[outcome.token] = [d.message.ref for d in outcome.deliveries]
            else:
                self.ledger.note(command, outcome)
        for chunk in store.chunks(after=self.ledger.offset):
            self.ledger.chunks.append((chunk.first, chunk.last, chunk.hash))
            self.ledger.offset = chunk.last

    def step(self, store: Store) -> None:
        """One more commit; now and then the journal is trimmed too."""
        self.send(store, self.batch())
        if self.trims and self.rng.random() < 0.15:
            self._trim(store)

    def _trim(self, store: Store) -> None:
        """Do to the store what an export does, without the file: plan a segment, finish it, trim its chunks."""
        after = self.ledger.segments[-1].last if self.ledger.segments else 0
        ends = [last for first, last, _ in self.ledger.chunks if first > after]
        if len(ends) < 3:
            return
        self.ledger.trimming = self.rng.choice(ends[:-1])
        planned = store.plan_segment(self.ledger.trimming)
        self.ledger.trimming = planned.last  # One that was planned before a cut comes first.
        finished = planned._replace(chain=f"{planned.last:064x}")
        store.finish_segment(finished)
        self.ledger.segments.append(finished)
        self.ledger.trimming = 0

    def _command(self) -> Command:
        rng = self.rng
        dice = rng.random()
        desk = rng.choice(list(POLICIES))
        mailbox = f"m{rng.randrange(4)}"
        if dice < 0.42 or (dice < 0.80 and not self._held):
            return self._post(desk, mailbox)
        if dice < 0.45 and self.ledger.posted:
            ref = rng.choice(list(self.ledger.posted))
            lane = self.ledger.posted[ref][0][2]
            return Post(Message(ref.desk, ref.mailbox, ref.id, b"again", ref.sender, lane), at=self.at)
        if dice < 0.80 and self._held:
            settle = self._settle(rng.choice(list(self._held)))
            if rng.random() < 0.2:
                return Together((settle, self._post(desk, mailbox)), at=self.at)
            return settle
        if dice < 0.82 and self._held:
            token = rng.choice(list(self._held))
            return Renew(self._held[token][0].desk, token, at=self.at)
        if dice < 0.83 and self._held:
            token = rng.choice(list(self._held))
            return Release(self._held.pop(token)[0].desk, token, at=self.at)
        if dice < 0.84:
            return Sweep(at=self.at)
        if dice < 0.85 and self.ledger.posted:
            return Cancel(rng.choice(list(self.ledger.posted)), at=self.at)
        if 0.85 <= dice < 0.87:
            return self._keep()
        return self._lease(desk, mailbox if rng.random() < 0.7 else None)

    def _keep(self) -> Keep:
        value = self.rng.choice((None, b"", self.rng.randbytes(40), self.rng.randbytes(9_000)))
        return Keep(SHELF, f"key {self.rng.randrange(6)}", value, at=self.at)

    def _lease(self, desk: str, mailbox: str | None) -> Lease:
        self._number += 1
        return Lease(desk, mailbox, f"t{self._number}", "holder", self.rng.choice((1, 3, 20)), at=self.at)

    def _post(self, desk: str, mailbox: str) -> Post:
        self._number += 1
        size = self.rng.choice(self.sizes)
        lane = "" if desk == "relay" else f"l{self.rng.randrange(3)}"
        id = f"{self._number:06}-{'x' * self.rng.randrange(30)}"
        return Post(Message(desk, mailbox, id, self.rng.randbytes(size), f"s{self._number % 3}", lane), at=self.at)

    def _settle(self, token: str) -> Settle:
        held = self._held[token]
        ref = held.pop(0)
        if not held:
            del self._held[token]
        dice = self.rng.random()
        if dice < 0.9:
            verdict = Verdict.DELIVERED
        else:
            verdict = self.rng.choice((Verdict.RETRY, Verdict.RETURN, Verdict.DEAD, Verdict.REJECTED))
        return Settle(ref, token, verdict, at=self.at)

    def _check_lease(self, leased: Leased) -> None:
        last: dict[Lane, int] = {}
        for d in leased.deliveries:
            m = d.message
            lane = (m.desk, m.mailbox, m.lane)
            if self.ledger.posted.get(m.ref, (lane, 0, b""))[1:] != (d.seq, m.body):
                self.ledger.wrong.append(f"{m.ref} was leased with other contents than were posted")
            if m.ref in self.ledger.finished:
                self.ledger.wrong.append(f"{m.ref} was leased after it had ended")
            if d.seq <= last.get(lane, 0):
                self.ledger.wrong.append(f"lane {lane}: {d.seq} was leased after {last[lane]}")
            last[lane] = d.seq


def bodies_of(commands: Iterable[Command]) -> dict[Ref, bytes]:
    """The bodies that a batch would post."""
    return {post.message.ref: post.message.body for post in posts_of(commands)}


def posts_of(commands: Iterable[Command]) -> Iterator[Post]:
    for command in commands:
        if isinstance(command, Post):
            yield command
        elif isinstance(command, Together):
            yield from posts_of(command.commands)


def chain_faults(found: Sequence[Chunk]) -> list[str]:
    """What is wrong with a journal: each chunk must follow the one before, the first of all on nothing."""
    wrong: list[str] = []
    prev, first = chunks.GENESIS, 1
    for c in found:
        if c is found[0] and c.first > 1:
            prev, first = c.prev, c.first
        if c.first != first or c.prev != prev or chunks.link(c.prev, c.first, c.last, c.data) != c.hash:
            wrong.append(f"chunk {c.first}-{c.last} does not follow")
        elif len(chunks.decode(c.data)) != c.last - c.first + 1:
            wrong.append(f"chunk {c.first}-{c.last} holds another number of events")
        prev, first = c.hash, c.last + 1
    return wrong


def settle_doubt(store: Store, ledger: Ledger) -> list[str]:
    """Compare the journal with the ledger, and take in the batch in doubt if it took effect."""
    found = list(store.chunks())
    wrong = chain_faults(found)
    finished = [segment for segment in store.segments() if segment.chain]
    if finished[: len(ledger.segments)] != ledger.segments:
        return [*wrong, f"segments were finished: {ledger.segments}, and are {finished}"]
    if any(segment.last != ledger.trimming for segment in finished[len(ledger.segments) :]):
        return [*wrong, f"a segment that nobody finished: {finished}"]
    ledger.segments, ledger.trimming = finished, 0
    # What was exported may be gone, but only from the beginning on.
    trimmed = finished[-1].last if finished else 0
    begin = found[0].first if found else ledger.offset + 1
    kept = [chunk for chunk in ledger.chunks if chunk[0] >= begin]
    known = len(kept)
    if begin > trimmed + 1 or [(c.first, c.last, c.hash) for c in found[:known]] != kept:
        return [*wrong, f"the journal lost acknowledged commits: {ledger.chunks[-1:]}, now {found[-1:]}"]
    later = found[known:]
    if len(later) > (1 if ledger.doubt else 0):
        return [*wrong, f"{len(later)} commits that nobody asked for"]
    for c in later:
        events = chunks.decode(c.data)
        answered = (ev.POSTED, ev.DUPLICATE, ev.REFUSED)
        told = {Ref(e.desk, e.mailbox, e.sender, e.message_id) for e in events if e.event in answered}
        for post in ledger.doubt:
            if isinstance(post, Post) and post.message.ref not in told:
                wrong.append(f"half of a batch: no event for {post.message.ref}")
        ledger.note_events(events, bodies_of(ledger.doubt))
        ledger.chunks.append((c.first, c.last, c.hash))
        ledger.offset = c.last
    wrong += _settle_shelf(store, ledger, took_effect=bool(later))
    ledger.doubt = []
    return wrong


def _settle_shelf(store: Store, ledger: Ledger, *, took_effect: bool) -> list[str]:
    """What the shelf holds is what was acknowledged; or, with the batch in doubt, what that made of it."""
    kept = dict(store.kept(SHELF))
    if kept == ledger.kept and not took_effect:
        return []
    for command in ledger.doubt:
        if isinstance(command, Keep):
            ledger.keep(command)
    return [] if kept == ledger.kept else [f"half of a batch, or less: the shelf holds {sorted(kept)}"]


def row_faults(store: Store, ledger: Ledger) -> list[str]:
    """Compare every row with the ledger: lost, resurrected, invented, altered, out of order, miscounted."""
    wrong: list[str] = []
    if dict(store.kept(SHELF)) != ledger.kept:
        wrong.append(f"the shelf holds {sorted(dict(store.kept(SHELF)))}, not {sorted(ledger.kept)}")
    rows = {}
    for desk in POLICIES:
        after = 0
        while page := store.messages(Filter(desk), after=after, limit=500):
            after = page[-1].number
            rows.update({view.message.ref: view for view in page})
    alive = [ref for ref in ledger.posted if ref not in ledger.finished]
    for ref, stored in zip(alive, store.bodies(alive), strict=True):
        lane, seq, body = ledger.posted[ref]
        view = rows.get(ref)
        if view is None or view.state in FINISHED:
            wrong.append(f"lost: {ref} (number {seq} of {lane}) is {view.state if view else 'gone'}")
        elif view.seq != seq or stored != body:
            wrong.append(f"altered: {ref} (number {seq}, now {view.seq})")
    for ref, view in rows.items():
        if ref not in ledger.posted:
            wrong.append(f"invented: {ref}")
        elif ref in ledger.finished and view.state != ledger.finished[ref]:
            wrong.append(f"resurrected: {ref} ended as {ledger.finished[ref]} and is {view.state}")
    in_lane: dict[Lane, list[int]] = {}
    states: dict[tuple[str, str], Counter[State]] = {}
    for (desk, mailbox, _, _), view in rows.items():
        states.setdefault((desk, mailbox), Counter())[view.state] += 1
        if view.state in IN_LANE:
            in_lane.setdefault((desk, mailbox, view.message.lane), []).append(view.seq)
    for lane, last in ledger.last_seq.items():
        seen = store.lane(*lane)
        if seen is None or seen.last_seq != last:
            wrong.append(f"lane {lane} counts to {seen.last_seq if seen else None}, not {last}")
        inside = [v.seq for v in store.in_lane(*lane, limit=10_000)]
        if inside != sorted(in_lane.get(lane, [])):
            wrong.append(f"lane {lane} is not in order: {inside}")
    for box in store.mailboxes(limit=1_000):
        if states.get((box.desk, box.mailbox), {}) != dict(box.counts):
            wrong.append(f"{box.desk}/{box.mailbox} counts {dict(box.counts)}")
    return wrong
