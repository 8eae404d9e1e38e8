"""Replays: policies as they are written, and what they make of messages, beside an independent computation."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from tests.pipeline.journal import Journal
from tests.pipeline.journals import hostile, write_journal, write_restored
from tests.pipeline.oracle import Oracle
from tests.pipeline.replays import Answer, Record, records
from tests.pipeline.test_transforms import kept

from posthouse.cli.books_replay import WIDE, bar
from posthouse.errors import InvalidInput
from posthouse.pipeline import bronze, transforms
from posthouse.pipeline import replay as replaying
from posthouse.pipeline.generate import generate
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.ledger import APPEND, Ledger, Plan, State
from posthouse.pipeline.replay import Policy, fates, policy_of, replay, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)


def test_a_policy_is_read_from_one_line() -> None:
    policy = policy_of("capacity=10, ttl_s=1.5, retry=[1, 5]")
    assert policy == Policy(10, 1.5, None, (1, 5))
    assert policy.text == "capacity=10, ttl_s=1.5, retry=[1, 5]"
    assert policy_of("").text == "recorded"


@pytest.mark.parametrize(
    "text",
    ["capacity", "capacity=0", "capacity=1.5", "ttl_s=0", "size=3", "retry=5", "retry=[]", "ttl_s=1 capacity=2",
     "capacity=1, capacity=2", "ttl_s=true", "ttl_s=x"],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        policy_of(text)


def test_only_one_change_of_capacity_or_ttl_is_exact() -> None:
    assert policy_of("capacity=3").exact
    assert policy_of("ttl_s=3").exact
    assert not policy_of("capacity=3, ttl_s=3").exact
    assert not policy_of("attempts_max=3").exact


def test_a_bar_shows_whatever_happened() -> None:
    shown = bar({"posted": 10_000, "delivered": 9_996, "expired": 1, "dead": 1, "refused": 1})
    assert shown == "█" * (WIDE - 4) + "▒▓░·"
    assert bar({"posted": 4, "delivered": 2, "expired": 0, "dead": 2, "refused": 0}) == "█" * 15 + "▓" * 15
    assert bar(dict.fromkeys(("posted", "delivered", "expired", "dead", "refused"), 0)) == "█" * WIDE


def test_a_lake_whose_run_was_interrupted_is_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(str(tmp_path))
    monkeypatch.setattr(ledger, "has", lambda name: True)
    ledger.begin(Plan(1, APPEND, (), State(batch=1)))
    with pytest.raises(InvalidInput, match="interrupted"):
        run(cast("SparkSession", None), ledger, "relay", [Policy()])


# ── Messages by hand ─────────────────────────────────────────────────────────────────────────────


class Case(NamedTuple):
    """What is told of a few messages (second, event, id and more), and what they come to under a policy."""

    policy: str
    told: Sequence[tuple[Any, ...]]
    fates: Mapping[str, str]
    attempts: int
    exact: bool = True


def started(**policy: Any) -> tuple[Any, ...]:
    return 0, "started", "", {"detail": json.dumps({"policies": {"relay": policy}})}


OTHER, ANOTHER = {"sender": "other"}, {"sender": "another"}
CASES = {
    "never-leased": Case(
        "ttl_s=60", [(0, "posted", "a"), (864_000, "posted", "b")], {"a": "expired", "b": "open"}, 0
    ),
    "tried-in-vain": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (0, "leased", "a"), (10, "retried", "a"), (30, "leased", "a"), (40, "retried", "a"),
         (90, "leased", "a"), (100, "retried", "a"), (300, "leased", "a"), (301, "delivered", "a")],
        {"a": "expired"}, 2,
    ),
    "failed-and-cancelled-at-last": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (1, "leased", "a"), (2, "retried", "a"), (500, "cancelled", "a")],
        {"a": "expired"}, 1,
    ),
    "leased-in-time": Case(
        "ttl_s=60", [(0, "posted", "a"), (59, "leased", "a"), (200, "delivered", "a")], {"a": "delivered"}, 1
    ),
    "in-flight-still": Case(
        "ttl_s=60", [(0, "posted", "a"), (59, "leased", "a"), (200, "posted", "b")], {"a": "open", "b": "open"}, 1
    ),
    "leased-at-its-limit": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (0, "posted", "b"), (60, "leased", "a"), (60, "delivered", "b"), (60, "delivered", "a")],
        {"a": "expired", "b": "delivered"}, 0,
    ),
    "given-back-too-late": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (59, "leased", "a"), (200, "released", "a"), (201, "leased", "a"),
         (202, "delivered", "a")],
        {"a": "expired"}, 0,
    ),
    "arrived": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (0, "posted", "b"), (1, "leased", "a"), (1, "leased", "b"), (2, "received", "a"),
         (100, "delivered", "a"), (100, "received", "b"), (100, "delivered", "b")],
        {"a": "expired", "b": "delivered"}, 2,
    ),
    "set-aside": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (0, "posted", "b"), (10, "parked", "a"), (10, "parked", "b"), (500, "unparked", "a"),
         (500, "unparked", "b"), (530, "leased", "a"), (531, "delivered", "a"), (600, "leased", "b"),
         (601, "delivered", "b")],
        {"a": "delivered", "b": "expired"}, 1,
    ),
    "parked-and-waits": Case(
        "ttl_s=60", [(0, "posted", "a"), (10, "parked", "a"), (900, "posted", "b")], {"a": "open", "b": "open"}, 0
    ),
    "uncertain": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (0, "posted", "b"), (1, "leased", "a"), (1, "leased", "b"), (2, "uncertain", "a"),
         (2, "uncertain", "b"), (500, "retried", "b"), (501, "leased", "b"), (502, "delivered", "b")],
        {"a": "uncertain", "b": "expired"}, 2,
    ),
    "redriven": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (1, "leased", "a"), (2, "died", "a"), (500, "redriven", "a"), (501, "leased", "a"),
         (502, "delivered", "a")],
        {"a": "delivered"}, 2,
    ),
    "redriven-and-had-passed-before": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (100, "leased", "a"), (101, "died", "a"), (500, "redriven", "a"), (501, "leased", "a"),
         (502, "delivered", "a")],
        {"a": "delivered"}, 1, False,
    ),
    "a-limit-of-its-own": Case(
        "ttl_s=60",
        [started(ttl_s=1_000, on_expiry="expire"), (0, "posted", "a", {"expires_at": 1_000}),
         (0, "posted", "b", {"expires_at": 5_000}), (500, "leased", "a"), (500, "leased", "b"), (501, "delivered", "a"),
         (501, "delivered", "b")],
        {"a": "expired", "b": "delivered"}, 1,
    ),
    "a-desk-whose-messages-die": Case(
        "ttl_s=60",
        [started(ttl_s=None, on_expiry="die"), (0, "posted", "a"), (500, "leased", "a"), (501, "delivered", "a")],
        {"a": "dead"}, 0,
    ),
    "nobody-knows-who-would-have-found-room": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (100, "refused", "b", {"reason": "full"}), (200, "leased", "a"), (201, "delivered", "a")],
        {"a": "expired", "b": "refused"}, 0, False,
    ),
    "nobody-knows-whose-share-would-have-been-free": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (100, "refused", "b", {"reason": "share"}), (200, "leased", "a"),
         (201, "delivered", "a")],
        {"a": "expired", "b": "refused"}, 0, False,
    ),
    "expired-and-posted-again": Case(
        "ttl_s=60",
        [started(ttl_s=None, on_expiry="expire", dedup_s=86_400), (0, "posted", "a"), (172_800, "duplicate", "a"),
         (172_900, "posted", "b")],
        {"a": "expired", "b": "open"}, 0, False,
    ),
    "delivered-in-time-and-posted-again": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (1, "duplicate", "a"), (2, "leased", "a"), (3, "delivered", "a"),
         (172_800, "duplicate", "a")],
        {"a": "delivered"}, 1,
    ),
    "the-clock-went-back": Case(
        "ttl_s=60", [(0, "posted", "a"), (100, "leased", "a"), (5, "delivered", "a")], {"a": "expired"}, 0
    ),
    "the-clock-went-back-behind-a-second-lease": Case(
        "ttl_s=60",
        [(0, "posted", "a"), (1, "leased", "a"), (30, "retried", "a"), (100, "leased", "a"), (5, "delivered", "a")],
        {"a": "expired"}, 1,
    ),
    "the-clock-went-back-by-a-second": Case(
        "ttl_s=60", [(1, "posted", "a"), (61, "leased", "a"), (60, "delivered", "a")], {"a": "expired"}, 0
    ),
    "the-clock-went-back-before-the-limit-was-set-anew": Case(
        "ttl_s=60",
        [(100, "posted", "a"), (101, "parked", "a"), (5, "unparked", "a"), (70, "leased", "a"),
         (71, "delivered", "a")],
        {"a": "expired"}, 0,
    ),
    "as-it-was": Case(
        "ttl_s=60", [(0, "posted", "a", {"expires_at": 60}), (60, "expired", "a", {"reason": "ttl"})],
        {"a": "expired"}, 0,
    ),
    "nobody-is-brought-back": Case(
        "ttl_s=600",
        [(0, "posted", "a", {"expires_at": 60}), (61, "expired", "a", {"reason": "ttl"}), (900, "posted", "b")],
        {"a": "expired", "b": "open"}, 0, False,
    ),
    "one-leaves-at-the-instant-at-which-another-comes": Case(
        "capacity=1",
        [(0, "posted", "a"), (5, "delivered", "a"), (5, "posted", "b"), (6, "duplicate", "a"), (7, "delivered", "b")],
        {"a": "delivered", "b": "delivered"}, 0,
    ),
    "set-aside-it-takes-no-room": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "parked", "a"), (2, "posted", "b"), (3, "posted", "c"), (4, "delivered", "b")],
        {"a": "open", "b": "delivered", "c": "refused"}, 0,
    ),
    "unparked-where-there-is-no-room": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "parked", "a"), (2, "posted", "b"), (3, "unparked", "a"), (4, "delivered", "b"),
         (5, "posted", "c")],
        {"a": "open", "b": "delivered", "c": "refused"}, 0, False,
    ),
    "dead-or-uncertain-it-takes-no-room": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "leased", "a"), (2, "died", "a"), (3, "posted", "b"), (4, "leased", "b"),
         (5, "uncertain", "b"), (6, "redriven", "a"), (7, "leased", "a"), (8, "delivered", "a"), (9, "posted", "c")],
        {"a": "delivered", "b": "uncertain", "c": "open"}, 3,
    ),
    "refused-it-takes-no-room-when-it-comes-back": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "posted", "b"), (2, "parked", "b"), (3, "unparked", "b"), (4, "delivered", "a"),
         (5, "posted", "c"), (6, "delivered", "b"), (7, "posted", "d"), (8, "delivered", "c")],
        {"a": "delivered", "b": "refused", "c": "delivered", "d": "refused"}, 0,
    ),
    "refused-as-it-was": Case(
        "capacity=1", [(0, "posted", "a"), (1, "refused", "b", {"reason": "full"})], {"a": "open", "b": "refused"}, 0
    ),
    "room-for-one-who-was-refused": Case(
        "capacity=2", [(0, "posted", "a"), (1, "refused", "b", {"reason": "full"})],
        {"a": "open", "b": "refused"}, 0, False,
    ),
    "refused-and-posted-in-one-commit": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "refused", "b", {"reason": "full"}), (1, "delivered", "a", {"commit": 2}),
         (1, "posted", "b", {"commit": 2}), (2, "posted", "c")],
        {"a": "delivered", "b": "open", "c": "refused"}, 0,
    ),
    "refused-and-posted-again": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "posted", "b"), (2, "delivered", "a"), (3, "duplicate", "b"), (4, "leased", "b"),
         (5, "delivered", "b")],
        {"a": "delivered", "b": "refused"}, 0, False,
    ),
    "taken-and-posted-again": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "duplicate", "a"), (2, "posted", "b"), (3, "delivered", "a"), (4, "delivered", "b")],
        {"a": "delivered", "b": "refused"}, 0,
    ),
    "its-sender-would-have-had-no-share-in-it": Case(
        "capacity=1",
        [started(sender_max=2), (0, "posted", "x", OTHER), (1, "posted", "a"), (2, "posted", "b"),
         (3, "delivered", "x", OTHER), (4, "refused", "c", {"reason": "share"})],
        {"x": "delivered", "a": "refused", "b": "refused", "c": "refused"}, 0, False,
    ),
    "no-room-for-one-beyond-its-senders-share": Case(
        "capacity=1",
        [started(sender_max=1), (0, "posted", "x", OTHER), (1, "posted", "a"),
         (2, "refused", "b", {"reason": "share"})],
        {"x": "open", "a": "refused", "b": "refused"}, 0,
    ),
    "its-sender-had-its-share-all-the-same": Case(
        "capacity=2",
        [started(sender_max=1), (0, "posted", "x", OTHER), (1, "posted", "y", ANOTHER),
         (2, "posted", "a"), (3, "parked", "a"), (4, "posted", "b"), (5, "cancelled", "b"),
         (6, "delivered", "x", OTHER), (7, "delivered", "y", ANOTHER), (8, "posted", "c"),
         (9, "refused", "d", {"reason": "share"}), (10, "unparked", "a")],
        {"x": "delivered", "y": "delivered", "a": "refused", "b": "refused", "c": "open", "d": "refused"}, 0,
    ),
    "refused-and-back-from-aside-it-counts-for-its-sender": Case(
        "capacity=2",
        [started(sender_max=1), (0, "posted", "x", OTHER), (1, "posted", "y", ANOTHER),
         (2, "posted", "a"), (3, "parked", "a"), (4, "delivered", "x", OTHER), (5, "unparked", "a"),
         (6, "refused", "c", {"reason": "share"})],
        {"x": "delivered", "y": "open", "a": "refused", "c": "refused"}, 0, False,
    ),
    "nobody-asks-for-a-confirmation": Case(
        "capacity=1",
        [(0, "posted", "a"), (1, "posted", "b", {"kind": "delivery_confirm"}), (2, "delivered", "a"),
         (3, "posted", "c")],
        {"a": "delivered", "b": "open", "c": "refused"}, 0, False,
    ),
}  # fmt: skip
SIMPLE = [
    (0, "posted", "a"), (1, "posted", "b"), (2, "posted", "c"), (10, "leased", "a"), (11, "delivered", "a"),
    (12, "leased", "b"), (15, "retried", "b"), (20, "leased", "b", {"attempt": 2}), (21, "delivered", "b"),
    (25, "posted", "d"), (30, "leased", "c"), (31, "delivered", "c"), (32, "leased", "d"), (40, "delivered", "d"),
]  # fmt: skip


def journal_of(told: Sequence[tuple[Any, ...]], node: str, desk: str = "relay") -> Journal:
    story = Journal(node, desk)
    for at, event, id, *more in told:
        story.add(at, event, id, **(dict(*more)))
    return story


def test_the_oracle_says_of_each_case_what_was_worked_out_by_hand(tmp_path: Path) -> None:
    for name, case in CASES.items():
        story = journal_of(case.told, name)
        assert len(list(story.written(tmp_path, [len(story.rows)]))) == 1
    nodes = records(Oracle(tmp_path))
    for name, case in CASES.items():
        change = policy_of(case.policy)
        check_case(name, nodes[name].under("relay", change.capacity, change.ttl_s))


def check_case(name: str, answer: Answer) -> None:
    case = CASES[name]
    assert {key[3]: fate for key, fate in answer.fates.items()} == case.fates, name
    assert (answer.tries(), answer.exact) == (case.attempts, case.exact), name


CAPACITY = 3


def crowd() -> Journal:
    """Many mailboxes of any fill; some messages never end."""
    rng = random.Random(3)
    told: list[tuple[Any, ...]] = []
    for number in range(50):
        for place, second in enumerate(sorted(rng.sample(range(1_000), rng.randint(1, 40)))):
            box, id = {"mailbox": f"m{number}"}, f"{number}-{place}"
            told.append((second, "posted", id, box))
            if rng.random() >= 0.1:
                told.append((second + rng.choice((0.5, 20.5, 200.5)), "delivered", id, box))
    return journal_of(sorted(told, key=lambda each: each[0]), "crowd", "crowd")


class Told(NamedTuple):
    """Tables of one batch, and the events that they are made of, on Spark and as they are."""

    messages: DataFrame
    attempts: DataFrame
    events: DataFrame
    nodes: dict[str, Record]

    def replayed(self, desk: str, policy: str) -> dict[str, Any]:
        (row,) = replay(self.messages, self.attempts, self.events, desk, policy_of(policy)).collect()
        return dict(row.asDict())

    def fates(self, desk: str, policy: str) -> dict[str, Answer]:
        """What messages come to, by node."""
        found: dict[str, Answer] = {}
        for row in fates(self.messages, self.attempts, self.events, desk, policy_of(policy)).collect():
            answer = found.setdefault(row["node"], Answer())
            answer.exact &= not row["unsure"]
            if row["fate"] is not None:
                key = tuple(row[name] for name in ("node", "mailbox", "sender", "message_id", "generation"))
                assert key not in answer.fates
                answer.fates[key] = row["fate"]
                answer.attempts[key] = row["attempts"]
        return found


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Cases by hand, each a node of its own, and hostile journals."""
    journal = tmp_path_factory.mktemp("replays")
    write_journal(journal, hostile(100))
    stories = [journal_of(case.told, name) for name, case in CASES.items()]
    for story in [*stories, journal_of(SIMPLE, "simple", "simple"), crowd()]:
        assert len(list(story.written(journal, [len(story.rows)]))) == 1
    events = kept(spark.read.schema(bronze.ddl()).parquet(*map(str, journal.glob("node=*/*.parquet"))))
    batch = transforms.advance(events, keep=kept)
    return Told(kept(batch.messages), kept(batch.attempts), events, records(Oracle(journal)))


