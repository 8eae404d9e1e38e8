"""Replays: policies as they are written, and what they make of a few messages."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pytest

from posthouse.cli.books_replay import WIDE, bar
from posthouse.errors import InvalidInput
from posthouse.pipeline import replay as replaying
from posthouse.pipeline.replay import Policy, policy_of, replay
from posthouse.pipeline.schema import ATTEMPTS, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def instant(second: float | None) -> dt.datetime | None:
    return None if second is None else START + dt.timedelta(seconds=second)


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


def test_a_smaller_mailbox_refuses_and_a_shorter_life_expires(spark: SparkSession) -> None:
    # id, posted, leases, finished, outcome
    stories: list[tuple[str, float, list[float], float | None, str]] = [
        ("a", 0, [10], 11, "delivered"),
        ("b", 1, [12, 20], 21, "delivered"),
        ("c", 2, [30], 31, "delivered"),
        ("d", 25, [32], 40, "delivered"),
    ]
    messages: list[tuple[Any, ...]] = []
    attempts: list[tuple[Any, ...]] = []
    for place, (id, posted, leases, finished, outcome) in enumerate(stories):
        known: dict[str, Any] = {
            "part": "2026-03-01", "node": "n", "desk": "relay", "mailbox": "m", "sender": "s", "message_id": id,
            "generation": 1, "posted_at": instant(posted), "finished_at": instant(finished), "outcome": outcome,
            "attempts": len(leases), "orphan": False, "first_offset": 10 * place + 1, "last_offset": 100 + place,
            "latency": None if finished is None else int((finished - posted) * 1e6),
        }  # fmt: skip
        messages.append(tuple(known.get(name) for name in MESSAGES.names))
        for number, lease in enumerate(leases, 1):
            end = leases[number] - 5 if number < len(leases) else finished
            tried = {
                **known, "attempt": number, "started_at": instant(lease), "ended_at": instant(end),
                "ended": "retried" if number < len(leases) else "delivered", "lease_offset": 10 * place + 1 + number,
            }  # fmt: skip
            attempts.append(tuple(tried.get(name) for name in ATTEMPTS.names))
    told = spark.createDataFrame(messages, MESSAGES.ddl)
    tried_ = spark.createDataFrame(attempts, ATTEMPTS.ddl)

    def tried(text: str) -> dict[str, Any]:
        (row,) = replay(told, tried_, "relay", policy_of(text)).collect()
        return dict(row.asDict())

    recorded = tried("")
    assert (recorded["posted"], recorded["delivered"], recorded["attempts"]) == (4, 4, 5)
    smaller = tried("capacity=2")
    # c comes while a and b are there; d finds room, since both have left and c never came.
    assert (smaller["refused"], smaller["delivered"], smaller["exact"]) == (1, 3, True)
    # b's last lease begins 19 s, c's 28 s after its post; a and d are in time.
    shorter = tried("ttl_s=15")
    assert (shorter["expired"], shorter["delivered"], shorter["exact"]) == (2, 2, True)
    fewer = tried("attempts_max=1")
    assert (fewer["dead"], fewer["attempts"], fewer["exact"]) == (1, 4, False)
    sooner = tried("retry=[1]")
    # b waited 5 s after its first attempt; now 1 s.
    assert recorded["wait"] - sooner["wait"] == 1_000_000


def test_mailboxes_refuse_as_if_each_were_gone_through_by_hand(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many mailboxes of any fill; some messages never end. Lists of the refused turn their page after two."""
    monkeypatch.setattr(replaying, "_PAGE", 2)
    rng = random.Random(3)
    capacity = 3
    rows: list[tuple[Any, ...]] = []
    refused = 0
    for number in range(50):
        posts = sorted(rng.sample(range(1_000), rng.randint(1, 40)))
        there: list[float] = []
        for place, second in enumerate(posts):
            end = None if rng.random() < 0.1 else second + rng.choice((0.5, 20.5, 200.5))
            known = {
                "part": "2026-03-01", "node": "n", "desk": "relay", "mailbox": f"m{number}", "sender": "s",
                "message_id": f"{number}-{place}", "generation": 1, "posted_at": instant(second),
                "finished_at": instant(end), "outcome": "open" if end is None else "delivered", "attempts": 1,
                "orphan": False, "first_offset": 2 * place + 1, "last_offset": 2 * place + 2,
            }  # fmt: skip
            rows.append(tuple(known.get(name) for name in MESSAGES.names))
            there = [each for each in there if each > second]
            if len(there) >= capacity:
                refused += 1
            else:
                there.append(float("inf") if end is None else end)
    (row,) = replay(
        spark.createDataFrame(rows, MESSAGES.ddl), spark.createDataFrame([], ATTEMPTS.ddl), "relay", Policy(capacity)
    ).collect()
    assert refused > 100
    assert row["refused"] == refused
    assert row["posted"] == len(rows)
