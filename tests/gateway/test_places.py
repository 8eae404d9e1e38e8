"""Places: whatever leases on their way bring, nobody gets more than his share."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from posthouse.gateway.places import Places

TENANTS = ("flood", "small", "other")


@pytest.mark.parametrize("seed", range(50))
def test_nobody_has_more_than_his_share_whoever_gets_the_leases_that_were_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    share, spare = rng.randint(1, 6), rng.randint(1, 4)
    places = Places(share, spare)
    working: list[str] = []
    # Of each batch of leases: the tenants that they pass over.
    on_their_way: list[list[tuple[str, ...]]] = []
    for _ in range(500):
        match rng.choice(("ask", "settle", "hear", "hear")):
            case "ask":
                on_the_way = sum(len(batch) for batch in on_their_way)
                most = min(places.at_once(), places.whole - len(working) - on_the_way)
                if most > 0:
                    full = places.full()
                    batch = [full] * rng.randint(1, most)
                    places.asked += len(batch)
                    on_their_way.append(batch)
            case "settle" if working:
                done = rng.sample(working, rng.randint(1, len(working)))
                batch = []
                for tenant in done:
                    working.remove(tenant)
                    if (places.leave(tenant) or rng.random() < 0.5) and places.may_ask():
                        batch.append(places.full())
                        places.asked += 1
                if batch:
                    on_their_way.append(batch)
            case "hear" if on_their_way:
                batch = on_their_way.pop(0)
                places.asked -= len(batch)
                for besides in batch:
                    # The worst that can come: always for the one who has most already.
                    found = [tenant for tenant in TENANTS if tenant not in besides]
                    if found and rng.random() < 0.9:
                        tenant = max(found, key=working.count)
                        working.append(tenant)
                        places.take(tenant)
        assert all(held <= share for held in Counter(working).values()), (seed, Counter(working))


def test_without_spare_places_nobody_is_passed_over() -> None:
    places = Places(2, 0)
    places.take("a")
    places.take("a")
    assert places.full() == ()
    assert places.at_once() == places.whole == 2
    assert places.leave("a") is False


def test_one_who_leaves_his_whole_share_may_have_more_that_waits() -> None:
    places = Places(2, 1)
    places.take("a")
    places.take("a")
    assert places.full() == ("a",)
    assert places.leave("a") is True
    assert places.full() == ()
    assert places.leave("a") is False
