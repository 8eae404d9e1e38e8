"""The books over the journals of simulated peers, by the oracle in SQL: they close, and both sides' books agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.journals import write_journal
from tests.pipeline.oracle import Oracle
from tests.simulation.network import Party, VirtualLoop, run
from tests.simulation.trades import story

NEVER = ("lost", "lane_gap", "journal_gap", "out_of_order", "delivered_twice", "settled_after_finished")
"""Findings that no fault of a network, a clock or a process may cause. (Hasty senders do not keep their own order.)"""


def rows_of(party: Party) -> list[dict[str, Any]]:
    return [
        event._asdict() | {"offset": offset, "commit": commit, "node": ""}
        for offset, commit, event in party.store.events()
    ]


def books_of(seeds: range, folder: Path) -> Oracle:
    """Live through stories; the oracle over all their journals. A node is a seed and a party, in order."""
    nodes: list[list[dict[str, Any]]] = []
    names: list[tuple[int, str]] = []

    async def told(loop: VirtualLoop, seed: int) -> None:
        for party in (await story(loop, seed)).world.parties:
            nodes.append(rows_of(party))
            names.append((seed, party.id))
        await asyncio.sleep(0)

    for seed in seeds:
        run(seed, told)
    write_journal(folder / "journal", nodes, cut=500)
    oracle = Oracle(folder / "journal")
    oracle.rows("create table parties (node varchar, seed bigint, peer varchar)")
    for number, (seed, peer) in enumerate(names):
        oracle.rows(f"insert into parties values ('n{number:02d}', {seed}, '{peer}')")
    return oracle


def judge(seeds: range, folder: Path) -> None:
    oracle = books_of(seeds, folder)
    (closing,) = oracle.rows(
        "select sum(posted) p, sum(delivered + dead + expired + cancelled + uncertain) ended, sum(open) o,"
        " sum(remainder) r from books"
    )
    assert closing["p"] > 20 * len(seeds)
    assert (closing["ended"], closing["o"], closing["r"]) == (closing["p"], 0, 0)
    found = oracle.rows(
        f"""
        select kind, seed, peer, mailbox, message_id from findings f join parties p using (node)
        where kind in {NEVER} and (kind <> 'out_of_order' or desk <> 'outbox' or seed % 3 = 0)
        """
    )
    assert found == []
    # What the sender's books call delivered, the receiver's do; what they call rejected died there of it.
    apart = oracle.rows(
        """
        select o.message_id, o.outcome as sent, i.outcome as came
        from messages o join parties s on s.node = o.node
        join parties r on r.seed = s.seed and r.peer = o.mailbox
        left join messages i on i.node = r.node and i.desk = 'inbox' and i.mailbox = s.peer
            and i.message_id = o.message_id
        where o.desk = 'outbox' and (
            (o.outcome = 'delivered' and coalesce(i.outcome, '') <> 'delivered')
            or (o.outcome = 'dead' and o.reason = 'rejected' and coalesce(i.outcome, '') <> 'dead'))
        """
    )
    assert apart == []
    # And nothing was processed that nobody sent.
    strange = oracle.rows(
        """
        select i.message_id from messages i join parties r on r.node = i.node
        join parties s on s.seed = r.seed and s.peer = i.mailbox
        left join messages o on o.node = s.node and o.desk = 'outbox' and o.mailbox = r.peer
            and o.message_id = i.message_id
        where i.desk = 'inbox' and i.outcome <> 'refused' and o.message_id is null
        """
    )
    assert strange == []


def test_the_books_of_simulated_peers_close_and_agree(tmp_path: Path) -> None:
    judge(range(200, 205), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_books_of_many_simulated_peers_close_and_agree(tmp_path: Path) -> None:
    judge(range(30_000, 30_150), tmp_path)