POLICIES = (
    "", "ttl_s=1", "ttl_s=8", "ttl_s=60", "ttl_s=600", "ttl_s=5000", "capacity=1", "capacity=2", "capacity=3",
)  # fmt: skip


@pytest.mark.parametrize("desk", ["relay", "inbound"])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_message_comes_to_what_the_oracle_says(told: Told, desk: str, policy: str) -> None:
    change = policy_of(policy)
    found = told.fates(desk, policy)
    wanted = {node: record.under(desk, change.capacity, change.ttl_s) for node, record in told.nodes.items()}
    wanted = {node: answer for node, answer in wanted.items() if answer.fates or not answer.exact}
    assert found.keys() == wanted.keys()
    for node, answer in wanted.items():
        assert found[node].fates == answer.fates, node
        tried = {key: number for key, number in answer.attempts.items() if answer.fates[key] != "refused"}
        assert {key: found[node].attempts[key] for key in tried} == tried, node
        assert found[node].exact == answer.exact, node
    if policy:
        assert not all(answer.exact for answer in wanted.values())
    for node, case in CASES.items():
        if desk == "relay" and case.policy == policy:
            check_case(node, found[node])


def test_a_smaller_mailbox_refuses_and_a_shorter_life_expires(told: Told) -> None:
    recorded = told.replayed("simple", "")
    assert (recorded["posted"], recorded["delivered"], recorded["attempts"]) == (4, 4, 5)
    smaller = told.replayed("simple", "capacity=2")
    # c comes while a and b are there; d finds room, since both have left and c never came.
    assert (smaller["refused"], smaller["delivered"], smaller["exact"]) == (1, 3, True)
    # b's last lease begins 19 s, c's 28 s after its post; a and d are in time.
    shorter = told.replayed("simple", "ttl_s=15")
    assert (shorter["expired"], shorter["delivered"], shorter["attempts"], shorter["exact"]) == (2, 2, 3, True)
    fewer = told.replayed("simple", "attempts_max=1")
    assert (fewer["dead"], fewer["attempts"], fewer["exact"]) == (1, 4, False)
    sooner = told.replayed("simple", "retry=[1]")
    # b waited 5 s after its first attempt; now 1 s.
    assert recorded["wait"] - sooner["wait"] == 1_000_000
    both = told.replayed("simple", "capacity=2, ttl_s=15")
    assert (both["posted"], both["refused"], both["expired"], both["exact"]) == (4, 1, 1, False)


