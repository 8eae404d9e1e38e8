"""The page of a whole server: valid by promtool's rules, all of it in the tables, and bounded."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest
from tests.unit.cli.house import House
from tests.unit.metrics.lint import complaints, families, name_of, untotalled

from posthouse.cli.reference_metrics import TABLES
from posthouse.engine.engine import Engine
from posthouse.gateway.metrics import ACCOUNTS_MAX, GatewayCollector
from posthouse.gateway.service import Gateway, Parts
from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message, Ref
from posthouse.mailbox.policy import PRESETS
from posthouse.metrics import Metrics
from posthouse.metrics.flow import ATTEMPTS, KINDS_MAX, SECONDS
from posthouse.stores.sqlite import SqliteStore

KNOWN = {family.name: family for families in TABLES.values() for family in families}
MAILBOXES = 100_000
BATCH = 5_000


def page_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=")
        text: str = answer.read().decode()
        return text


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_whole_servers_page_is_valid_and_all_of_it_is_in_the_tables(house: House) -> None:
    words = ["peer.enabled=true", "peer.listen=/ip4/127.0.0.1/tcp/0", "gateway.handler=echo", "gateway.api_port=0"]
    words += ["traces.endpoint=http://127.0.0.1:1/v1/traces", "books.enabled=true", "books.every_s=0"]
    house.post("m1", "m2", kind="talk")
    house.kill("m1")
    with house.up(*(word for text in words for word in ("--set", text))) as (_, summary):
        page = page_of(summary["metrics"])
    assert list(complaints(page)) == []
    assert untotalled(page) == []
    ours = {name_of(family): family for family in families(page) if family.name.startswith("posthouse_")}
    assert set(ours) == set(KNOWN), "what is shown is in the tables, and what is in the tables is shown"
    for name, family in ours.items():
        known = KNOWN[name]
        assert (family.type, family.documentation) == (known.type, known.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known.labels), name


def test_the_rules_find_what_is_wrong() -> None:
    page = (
        "# HELP x_count Help.\n# TYPE x_count gauge\nx_count 1\n"
        "# HELP wait_milliseconds \n# TYPE wait_milliseconds gauge\nwait_milliseconds 1\n"
        "# HELP y_total Help.\n# TYPE y_total gauge\ny_total 1\n"
        "# HELP sizeKb Help.\n# TYPE sizeKb gauge\nsizeKb 1\n"
        '# HELP h Help.\n# TYPE h histogram\nh_bucket{le="1.0"} 2\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 3\n'
    )
    found = "\n".join(complaints(page))
    for word in ("x_count: only", "no base unit", "no help", "y_total: only", "sizeKb: not", "do not rise", "not its"):
        assert word in found
    assert untotalled("# TYPE z counter\n") == ["z"]


def fill(engine: Engine, count: int, mark: str) -> None:
    """Messages in as many mailboxes, of as many kinds and senders; a few of them live through everything."""
    for first in range(0, count, BATCH):
        engine.call(
            *(
                Post(Message("inbound", f"{mark}{n}", f"{mark}{n}", b"x", sender=f"net/{n}", kind=f"{mark}{n % 997}"))
                for n in range(first, min(first + BATCH, count))
            )
        )
    for n in range(40):
        ref = Ref("inbound", f"{mark}{n}", f"net/{n}", f"{mark}{n}")
        verdict = (Verdict.DELIVERED, Verdict.RETRY, Verdict.DEAD, Verdict.REJECTED)[n % 4]
        engine.call(Lease("inbound", ref.mailbox, ref.id), Settle(ref, ref.id, verdict, error=f"error {n}"))


def test_series_and_the_time_of_a_scrape_do_not_grow_with_mailboxes(tmp_path: Path) -> None:
    with Engine(SqliteStore.open(tmp_path / "many.db", PRESETS, node="many")) as engine:
        gateway = Gateway(engine, Parts())
        metrics = Metrics(engine)
        metrics.registry.register(GatewayCollector(gateway))
        fill(engine, 500, "few")
        gateway._tail.catch_up()
        few = [sample for family in families(metrics.page().decode()) for sample in family.samples]
        fill(engine, MAILBOXES, "many")
        gateway._tail.catch_up()
        metrics.catch_up()
        scrapes_s = []
        for _ in range(3):
            # Of the processor, since the machine may have other work.
            begun = time.process_time()
            page = metrics.page().decode()
            scrapes_s.append(time.process_time() - begun)
        found = families(page)
        samples = [sample for family in found for sample in family.samples]
        boxes = next(view.mailboxes for view in engine.store.desks() if view.desk == "inbound")
    assert boxes == MAILBOXES + 500
    assert list(complaints(page)) == []
    named = {family.name: len(family.samples) for family in found}
    assert named["posthouse_gateway_waiting"] <= 2 * ACCOUNTS_MAX
    assert named["posthouse_gateway_events"] <= 6 * (ACCOUNTS_MAX + 1) * 2
    # A kind that is new adds its histograms, until the limit is reached.
    one_kind = 3 * (len(SECONDS) + 3) + len(ATTEMPTS) + 3 + 8
    assert len(samples) <= len(few) + (KINDS_MAX + 1) * one_kind + 4 * ACCOUNTS_MAX
    assert len(samples) < 5_000
    plain = [sample for sample in samples if not sample.name.startswith("posthouse_gateway_")]
    assert not any("many" in value for sample in plain for name, value in sample.labels.items() if name != "kind")
    assert min(scrapes_s) < 0.3, "nothing of it reads what there are many of"
