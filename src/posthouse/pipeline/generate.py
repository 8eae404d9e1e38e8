"""Journals made up from a seed: realistic ones, with faults planted on purpose and an answer sheet.

In: how many events, a seed, and how many nodes, desks and mailboxes. Out: a folder of segments as the
contract has them, byte for byte the same for the same arguments, and ``_answers.json``, which says what was
planted and how the books must close. The sheet comes of what was planted; nothing here reads a journal.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..journal import schema
from . import traffic, writing
from .traffic import (
    BEGIN,
    CODE,
    DESKS,
    EVENTS,
    HOUR,
    KINDS,
    LANES,
    NO_STATE,
    NONE,
    REASON,
    REASONS,
    SECOND,
    STATES,
    Node,
)
from .writing import Array, Texts

ANSWERS = "_answers.json"
LATE = "_late"
"""Segments that are missing on purpose; put into the journal, they fill its gaps."""
SEGMENT_EVENTS = 250_000
EVENTS_PER_MESSAGE = 2.95
HOLE_EVENTS = 3

PLANTED = (
    "lost", "journal_gap", "lane_gap", "out_of_order", "delivered_twice", "settled_after_finished",
    "delivered_after_expiry", "answered_twice", "clock_back", "chain_broken",
)  # fmt: skip
"""What can be planted, as the table of anomalies names it."""

Progress = Callable[[int, int], None]


@dataclass
class Plant:
    """A fault on purpose: what it is called, whom it names, and which events show it."""

    kind: str
    subject: int = -1
    shown_by: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    style: int = 0


def generate(
    out: Path,
    *,
    events: int,
    seed: int,
    nodes: int = 2,
    desks: int = 3,
    mailboxes: int | None = None,
    planted: int = 2,
    segment_events: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a journal of about so many events into a folder; its answer sheet.

    ``planted`` is how many faults of each kind there are in the whole journal. A journal that is there already
    under these names is an error: nothing is overwritten.
    """
    if events < 200 * nodes:
        raise InvalidInput(f"a journal of {nodes} nodes has at least {200 * nodes} events, not {events}")
    if not 1 <= desks <= len(DESKS):
        raise InvalidInput(f"there are 1 to {len(DESKS)} desks, not {desks}")
    if not 1 <= nodes <= 99:
        raise InvalidInput(f"there are 1 to 99 nodes, not {nodes}")
    out.mkdir(parents=True, exist_ok=True)
    if (out / ANSWERS).exists() or any(schema.node_of(name) for name in os.listdir(out)):
        raise InvalidInput(f"{out} holds a journal already")
    per_node = events // nodes
    boxes = mailboxes if mailboxes is not None else min(max(events // (400 * desks), 4), 5_000)
    answers: dict[str, Any] = {
        "version": 1,
        "seed": seed,
        "events": 0,
        "nodes": {},
        "late": [],
        "findings": [],
        "books": [],
        "totals": {},
        "generations": [],
    }
    for number in range(nodes):
        name = f"node-{number + 1}"
        wanted = {kind: len(range(number, planted, nodes)) for kind in PLANTED}
        rng = np.random.default_rng([seed, number])
        made = _Made(name, rng, per_node, desks, boxes, wanted)
        made.write(out, answers, segment_events or min(SEGMENT_EVENTS, max(per_node // 4, 50)))
        if progress is not None:
            progress(answers["events"], events)
    for row in answers["books"]:
        total = answers["totals"].setdefault(row["desk"], {})
        for column, value in row.items():
            if column not in ("hour", "desk", "kind"):
                total[column] = total.get(column, 0) + value
    answers["findings"].sort(key=lambda f: (f["kind"], f["node"], f["offsets"], f["message_id"]))
    (out / ANSWERS).write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return answers


def fill(out: Path) -> list[Path]:
    """Put the segments that were held back into the journal; where they are then."""
    moved = []
    for path in sorted((out / LATE).glob("node=*/*.parquet")):
        target = out / path.parent.name / path.name
        shutil.copyfile(path, target)
        moved.append(target)
    return moved


# ── One node ─────────────────────────────────────────────────────────────────────────────────────


class _Made:
    """One node's journal, from its traffic to its files."""

    def __init__(
        self, name: str, rng: np.random.Generator, events: int, desks: int, boxes: int, wanted: dict[str, int]
    ) -> None:
        self.name, self.rng, self.events, self.desks, self.boxes = name, rng, events, desks, boxes
        # Twenty events a second, and never so few hours that nothing could expire.
        self.span = int(max(8 * HOUR, events * SECOND // 20))
        self.node = Node(name, rng, boxes * desks, self.span)
        self.plants: list[Plant] = []
        self.orphans: list[int] = []
        self.generations: list[tuple[int, int]] = []
        self._scenes = 0
        self._traffic()
        self._plant(wanted)
        self.wanted = wanted

    def _first(self, desk: int) -> int:
        return 1 + desk * self.boxes

    def _traffic(self) -> None:
        node, rng = self.node, self.rng
        restart = int(self.span * rng.uniform(0.5, 0.7))
        policies = {"policies": {desk.name: desk.policy() for desk in DESKS[: self.desks]}}
        node.details = Texts([json.dumps(policies, sort_keys=True, separators=(",", ":"))])
        house = node.subjects(1, named=False)
        node.emit("started", [BEGIN, BEGIN + restart], np.repeat(house, 2), detail=0)
        messages = int(self.events * 1.03 / EVENTS_PER_MESSAGE)
        shares = np.array([2.0, 1.0, 0.5, 1.0, 1.0])[: self.desks]
        counts = (messages * shares / (shares.sum() + (0.6 if self.desks > 2 else 0))).astype(int)
        self.done: Array = np.zeros(0, np.int64)
        done_at: Array = np.zeros(0, np.int64)
        answers: Any = None
        for desk, count in enumerate(counts):
            posts = traffic.post_times(rng, int(count), self.span)
            if DESKS[desk].window is None:
                traffic.open_desk(node, desk, self._first(desk), self.boxes, posts, [restart])
                continue
            given = answers if DESKS[desk].name == "outbound" else None
            done, at = traffic.ordered_desk(node, desk, self._first(desk), self.boxes, posts, [restart], given)
            if DESKS[desk].name == "inbound":
                # Some deliveries are answered, a few of them by two messages in the same commit.
                luck = rng.random(len(done))
                one, two = luck < 0.6, luck < 0.05
                answers = (np.concatenate([at[one], at[two]]), np.concatenate([done[one], done[two]]))
            self.done, done_at = np.concatenate([self.done, done]), np.concatenate([done_at, at])
        early = done_at < 0.45 * self.span
        pick = rng.permutation(np.nonzero(early)[0])[:2_000]
        self.done, self.done_at = self.done[pick], done_at[pick]
        self._next = 0

    # ── Planting

    def _victim(self) -> tuple[int, int] | None:
        """A message of the traffic that was delivered early, each only once; and when."""
        if self._next >= len(self.done):
            return None
        self._next += 1
        return int(self.done[self._next - 1]), BEGIN + int(self.done_at[self._next - 1])

    def _stage(self) -> tuple[int, dict[str, Any], int]:
        """A desk, a lane of it that nobody uses, and an instant."""
        desk = self._scenes % self.desks if self.desks == 1 else 1 + self._scenes % (self.desks - 1)
        box, lane = self._scenes % self.boxes, 9 + self._scenes // self.boxes
        if lane > LANES:
            raise InvalidInput("so many faults need more mailboxes")
        self._scenes += 1
        at = BEGIN + int(self.rng.uniform(0.05, 0.45) * self.span)
        kind = KINDS.index(DESKS[desk].kinds[0])
        where = {"desk": desk, "mailbox": self._first(desk) + box, "lane": lane, "kind": kind, "sender": 2, "size": 64}
        return desk, where, at

    def _post(self, where: dict[str, Any], seq: int, at: int, ttl: int | None = 3 * HOUR, **more: Any) -> int:
        message = int(self.node.subjects(1, seq=seq, **where, **more)[0])
        self.node.emit("posted", at, message, due=at, expires=NONE if ttl is None else at + ttl)
        return message

    def _deliver(self, message: int, at: int, took: int = SECOND) -> tuple[int, int]:
        lease = self.node.emit("leased", at, message, attempt=1, holder=1)
        return lease, self.node.emit("delivered", at + took, message, attempt=1, holder=1)

    def _plant(self, wanted: dict[str, int]) -> None:
        for kind, count in wanted.items():
            for style in range(count):
                method = getattr(self, f"_plant_{kind}", None)
                if method is None:
                    self.plants.append(Plant(kind, style=style))
                else:
                    method(style)
        _, where, at = self._stage()
        first = self._post(where, 1, at)
        self._deliver(first, at + SECOND)
        again = self._post(where, 2, at + int(1.5 * HOUR), same_id=first)
        self._deliver(again, at + int(1.6 * HOUR))
        self.generations.append((first, again))

    def _plant_lost(self, style: int) -> None:
        victim = self._victim() if style % 2 == 0 else None
        if victim is not None:
            self.orphans.append(victim[0])
            self.plants.append(Plant("lost", victim[0]))
            return
        _, where, at = self._stage()
        message = self._post(where, 1, at, ttl=HOUR)
        self.plants.append(Plant("lost", message, (self.node.emitted - 1,)))

    def _plant_lane_gap(self, style: int) -> None:
        _, where, at = self._stage()
        self._deliver(self._post(where, 1, at), at + SECOND)
        behind = self._post(where, 3 + style % 3, at + 10 * SECOND)
        shown = (self.node.emitted - 1,)
        self._deliver(behind, at + 11 * SECOND)
        self.plants.append(Plant("lane_gap", behind, shown))

    def _plant_out_of_order(self, style: int) -> None:
        _, where, at = self._stage()
        head = self._post(where, 1, at)
        other = self._post(where, 2, at + SECOND)
        if style % 2:
            self.node.emit("leased", at + 2 * SECOND, head, attempt=1, holder=1)
            self.node.emit(
                "retried", at + 3 * SECOND, head, attempt=1, holder=1, reason=REASON["failed"], error=0,
                due=at + 60 * SECOND,
            )  # fmt: skip
        lease, _ = self._deliver(other, at + 10 * SECOND)
        self._deliver(head, at + 60 * SECOND)
        self.plants.append(Plant("out_of_order", head, (lease,)))

    def _plant_delivered_twice(self, style: int) -> None:
        victim = self._victim() if style % 2 == 0 else None
        if victim is None:
            _, where, at = self._stage()
            message = self._post(where, 1, at)
            self._deliver(message, at + SECOND)
            victim = message, at + 2 * SECOND
        message, at = victim
        second = self.node.emit("delivered", at + 5 * SECOND, message, attempt=1, holder=3)
        self.plants.append(Plant("delivered_twice", message, (second,)))

    def _plant_settled_after_finished(self, style: int) -> None:
        victim = self._victim() if style % 2 == 0 else None
        if victim is None:
            _, where, at = self._stage()
            message = self._post(where, 1, at)
            self._deliver(message, at + SECOND)
            victim = message, at + 2 * SECOND
        message, at = victim
        event, reason = (("died", "rejected"), ("cancelled", "operator"), ("expired", "ttl"))[style % 3]
        late = self.node.emit(event, at + 7 * SECOND, message, state=False, reason=REASON[reason])
        self.plants.append(Plant("settled_after_finished", message, (late,)))

    def _plant_delivered_after_expiry(self, style: int) -> None:
        _, where, at = self._stage()
        message = self._post(where, 1, at, ttl=60 * SECOND)
        lease, _ = self._deliver(message, at + 60 * SECOND + style)
        self.plants.append(Plant("delivered_after_expiry", message, (lease,)))

    def _plant_answered_twice(self, style: int) -> None:
        _, where, at = self._stage()
        cause = self._post(where, 1, at)
        self._deliver(cause, at + SECOND)
        _, where, _ = self._stage()
        shown = []
        for seq in (1, 2):
            answer = self._post(where, seq, at + (2 + seq) * SECOND, cause=cause)
            shown.append(self.node.emitted - 1)
            self._deliver(answer, at + (20 + seq * 4) * SECOND)
        self.plants.append(Plant("answered_twice", cause, tuple(shown)))

    # ── From events to rows

    def write(self, out: Path, answers: dict[str, Any], segment_events: int) -> None:
        """Put the events in order, cut and write them, and say in the sheet what there is to find."""
        subjects, events = self.node.settle()
        ids = self.node.ids()
        same = np.nonzero(subjects["same_id"] >= 0)[0]
        ids[same] = ids[subjects["same_id"][same]]
        keep = np.ones(len(events["at"]), bool)
        for orphan in self.orphans:
            keep[(events["subject"] == orphan) & (events["code"] == CODE["posted"])] = False
        until = BEGIN + self.span
        if int((keep & (events["at"] <= until)).sum()) > self.events:
            nth = np.partition(events["at"][keep], self.events - 1)[self.events - 1]
            until = min(until, int(nth))
        keep &= events["at"] <= until
        self._books(subjects, events, keep, answers)

        # By time, at the same time by sort of event, and then as messages stand in their lanes.
        order = np.nonzero(keep)[0]
        order = order[np.argsort(events["subject"][order], kind="stable")]
        order = order[np.argsort(events["at"][order] * 32 + events["code"][order], kind="stable")]
        place = np.full(len(keep), -1, np.int64)
        rows = {name: column[order] for name, column in events.items() if name != "state"}
        holes = self._insert(rows, order)
        place[order[order >= 0]] = np.nonzero(order >= 0)[0]
        at = rows["at"]
        new = np.concatenate([[True], at[1:] != at[:-1]])
        commit = np.maximum.accumulate(np.where(new, np.arange(len(at)), 0)) + 1
        for plant in self.plants:
            if plant.kind == "clock_back":
                row = plant.offsets[0] - 1
                at[row] = at[row - 1] - (plant.style + 1) * 2 * SECOND
        rows["commit"] = commit

        self._find(events, place, ids, subjects, answers)
        texts = Texts.fixed(ids)
        self._files(out, answers, rows, subjects, texts, holes, segment_events)
        answers["events"] += len(at) - sum(last - first + 1 for first, last in holes)
        answers["nodes"][self.name] = {"last": len(at), "last_at": int(at[-1])}
        for pair in self.generations:
            answers["generations"].append(
                {"node": self.name, "message_id": ids[pair[0]].tobytes().decode(), "generations": 2}
            )

    def _insert(self, rows: dict[str, Array], order: Array) -> list[tuple[int, int]]:
        """Repeats of posts that go into the rows where there is room: clocks that go back, and holes.

        ``order`` gets -1 at their places. Out: the holes as offsets.
        """
        at = rows["at"]
        posted = np.nonzero(rows["code"] == CODE["posted"])[0]
        spots: list[tuple[int, int, Plant]] = []
        taken: set[int] = set()
        for plant in self.plants:
            if plant.kind not in ("clock_back", "journal_gap"):
                continue
            if plant.kind == "journal_gap" and plant.style % 3 == 2 and 0 not in taken:
                row = 0
            else:
                row = int(len(at) * self.rng.uniform(0.1, 0.9))
                while row in taken or row < posted[0] + 1 or at[row] - at[row - 1] < 10:
                    row += 1
            taken.add(row)
            spots.append((row, 1 if plant.kind == "clock_back" else HOLE_EVENTS, plant))
        spots.sort(key=lambda spot: spot[0])
        if not spots:
            return []
        where = np.concatenate([[row] * count for row, count, _ in spots]).astype(np.int64)
        instant = np.where(where > 0, at[np.maximum(where - 1, 0)] + 5, BEGIN - SECOND)
        # Each speaks of a message that was posted before it; before all of them, of the first.
        subject = rows["subject"][posted[np.maximum(np.searchsorted(posted, where) - 1, 0)]]
        values: dict[str, Any] = {"at": instant, "subject": subject, "code": CODE["duplicate"], "attempt": 0}
        values |= {"due": NONE, "expires": NONE}
        for name in rows:
            rows[name] = np.insert(rows[name], where, values.get(name, -1))
        order_new = np.insert(order, where, -1)
        order.resize(order_new.shape, refcheck=False)
        order[:] = order_new
        holes, before = [], 0
        for row, count, plant in spots:
            first = row + before + 1
            plant.offsets = (first,) if count == 1 else (first, first + count - 1)
            if plant.kind == "journal_gap":
                holes.append((first, first + count - 1))
            before += count
        return holes

    # ── The sheet

    def _books(
        self, subjects: dict[str, Array], events: dict[str, Array], keep: Array, answers: dict[str, Any]
    ) -> None:
        """How each message ended as it was planned, by hour, desk and kind."""
        outcome = np.full(len(subjects["desk"]), -1, np.int64)
        # Events of a message were added in the order of its life: the last one kept is how it stands.
        told = np.nonzero(keep & (events["state"] != NO_STATE))[0]
        outcome[events["subject"][told]] = events["state"][told]
        rows = np.nonzero(keep & (events["code"] == CODE["posted"]))[0]
        message = events["subject"][rows]
        hour = events["at"][rows] // HOUR
        key = (hour * 8 + subjects["desk"][message]) * 64 + subjects["kind"][message]
        found, which = np.unique(key, return_inverse=True)
        counts = np.zeros((len(found), len(STATES)), np.int64)
        np.add.at(counts, (which, outcome[message]), 1)
        known = {(row["hour"], row["desk"], row["kind"]): row for row in answers["books"]}
        for index, value in enumerate(found):
            at, desk, kind = int(value) // 512, DESKS[int(value) // 64 % 8].name, KINDS[int(value) % 64]
            row = known.get((at * 3_600, desk, kind))
            if row is None:
                row = {"hour": at * 3_600, "desk": desk, "kind": kind, "posted": 0, **dict.fromkeys(STATES, 0)}
                answers["books"].append(row)
            row["posted"] += int(counts[index].sum())
            for state, count in zip(STATES, counts[index], strict=True):
                row[state] += int(count)

    def _find(
        self, events: dict[str, Array], place: Array, ids: Array, subjects: dict[str, Array], answers: dict[str, Any]
    ) -> None:
        for plant in self.plants:
            if plant.kind == "chain_broken":
                continue
            offsets = plant.offsets
            if plant.shown_by:
                offsets = tuple(int(place[row]) + 1 for row in plant.shown_by)
            elif plant.kind == "lost":
                mine = np.nonzero(events["subject"] == plant.subject)[0]
                offsets = (int(min(place[row] for row in mine if place[row] >= 0)) + 1,)
            assert offsets
            assert min(offsets) > 0
            desk = mailbox = message = ""
            if plant.subject >= 0:
                desk = DESKS[int(subjects["desk"][plant.subject])].name
                message = ids[plant.subject].tobytes().decode()
                mailbox = self._mailbox(int(subjects["mailbox"][plant.subject]))
            answers["findings"].append(
                {
                    "kind": plant.kind, "node": self.name, "desk": desk, "mailbox": mailbox, "message_id": message,
                    "offsets": list(offsets),
                }
            )  # fmt: skip

    def _mailbox(self, number: int) -> str:
        return str(self.node.mailboxes.take(np.array([number]))[0][0].as_py())

    # ── Files

    def _files(
        self,
        out: Path,
        answers: dict[str, Any],
        rows: dict[str, Array],
        subjects: dict[str, Array],
        ids: Texts,
        holes: list[tuple[int, int]],
        segment_events: int,
    ) -> None:
        cuts = self._cuts(rows["commit"], holes, segment_events)
        broken = self._broken(cuts, holes)
        prev = schema.GENESIS
        for first, last in cuts:
            columns = self._columns(rows, subjects, ids, first, last)
            plant = broken.get(first)
            if plant is not None and plant.style % 2 == 0:
                prev = "f" * 64
            said = writing.chain(prev, columns)
            if plant is not None:
                if plant.style % 2:
                    sizes = np.array(columns["size_bytes"][0])
                    sizes[-1] += 1
                    columns["size_bytes"] = writing.numbers(sizes)
                answers["findings"].append(
                    {
                        "kind": "chain_broken", "node": self.name, "desk": "", "mailbox": "", "message_id": "",
                        "offsets": [first, last],
                    }
                )  # fmt: skip
            late = (first, last) in holes
            folder = (out / LATE if late else out) / schema.folder_name(self.name)
            path = writing.write_segment(folder, self.name, first, last, columns, prev=prev, said=said)
            if late:
                answers["late"].append(str(path.relative_to(out)))
            prev = said

    def _cuts(self, commit: Array, holes: list[tuple[int, int]], segment_events: int) -> list[tuple[int, int]]:
        """First and last offsets of the segments: between commits, and each hole by itself."""
        starts = np.unique(commit)
        edges = {1, len(commit) + 1}
        for first, last in holes:
            edges |= {first, last + 1}
        for due in range(segment_events + 1, len(commit) + 1, segment_events):
            found = int(starts[min(int(np.searchsorted(starts, due)), len(starts) - 1)])
            if not any(first < found <= last for first, last in holes):
                edges.add(found)
        ordered = sorted(edges)
        return [(a, b - 1) for a, b in itertools.pairwise(ordered)]

    def _broken(self, cuts: list[tuple[int, int]], holes: list[tuple[int, int]]) -> dict[int, Plant]:
        """Which segments are to have a wrong chain: such as stand behind another one, without a hole."""
        ends = {last for _, last in holes}
        fit = [first for first, last in cuts[1:] if (first, last) not in holes and first - 1 not in ends]
        plants = [plant for plant in self.plants if plant.kind == "chain_broken"]
        if len(fit) < len(plants):
            raise InvalidInput("so many broken chains need more segments")
        chosen = sorted(self.rng.permutation(fit)[: len(plants)].tolist())
        return dict(zip(chosen, plants, strict=True))

    def _columns(
        self, rows: dict[str, Array], subjects: dict[str, Array], ids: Texts, first: int, last: int
    ) -> dict[str, tuple[Any, Any]]:
        """One range of rows as columns of the contract."""
        node, count = self.node, last - first + 1
        part = {name: column[first - 1 : last] for name, column in rows.items()}
        on = {name: column[part["subject"]] for name, column in subjects.items()}
        numberless = np.isin(part["code"], [CODE["duplicate"], CODE["refused"]])
        named = on["named"] > 0
        empty = ~named
        message = ids.take(np.where(named, part["subject"], -1))
        desks = Texts(["", *(desk.name for desk in DESKS)])
        return {
            "node": writing.constant(self.name, count),
            "offset": writing.numbers(np.arange(first, last + 1)),
            "at": writing.numbers(part["at"]),
            "commit": writing.numbers(part["commit"]),
            "event": Texts(EVENTS).take(part["code"]),
            "desk": desks.take(on["desk"] + 1),
            "mailbox": node.mailboxes.take(on["mailbox"]),
            "lane": node.lanes.take(on["lane"]),
            "lane_seq": writing.numbers(np.where(numberless, 0, on["seq"])),
            "message_id": writing.blank(message, empty),
            "kind": Texts(KINDS).take(on["kind"]),
            "sender": node.senders.take(on["sender"]),
            "attempt": writing.numbers(part["attempt"]),
            "holder": node.holders.take(part["holder"]),
            "size_bytes": writing.numbers(on["size"]),
            "reason": Texts(REASONS).take(part["reason"]),
            "error": node.errors.take(part["error"]),
            "due_at": writing.numbers(part["due"], NONE),
            "expires_at": writing.numbers(part["expires"], NONE),
            "cause_id": ids.take(on["cause"]),
            "detail": node.details.take(part["detail"]),
        }
