"""Every number of every page against the engine, the journal or the lake: whole tables, and nothing beside them.

The clock stands still while a page is made, so ages are exact. A page is compared as a whole: its tables row by row,
its facts, tiles and tabs, and what other words with a digit there are. A number that nobody expects fails the test.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.console.desk import Desk, tell
from tests.console.sheet import Sheet, numbers
from tests.unit.pipeline.lakes import START, small, write

from posthouse.cli.books_keep import Keeper
from posthouse.console import plot
from posthouse.console.pages import mailboxes as mailboxes_page
from posthouse.console.render import ago, count, duration, short, size
from posthouse.console.snapshot import FLOWS, OWN, ROLES
from posthouse.control import books, presence
from posthouse.control.view import instant
from posthouse.engine.clock import Clock
from posthouse.journal.notes import CONNECTED, DISCONNECTED
from posthouse.mailbox.command import Filter, Lease, Note, Park, Post, Settle, Verdict
from posthouse.mailbox.message import SECOND, Message, State
from posthouse.mailbox.outcome import Leased
from posthouse.pipeline.digest import COUNTS, OUTCOMES
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.schema import WAITS

SMALL_DESK = "[desk.outbox]\ncapacity = 2\n"
AGENT = "pinch:bob@host"
PEER = "peer-id"


class Hands:
    """A clock that goes only when somebody moves it."""

    def __init__(self) -> None:
        self.ns = 1_800_000_000 * 10**9
        self.clock = Clock(lambda: self.ns, lambda: self.ns)

    def move(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


async def take(c: Desk, desk: str, mailbox: str, holder: str, verdict: Verdict | None, **given: Any) -> None:
    """Lease the next message of a mailbox and say what became of it; None: it is still held."""
    (leased,) = await c.engine.apply(Lease(desk, mailbox, holder, holder=holder))
    assert isinstance(leased, Leased)
    if verdict is not None:
        await c.engine.apply(Settle(leased.deliveries[0].message.ref, holder, verdict, **given))


async def live(c: Desk, hands: Hands) -> None:
    """Something of everything, each at a time of its own, within half a minute."""
    await c.post("first", desk="relay", mailbox=AGENT, sender="pinch:ann@host", kind="text")
    hands.move(1.5)
    await c.post("second", "third", desk="relay", mailbox=AGENT, sender="pinch:ann@host")
    await take(c, "relay", AGENT, "bob-conn", Verdict.RECEIVED)
    hands.move(2)
    await c.post("one", "two", "three", lane="x", sender="web")
    await c.post("four", lane="y", kind="talk")
    hands.move(0.75)
    await take(c, "inbound", "alice", "worker", Verdict.DEAD, error="timeout after 5 s")
    hands.move(3)
    await take(c, "inbound", "alice", "worker", Verdict.RETRY, error="busy", due_at=c.engine.now() + 40 * SECOND)
    await take(c, "inbound", "alice", "worker", None)
    await c.post("five", mailbox="bob")
    await take(c, "inbound", "bob", "worker", Verdict.DELIVERED)
    await c.post("six", "seven", mailbox="bob")
    (view,) = c.engine.store.find("seven")
    await c.engine.apply(Park(view.message.ref))
    hands.move(1)
    await c.post("answer", "other", desk="outbound", mailbox="mail/main", cause="one", headers={"to": "ann"})
    await take(c, "outbound", "mail/main", "courier", Verdict.UNCERTAIN, error="no answer")
    await c.post("offer", "taken", "one too many", desk="outbox", mailbox=PEER, lane="trade")
    await c.operate("mailbox.pause", mailbox=PEER, desk="outbox")
    for desk, name in (("relay", AGENT), ("outbox", PEER)):
        await c.engine.apply(Note(CONNECTED, desk, name, f"{name}-conn"))
    hands.move(4)
    await c.engine.apply(Note(DISCONNECTED, "relay", AGENT, f"{AGENT}-conn", "timeout"))
    hands.move(2)
    await c.console.attendance.caught_up()


def when(c: Desk, at: int | None) -> str:
    """How a page tells an instant."""
    return ago(None if at is None else instant(at), instant(c.engine.now()))


def age(c: Desk, at: int | None) -> str:
    return duration(0.0 if at is None else (c.engine.now() - at) / SECOND)


def flow(c: Desk, desk: str, word: str) -> int:
    return c.engine.stats.outcomes.get((desk, word), 0)


async def sheet(c: Desk, path: str, role: str = "viewer") -> Sheet:
    return Sheet((await c.page(path, role)).source)


def counted(values: Iterable[int]) -> list[str]:
    return [count(value) for value in values]


def test_the_overview(tmp_path: Path) -> None:
    hands = Hands()

    async def story(c: Desk) -> None:
        c.console.snapshots.online["agents"] = lambda: 3
        await live(c, hands)
        page = await sheet(c, "/")
        views = c.engine.store.desks()
        refused = {
            view.desk: sum(
                number
                for (desk, word), number in c.engine.stats.outcomes.items()
                if desk == view.desk and word.startswith("refused_")
            )
            for view in views
        }
        assert refused["outbox"] == 1
        depth = {
            view.desk: sum(view.counts.get(s, 0) for s in (State.READY, State.LEASED, State.RECEIVED)) for view in views
        }
        assert depth == {"inbound": 4, "inbox": 0, "outbound": 1, "outbox": 2, "relay": 3}
        assert page.tables["Desks"] == [
            [
                view.desk,
                *counted((view.mailboxes, flow(c, view.desk, "posted"), flow(c, view.desk, "delivered"))),
                *counted((view.counts.get(State.READY, 0), depth[view.desk] - view.counts.get(State.READY, 0))),
                age(c, view.oldest_at),
                *counted((flow(c, view.desk, "retried"), refused[view.desk])),
                *counted(view.counts.get(state, 0) for state in (State.PARKED, State.UNCERTAIN, State.DEAD)),
            ]
            for view in views
        ]
        assert [row[0] for row in page.tables["Roles"]] == ["gateway", "peer", "relay"]
        for row in page.tables["Roles"]:
            own = [view for view in views if ROLES[view.desk] == row[0]]
            total = {word: sum(flow(c, view.desk, word) for view in own) for word in FLOWS}
            oldest = min((view.oldest_at for view in own if view.oldest_at is not None), default=None)
            assert row[1:] == [
                *counted((total["posted"], total["delivered"], sum(depth[view.desk] for view in own))),
                age(c, oldest),
                *counted((total["retried"], total["dead"], sum(view.counts.get(State.DEAD, 0) for view in own))),
            ]
        everything = {word: sum(flow(c, view.desk, word) for view in views) for word in FLOWS}
        assert page.tiles == {
            "in": count(everything["posted"]),
            "out": count(everything["delivered"]),
            "waiting": count(sum(depth.values())),
            "oldest": "14 s",
            "tried again": count(everything["retried"]),
            "dead letters": "1",
            "agents online": "3",
        }
        assert page.tiles["oldest"] == age(c, min(view.oldest_at for view in views if view.oldest_at is not None))
        assert numbers(page.rest) == short(instant(c.engine.now())).split()
        _, told = await c.api("GET", "/api/v1/overview", role="viewer")
        assert told["at"] == instant(c.engine.now())
        assert told["offset"] == c.engine.store.offset()
        for view in views:
            since = 0.0 if view.oldest_at is None else (c.engine.now() - view.oldest_at) / SECOND
            assert told["desks"][view.desk]["oldest_s"] == round(since, 1)
            assert told["desks"][view.desk]["expired"] == flow(c, view.desk, "expired")

    tell(story, tmp_path, SMALL_DESK, hands.clock)


@pytest.mark.parametrize(("window", "slots", "label"), [("hour", 60, "%H:%M"), ("week", 168, "%a %H:%M")])
def test_the_overviews_plots(tmp_path: Path, window: str, slots: int, label: str) -> None:
    hands = Hands()

    async def story(c: Desk) -> None:
        await live(c, hands)
        await c.console.thread(c.console.history.look)
        source = (await c.page(f"/?window={window}")).source
        _, told = await c.api("GET", f"/api/v1/history?window={window}", role="viewer")
        places = [datetime.fromtimestamp(row["at"] / 1e6, UTC).strftime(label) for row in told["rows"]]
        assert len(places) == slots
        assert told["rows"][-1]["at"] <= c.engine.now() < told["rows"][-1]["at"] + told["slot_s"] * SECOND
        views = c.engine.store.desks()
        empty: list[float | None] = [None] * (slots - 1)

        def flows(word: str) -> list[plot.Series]:
            totals: dict[str, float] = {}
            for view in views:
                role = ROLES.get(view.desk, OWN)
                totals[role] = totals.get(role, 0) + flow(c, view.desk, word)
            return [plot.Series(role, [*empty, total], n) for n, (role, total) in enumerate(totals.items())]

        def each(values: Iterable[float]) -> list[plot.Series]:
            pairs = zip(views, values, strict=True)
            return [plot.Series(view.desk, [*empty, value], n) for n, (view, value) in enumerate(pairs)]

        in_lane = (State.READY, State.LEASED, State.RECEIVED)
        ages = [0.0 if v.oldest_at is None else round((c.engine.now() - v.oldest_at) / SECOND, 1) for v in views]
        depths = [sum(view.counts.get(state, 0) for state in in_lane) for view in views]
        dead = [view.counts.get(State.DEAD, 0) for view in views]
        for drawn in (
            plot.stacked_bars("Messages in, by role", places, flows("posted")),
            plot.stacked_bars("Messages out, by role", places, flows("delivered")),
            plot.lines("Depth, by desk", places, each(depths), plot.number),
            plot.lines("Age of the oldest, by desk", places, each(ages), duration),
            plot.stacked_bars("Failed and tried again, by role", places, flows("retried")),
            plot.lines("Dead letters, by desk", places, each(dead), plot.number),
        ):
            assert drawn in source, drawn[:120]
        assert source.count("<figure>") == 6

    tell(story, tmp_path, SMALL_DESK, hands.clock)


def test_mailboxes_and_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes_page, "IN_LANE", 1)
    hands = Hands()

    async def story(c: Desk) -> None:
        await live(c, hands)
        page = await sheet(c, "/mailboxes")
        boxes = c.engine.store.mailboxes()
        assert len(boxes) == 5
        assert page.tables["Mailboxes"] == [
            [
                box.desk,
                box.mailbox,
                count(box.depth),
                when(c, box.oldest_at),
                *counted((box.lanes, box.counts.get(State.DEAD, 0), box.counts.get(State.PARKED, 0))),
                "" if box.paused is None else f"paused ({box.paused})",
            ]
            for box in boxes
        ]
        assert numbers(page.rest) == []
        for box in boxes:
            page = await sheet(c, f"/mailbox?desk={box.desk}&mailbox={box.mailbox}")
            capacity = c.engine.store.policies[box.desk].capacity
            assert page.facts == {
                "desk": box.desk,
                "depth": count(box.depth),
                "capacity": "no limit" if capacity is None else count(capacity),
                "oldest": when(c, box.oldest_at),
                "lanes": count(box.lanes),
                **{str(state): count(number) for state, number in box.counts.items()},
            }
            lanes = c.engine.store.lanes(box.desk, box.mailbox)
            assert page.tables["Lanes"] == [
                [
                    lane.lane or "(no name)",
                    *counted((lane.depth, lane.in_flight, lane.last_seq)),
                    when(c, lane.oldest_at),
                    "" if lane.paused is None else f"paused ({lane.paused})",
                ]
                for lane in lanes
            ]
            assert numbers(page.rest) == []
            for lane in lanes:
                page = await sheet(c, f"/lane?desk={box.desk}&mailbox={box.mailbox}&lane={lane.lane}")
                why = await c.operate("lane.why", mailbox=box.mailbox, lane=lane.lane, desk=box.desk)
                assert (page.facts["depth"], page.facts["in flight"]) == (count(lane.depth), count(lane.in_flight))
                held = c.engine.store.in_lane(box.desk, box.mailbox, lane.lane)
                assert page.tables.get("Messages in the lane", []) == [
                    [
                        count(view.seq),
                        view.message.id,
                        view.message.sender,
                        view.message.kind,
                        str(view.state),
                        view.holder or "–",
                        count(view.attempts),
                        when(c, view.posted_at),
                        when(c, view.due_at or None),
                        view.error or "–",
                    ]
                    for view in held[:1]
                ]
                flying = [view for view in held if view.holder]
                if "until" in page.facts and flying:
                    assert page.facts["until"] == when(c, flying[0].lease_ends_at)
                aside = c.engine.store.messages(
                    Filter(
                        box.desk,
                        box.mailbox,
                        lane.lane,
                        states=frozenset({State.DEAD, State.PARKED, State.UNCERTAIN}),
                    )
                )
                assert page.tables.get("Set aside", []) == [
                    [v.message.id, str(v.state), v.reason or "–", count(v.attempts), v.error or "–"] for v in aside
                ]
                behind = [count(lane.depth - 1)] if lane.depth > 1 else []
                assert numbers(page.rest) == numbers(why["sentence"]) + behind, (box.mailbox, lane.lane)
                for view in flying[:1]:
                    if view.lease_ends_at is not None:
                        assert instant(view.lease_ends_at) in page.times

    tell(story, tmp_path, SMALL_DESK, hands.clock)


def test_every_message(tmp_path: Path) -> None:
    hands = Hands()

    async def story(c: Desk) -> None:
        await live(c, hands)
        views = [view for desk in c.engine.store.desks() for view in c.engine.store.messages(Filter(desk.desk))]
        assert len(views) == 14
        records = list(c.engine.store.events())
        seen = set()
        for view in views:
            message = view.message
            page = await sheet(c, f"/message?id={message.id}&desk={message.desk}", "admin")
            seen.add(view.state)
            named = {
                "kind": message.kind,
                "held by": view.holder,
                "reason": view.reason,
                "error": view.error,
            }
            timed = {"due": view.due_at or None, "expires": view.expires_at, "lease ends": view.lease_ends_at}
            timed["so since"] = view.since
            assert page.facts == {
                "state": str(view.state),
                "desk": message.desk,
                "mailbox": message.mailbox,
                "lane": f"{message.lane or '(no name)'}, number {count(view.seq)}",
                "sender": message.sender or "(none)",
                "posted": when(c, view.posted_at),
                "attempts": count(view.attempts),
                "size": size(len(message.body)),
                **{name: value for name, value in named.items() if value},
                **{name: when(c, at) for name, at in timed.items() if at},
                **message.headers,
            }
            told = [(o, e) for o, _, e in records if (e.desk, e.message_id) == (message.desk, message.id)]
            events = [item for item in page.items if "offset" in item]
            assert len(events) == len(told)
            for item, (offset, event) in zip(events, told, strict=True):
                assert item.startswith(f"{short(instant(event.at))} {event.event}")
                assert item.endswith(f"offset {offset} of {c.engine.store.node}")
                expected = [*short(instant(event.at)).split(), *([str(event.attempt)] if "attempt" in item else [])]
                if event.due_at and event.due_at != event.at:
                    expected += short(instant(event.due_at)).split()
                expected += numbers(event.error or "")
                assert numbers(item) == [*expected, str(offset)]
                if event.event in ("leased", "died", "retried"):
                    assert f"attempt {event.attempt}" in item
            assert numbers(page.rest) == [str(len(message.body))]
        assert seen == {"ready", "leased", "received", "dead", "parked", "uncertain", "delivered"}

    tell(story, tmp_path, SMALL_DESK, hands.clock)


def test_dead_letters(tmp_path: Path) -> None:
    hands = Hands()

    async def story(c: Desk) -> None:
        for number, error in enumerate(("no price for 7", "no price for 8", "closed")):
            await c.post(f"letter-{number}", mailbox=f"shop-{number}", kind="order")
            hands.move(2)
            await take(c, "inbound", f"shop-{number}", "worker", Verdict.DEAD, error=error)
            hands.move(1)
        page = await sheet(c, "/dead")
        letters = c.engine.store.messages(Filter("inbound", states=frozenset({State.DEAD})))
        assert page.tabs == [
            f"{state} {sum(view.counts.get(State(state), 0) for view in c.engine.store.desks())}"
            for state in ("dead", "parked", "uncertain", "expired", "cancelled")
        ]
        groups = {"no price for #": letters[:2], "closed": letters[2:]}
        assert page.tables["Groups of like errors"] == [
            [
                count(len(some)),
                "inbound",
                some[0].reason,
                error,
                count(len({view.message.mailbox for view in some})),
                when(c, some[0].since),
                when(c, some[-1].since),
                page.tables["Groups of like errors"][place][7],
                "",
            ]
            for place, (error, some) in enumerate(groups.items())
        ]
        for row, some in zip(page.tables["Groups of like errors"], groups.values(), strict=True):
            assert row[7] in {view.message.id for view in some}
        assert numbers(page.rest) == ["3", "2"], page.rest
        assert "3 messages in 2 groups" in page.rest
        page = await sheet(c, "/dead/letters")
        assert page.tables["Dead letters, one by one"] == [
            [
                view.message.id,
                "inbound",
                view.message.mailbox,
                "(no name)",
                "order",
                count(view.attempts),
                when(c, view.since),
                view.reason or "–",
                view.error or "–",
                "",
            ]
            for view in letters
        ]
        assert numbers(page.rest) == []
        # What is asked before and told after.
        asked = await sheet(c, "/confirm/dead.redrive?state=dead&error=no+price+for+%23&desk=inbound", "operator")
        assert asked.facts == {
            "state": "dead",
            "error": "no price for #",
            "desk": "inbound",
            "would be redriven": "2",
            "would be skipped": "0",
        }
        assert numbers(asked.rest) == []

    tell(story, tmp_path, clock=hands.clock)


def test_peers_and_agents(tmp_path: Path) -> None:
    hands = Hands()

    async def story(c: Desk) -> None:
        await live(c, hands)
        presence.about(c.engine, "outbox", lambda name: {"rtt_s": 0.0123, "can": ("streams",)})
        try:
            events = [event for _, _, event in c.engine.store.events()]
            first_at = events[0].at
            for desk, name, who in (("relay", AGENT, "agents"), ("outbox", PEER, "peers")):
                came, went = (
                    [e.at for e in events if (e.event, e.desk, e.mailbox) == (kind, desk, name)]
                    for kind in (CONNECTED, DISCONNECTED)
                )
                until = went[0] if went else c.engine.now()
                share = (until - came[0]) / (c.engine.now() - first_at)
                box = c.engine.store.mailbox(desk, name)
                assert box is not None
                page = await sheet(c, f"/peers?desk={desk}")
                assert page.tabs == ["agents 0 of 1", "peers 1 of 1", "accounts 0 of 0"]
                state = f"away {when(c, went[0])}" if went else f"online {when(c, came[0])}"
                rtt = duration(0.0123) if desk == "outbox" else "–"
                assert page.tables[who] == [
                    [
                        name,
                        state,
                        "",
                        f"{share:.1%}",
                        count(len(came)),
                        rtt,
                        count(box.depth),
                        when(c, box.oldest_at),
                        "streams" if desk == "outbox" else "–",
                    ]
                ]
                assert numbers(page.rest) == short(instant(first_at)).split()
                # All of it was in the last half hour of the day.
                drawn = str(plot.strip([*[None] * 47, round(share, 4)], f"online {share:.1%} of the time"))
                assert drawn in (await c.page(f"/peers?desk={desk}")).source
                one = await sheet(c, f"/party?desk={desk}&name={name}")
                assert one.facts == {
                    "state": state,
                    **({"went because": "timeout"} if went else {}),
                    "online of late": f"{share:.1%}",
                    "connections": count(len(came)),
                    "round trip": rtt,
                    "waiting": count(box.depth),
                    "oldest": when(c, box.oldest_at),
                    **({"can": "streams"} if desk == "outbox" else {}),
                }
                assert one.tables["When it was online"] == [
                    [
                        short(instant(came[0])),
                        short(instant(went[0])) if went else "now",
                        duration((until - came[0]) / SECOND),
                    ]
                ]
                assert drawn in (await c.page(f"/party?desk={desk}&name={name}")).source
                assert numbers(one.rest) == []
        finally:
            presence.about(c.engine, "outbox", None)
        day = {"node": c.engine.store.node, "desk": "relay", "mailbox": AGENT, "covered": 100, "online": 25}
        row = {**day, "day": START.date(), "share": 0.25, "connections": 7, "reconnect_rate": 0.1, "half_open": 2}
        write(Path(c.config.text("books.lake")), "availability", [row])
        one = await sheet(c, f"/party?desk=relay&name={AGENT}")
        assert one.tables["By the day"] == [[START.date().isoformat(), "25.0 %", "7", "2"]]

    tell(story, tmp_path, SMALL_DESK, hands.clock)


def hour(row: dict[str, Any]) -> str:
    return f"{datetime.fromisoformat(row['window']):%m-%d %H:%M}"


def test_the_books(tmp_path: Path) -> None:
    place = small(tmp_path)
    lake = Lake(str(place))
    hands = Hands()

    async def story(c: Desk) -> None:
        page = await sheet(c, "/books?span=all")
        rows = list(lake.rows("books"))
        total = {name: sum(row[name] for row in rows) for name in COUNTS}
        assert page.tiles == {name: count(total[name]) for name in ("posted", *OUTCOMES)}
        kinds = sorted({(row["desk"], row["kind"]) for row in rows})
        assert page.tables["By desk and kind"] == [
            [desk, kind, *counted(sum(r[n] for r in rows if (r["desk"], r["kind"]) == (desk, kind)) for n in COUNTS)]
            for desk, kind in kinds
        ]
        found = list(lake.rows("anomalies"))
        assert sorted((row[0], row[1]) for row in page.tables["Findings by kind"]) == sorted(
            (kind, count(sum(row["kind"] == kind for row in found))) for kind in {row["kind"] for row in found}
        )
        assert sorted((row[0], row[1], row[5]) for row in page.tables["Findings one by one"]) == sorted(
            (row["kind"], row["message_id"] or "–", ", ".join(map(str, row["offsets"]))) for row in found
        )
        assert page.tables["Latency"] == [
            [
                row["desk"],
                row["kind"],
                "at once" if row["live"] else "from the store",
                count(row["count"]),
                plot.span(row["p50"]),
                plot.span(row["p99"]),
            ]
            for row in sorted(lake.rows("latency"), key=lambda row: (row["desk"], row["kind"]))
        ]
        messages = list(lake.rows("messages"))
        assert page.tables["Waits"] == [
            [desk, *(plot.span(sum(m[f"wait_{n}"] or 0 for m in messages if m["desk"] == desk)) for n in WAITS)]
            for desk in sorted({row["desk"] for row in messages})
        ]
        assert page.tables["Replays"] == [
            [
                row["desk"],
                row["policy"],
                "exact" if row["exact"] else "modelled",
                *counted(row[n] for n in ("posted", "delivered", "expired", "dead", "refused", "attempts")),
                "–" if row["wait"] is None else plot.span(row["wait"]),
            ]
            for row in lake.rows("replays")
        ]
        drawn = [f"{hour(row)}: {name} {row[name]}" for row in rows for name in OUTCOMES if row[name]]
        drawn += [
            f"{hour(row)}: {name} {plot.span(row[name])}"
            for row in lake.rows("latency")
            for name in ("p50", "p95", "p99")
        ]
        for desk in {row["desk"] for row in messages}:
            waits = {n: sum(m[f"wait_{n}"] or 0 for m in messages if m["desk"] == desk) for n in WAITS}
            parts = {name: value / sum(waits.values()) for name, value in waits.items() if value}
            drawn += [f"{desk}: {name.replace('_', ' ')} {share:.1%}" for name, share in parts.items()]
        drawn += ["ttl_s=60: expired 100.0%"]
        assert sorted(page.drawn) == sorted(drawn)
        written = lake.written_at("books")
        assert written is not None
        assert page.times[written] == ago(written, instant(c.engine.now()))
        beside = [count(total[name]) for name in ("refused", "duplicate", "remainder")]
        said = [str(len(found)), *numbers(page.times[written]), *numbers(str(place)), *beside]
        assert numbers(page.rest) == said, page.rest

    tell(story, tmp_path, clock=hands.clock, books__lake=str(place))


def test_a_run_of_the_books(tmp_path: Path) -> None:
    place = small(tmp_path)
    hands = Hands()
    child = (
        "import json, sys; sys.stdin.readline(); sys.stdin.readline();"
        'print(json.dumps({"segments": 2, "events": 1234, "batches": 1, "rejected": [], "findings": []}), flush=True);'
        "sys.stdin.read()"
    )

    async def story(c: Desk) -> None:
        await c.post("m")
        keeper = Keeper(c.config, os.environ, [sys.executable, "-c", child])
        stop = asyncio.Event()
        keeping = asyncio.create_task(keeper.run(stop))
        books.keeping(c.engine, keeper)
        try:
            await c.do("books.run")
            status = await c.operate("books.status")
            page = await sheet(c, "/books?span=day")
            last = status["last"]
            assert (last["events"], last["segments"]) == (1_234, 2)
            told = f"in {duration(last['took_s'])}: 1,234 events of 2 segments."
            assert told in page.rest
            assert page.times[last["at"]] == ago(last["at"], instant(c.engine.now()))
            assert f"By itself every {duration(status['every_s'])}." in page.rest
        finally:
            books.keeping(c.engine, None)
            stop.set()
            await keeping

    tell(story, tmp_path, clock=hands.clock, books__lake=str(place), books__every_s="7200")


def test_settings_tokens_and_the_audit_log(tmp_path: Path) -> None:
    hands = Hands()

    async def story(c: Desk) -> None:
        hands.move(5)
        await c.post("one", "two")
        await c.do("mailbox.pause", {"desk": "inbound", "mailbox": "alice"})
        hands.move(2.5)
        await c.do("mailbox.purge", {"desk": "inbound", "mailbox": "alice"})
        page = await sheet(c, "/settings?all=1", "admin")
        assert page.tables["Settings"] == [
            [
                str(row["name"]),
                "–" if row["value"] is None else str(row["value"]),
                str(row["source"]),
                str(row["where"] or ""),
            ]
            for row in c.config.explain()
        ]
        tokens = (await c.operate("token.ls"))["tokens"]
        assert [row[4] for row in page.tables["Tokens"]] == [
            ago(token["made_at"], instant(c.engine.now())) for token in tokens
        ]
        assert {row[4] for row in page.tables["Tokens"]} == {"7.5 s ago"}
        page = await sheet(c, "/audit")
        actions = (await c.operate("audit.ls"))["actions"]
        assert [row[:3] for row in page.tables["What operators did"]] == [
            [short(action["at"]), action["by"], action["act"]] for action in actions
        ]
        purged = page.tables["What operators did"][0]
        events = [event for _, _, event in c.engine.store.events() if event.event == "cancelled"]
        assert f"cancelled {len(events)} " in f"{purged[4]} "
        assert set(page.times) == {action["at"] for action in actions}
        assert numbers(page.rest) == []

    tell(story, tmp_path, clock=hands.clock)


def test_a_jobs_page(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        go_on, told = threading.Event(), threading.Event()

        def work(report: Any) -> dict[str, Any]:
            report(1_500, 4_000, "removing")
            told.set()
            assert go_on.wait(20)
            return {"cancelled": 4_000, "removed": 12}

        job = c.console.jobs.start("mailbox.purge", "test", work)
        assert await asyncio.to_thread(told.wait, 20)
        page = await sheet(c, f"/jobs/{job.id}")
        assert (job.done, job.total) == (1_500, 4_000)
        assert page.rest.endswith("removing 1,500 of 4,000 Back")
        go_on.set()
        async with asyncio.timeout(20):
            await job.ended.wait()
        page = await sheet(c, f"/jobs/{job.id}")
        assert numbers(page.rest) == ["4,000", "12"]
        assert "4,000 cancelled, 12 removed." in page.rest

    tell(story, tmp_path)


def test_posting_more_is_seen_at_once(tmp_path: Path) -> None:
    """What pages show is read when they are asked for: nothing of it is kept from the time before."""
    hands = Hands()

    async def story(c: Desk) -> None:
        for number in range(1, 4):
            await c.engine.apply(Post(Message("inbound", "alice", f"m{number}", b"")))
            hands.move(60)
            assert (await sheet(c, "/")).tiles["waiting"] == str(number)
            assert (await sheet(c, "/mailboxes")).tables["Mailboxes"][0][2:4] == [str(number), f"{number}.0 min ago"]

    tell(story, tmp_path, clock=hands.clock)
