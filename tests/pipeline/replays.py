"""Replays a second time, in plain Python and from events alone: what those of Spark are compared with.

In: a journal's events as the books count them, in the order of their offsets. Out: what each message of a desk comes to
if the desk had another capacity or another time to live, and whether the record tells. Every event is gone through as
the engine would have met it; there is no code in common with ``posthouse.pipeline``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.pipeline.oracle import Oracle

Row = Mapping[str, Any]
Key = tuple[Any, ...]
"""Node, mailbox, sender, id and generation of a message."""

FINISHING = {"delivered": "delivered", "died": "dead", "expired": "expired", "cancelled": "cancelled"}
WAITING = ("posted", "retried", "released", "recalled", "unparked", "redriven")
FLYING = ("leased", "received")
SILENT = ("duplicate", "refused")
GIVEN_BACK = ("released", "recalled")


@dataclass
class Story:
    """A message as it is told."""

    said: list[Row] = field(default_factory=list)
    refused: bool = False
    repeated: bool = False

    @property
    def posted(self) -> bool:
        return any(row["event"] == "posted" for row in self.said)

    def lives(self) -> list[list[Row]]:
        """What counts: of each life nothing behind its end."""
        found: list[list[Row]] = [[]]
        for row in self.said:
            if row["event"] == "redriven":
                found.append([])
            if not found[-1] or found[-1][-1]["event"] not in FINISHING:
                found[-1].append(row)
        return found

    def outcome(self) -> str:
        if not self.said:
            return "refused"
        last = self.lives()[-1]
        if last and last[-1]["event"] in FINISHING:
            return FINISHING[last[-1]["event"]]
        return "uncertain" if self.said[-1]["event"] == "uncertain" else "open"


@dataclass
class Answer:
    """What the messages of a desk come to."""

    fates: dict[Key, str] = field(default_factory=dict)
    attempts: dict[Key, int] = field(default_factory=dict)
    exact: bool = True

    def count(self, fate: str) -> int:
        return sum(each == fate for each in self.fates.values())

    def tries(self) -> int:
        return sum(self.attempts[key] for key, fate in self.fates.items() if fate != "refused")


def records(oracle: Oracle) -> dict[str, Record]:
    """A journal's events by the names that nodes have in the books."""
    found: dict[str, list[Row]] = {}
    for row in oracle.rows('select * from events order by node, "offset"'):
        found.setdefault(row["node"], []).append(row)
    return {node: Record(rows) for node, rows in found.items()}