def test_mailboxes_refuse_whether_or_not_their_lists_turn_a_page(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "_PAGE", 2)
    row = told.replayed("crowd", f"capacity={CAPACITY}")
    wanted = told.nodes["crowd"].with_capacity("crowd", CAPACITY)
    assert row["refused"] == wanted.count("refused") > 100
    assert row["posted"] == len(wanted.fates)
    assert row["exact"]


# ── A lake ───────────────────────────────────────────────────────────────────────────────────────


def test_replays_of_a_lake_are_the_oracles_and_kept_once(spark: SparkSession, tmp_path: Path) -> None:
    """A journal that was made up, two nodes of which one goes on from the other, and one whose replay is modelled."""
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    generate(journal, events=6_000, seed=7, nodes=2, desks=4, planted=0, segment_events=500)
    rows = max(hostile(30), key=lambda rows: sum(row["desk"] == "relay" for row in rows if row["event"] == "posted"))
    write_restored(journal, "old", rows, [len(rows) // 2])
    modelled = CASES["room-for-one-who-was-refused"]
    list(journal_of(modelled.told, "modelled").written(journal, [len(modelled.told)]))
    job = Job(str(lake), lambda: spark)
    job.run(str(journal))
    nodes = records(Oracle(journal)).values()
    asked = {"relay": ["", "ttl_s=1800", modelled.policy], "outbox": ["", "ttl_s=300"]}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for desk, policies in (*asked.items(), ("outbox", [""])):
        for row in run(job.spark, job.ledger, desk, [policy_of(text) for text in policies]):
            found[desk, row["policy"]] = row
            change = policy_of("" if row["policy"] == "recorded" else row["policy"])
            answers = [node.under(desk, change.capacity, change.ttl_s) for node in nodes]
            for fate in ("delivered", "expired", "dead", "refused"):
                assert row[fate] == sum(answer.count(fate) for answer in answers), (row, fate)
            assert row["posted"] == sum(len(answer.fates) for answer in answers)
            assert row["attempts"] == sum(answer.tries() for answer in answers)
            assert row["exact"] == all(answer.exact for answer in answers), row
    assert found["relay", "ttl_s=1800"]["expired"] > found["relay", "recorded"]["expired"]
    assert found["outbox", "ttl_s=300"]["dead"] > found["outbox", "recorded"]["dead"]
    assert found["relay", "capacity=2"]["refused"] > found["relay", "recorded"]["refused"]
    assert {row["exact"] for row in found.values()} == {True, False}
    in_table = Lake(str(lake)).rows("replays")
    assert sorted((row["desk"], row["policy"]) for row in in_table) == sorted(found)