class Record:
    """All events of a node, or of several."""

    def __init__(self, events: Iterable[Row]) -> None:
        self.events = list(events)
        self.now = {row["node"]: row["ts"] for row in self.events}
        self._starts: dict[str, list[tuple[int, str]]] = {}
        for row in self.events:
            if row["event"] == "started":
                self._starts.setdefault(row["node"], []).append((row["offset"], row["detail"]))

    def stories(self, desk: str) -> dict[Key, Story]:
        """The messages of a desk that have a row of their own and are no orphans."""
        found: dict[Key, Story] = {}
        for key, row in self._told(desk):
            story = found.setdefault(key, Story())
            if row["event"] not in SILENT:
                story.said.append(row)
            story.refused |= row["event"] == "refused"
            story.repeated |= row["event"] == "duplicate"
        return {key: story for key, story in found.items() if story.posted or (story.refused and not story.said)}

    def _told(self, desk: str) -> Iterator[tuple[Key, Row]]:
        # A post begins a generation; so does what is said first, whatever it is.
        begun: dict[Key, int] = {}
        for row in self.events:
            if row["desk"] == desk and row["message_id"]:
                who = tuple(row[name] for name in ("node", "mailbox", "sender", "message_id"))
                if row["event"] == "posted" or (who not in begun and row["event"] not in SILENT):
                    begun[who] = begun.get(who, 0) + 1
                yield (*who, begun.get(who, 1)), row

    def recorded(self, desk: str) -> Answer:
        """What happened."""
        answer = Answer()
        for key, story in self.stories(desk).items():
            answer.fates[key] = story.outcome()
            answer.attempts[key] = sum(_tries(life) for life in story.lives())
        return answer

    def under(self, desk: str, capacity: int | None = None, ttl_s: float | None = None) -> Answer:
        """With one change, or with none."""
        if capacity is not None:
            return self.with_capacity(desk, capacity)
        return self.recorded(desk) if ttl_s is None else self.with_ttl(desk, int(ttl_s * 1_000_000))

    # A time to live

    def with_ttl(self, desk: str, ttl_us: int) -> Answer:
        """If nothing waited for longer than this."""
        answer = self.recorded(desk)
        turned = {(row["node"], row["mailbox"]) for row in self.events if _turned_away(row, desk, "full", "share")}
        for key, story in self.stories(desk).items():
            if not story.posted:
                continue
            cuts, loose = self._cuts(story, ttl_us)
            lives = story.lives()
            answer.attempts[key] = sum(_tries(life[: cuts.get(n)]) for n, life in enumerate(lives))
            answer.exact &= not loose and not any(n < len(lives) - 1 for n in cuts)
            if len(lives) - 1 in cuts:
                dies = self._policy(lives[-1][-1], desk).get("on_expiry") == "die"
                answer.fates[key] = "dead" if dies else "expired"
                # Forgotten sooner, it may be posted a second time where it was a duplicate.
                answer.exact &= key[:2] not in turned and not story.repeated
        return answer

    def _cuts(self, story: Story, ttl_us: int) -> tuple[dict[int, int], bool]:
        """Which lives pass their limit, and behind how many events; whether one ended by a limit that would be gone."""
        cuts: dict[int, int] = {}
        loose = False
        lived, place, state, clock = 0, 0, "", 0
        new: int | None = None
        old: int | None = None
        flat = [(number, row) for number, life in enumerate(story.lives()) for row in life]
        for number, row in flat:
            then = max(clock, row["ts"])
            if _passes(state, new, old, clock, then, row["event"]):
                cuts.setdefault(lived, place)
            loose |= _is_limit(row) and number not in cuts and new is not None and new != old
            place = place + 1 if number == lived else 1
            lived, clock = number, then
            if row["event"] in ("posted", "unparked", "redriven"):
                new, old = None if self._has_own(row) else row["ts"] + ttl_us, row["expires_at"]
            state = "waiting" if row["event"] in WAITING else row["event"]
        if _passes(state, new, old, clock, self.now[flat[0][1]["node"]], ""):
            cuts.setdefault(lived, place)
        return cuts, loose

    def _has_own(self, row: Row) -> bool:
        """Whether a message brought its limit along."""
        policy = self._policy(row, row["desk"])
        if row["expires_at"] is None or "ttl_s" not in policy:
            return False
        return policy["ttl_s"] is None or row["expires_at"] != row["ts"] + int(policy["ttl_s"] * 1_000_000)

    def _policy(self, row: Row, desk: str) -> dict[str, Any]:
        """The desk's policy as it was in force then."""
        said = [detail for offset, detail in self._starts.get(row["node"], []) if offset < row["offset"]]
        found = json.loads(said[-1] or "{}").get("policies", {}).get(desk) if said else None
        return found or {}

    # A capacity

    def with_capacity(self, desk: str, capacity: int) -> Answer:
        """If no mailbox took more than so many."""
        answer = self.recorded(desk)
        stories = self.stories(desk).items()
        counted = {_place(row): key for key, story in stories for life in story.lives() for row in life}
        posts = {_place(row): key for key, story in stories for row in story.said if row["event"] == "posted"}
        repeated = {key for key, story in stories if story.repeated}
        inside: dict[Key, set[Key]] = {}
        # Who was there in truth, refused by this capacity or not.
        in_truth: dict[Key, set[Key]] = {}
        come: set[Key] = set()
        for row in self.events:
            if row["desk"] != desk:
                continue
            box = inside.setdefault((row["node"], row["mailbox"]), set())
            there = in_truth.setdefault((row["node"], row["mailbox"]), set())
            has_room = len(box) < capacity
            if _turned_away(row, desk, "full"):
                answer.exact &= not has_room
            if _turned_away(row, desk, "share"):
                # Its sender may have had fewer there.
                answer.exact &= not has_room or there <= box
            if _place(row) in posts:
                come.add(posts[_place(row)])
            key = counted.get(_place(row))
            if key is None or key not in come:
                continue
            stays = row["event"] in WAITING or row["event"] in FLYING
            (there.add if stays else there.discard)(key)
            if answer.fates[key] == "refused":
                continue
            if row["event"] == "posted":
                unasked = row["kind"] == "delivery_confirm" or row["cause_id"] is not None
                if not has_room and not unasked:
                    answer.fates[key] = "refused"
                    # A refusal is not remembered: the post that was a duplicate is a new one.
                    answer.exact &= key not in repeated
                    continue
                answer.exact &= has_room
            elif stays and key not in box:
                answer.exact &= has_room
            if stays:
                box.add(key)
            else:
                box.discard(key)
        return answer


def _place(row: Row) -> tuple[str, int]:
    return row["node"], row["offset"]


def _passes(state: str, new: int | None, old: int | None, clock: int, then: int, event: str) -> bool:
    """Whether a message that was in a state until then has passed its new limit, if that is sooner than its old one."""
    if state not in ("waiting", "received") or new is None or (old is not None and old <= new):
        return False
    return then > max(new, clock) or (event == "leased" and then >= new)


def _tries(life: Iterable[Row]) -> int:
    """Leases that were not given back."""
    said = [row["event"] for row in life if row["event"] != "received"]
    return sum(event == "leased" and following not in GIVEN_BACK for event, following in pairwise([*said, ""]))


def _is_limit(row: Row) -> bool:
    return row["event"] == "expired" or (row["event"], row["reason"]) == ("died", "deadline")


def _turned_away(row: Row, desk: str, *reasons: str) -> bool:
    return (row["desk"], row["event"]) == (desk, "refused") and row["reason"] in reasons
