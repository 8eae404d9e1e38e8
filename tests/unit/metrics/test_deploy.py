"""The files for Grafana and Prometheus name only what a server tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.metrics.promql import parse

from posthouse.cli.reference import commands
from posthouse.cli.reference_metrics import TABLES
from posthouse.mailbox.event import EVENTS, REASONS
from posthouse.mailbox.message import State
from posthouse.settings import SETTINGS

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/posthouse.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((DEPLOY / "prometheus/posthouse.rules.yml").read_text(encoding="utf-8"))
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
ALL_RULES: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

KNOWN = {family.name: family for families in TABLES.values() for family in families}
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""
VALUES: dict[str, set[str]] = {
    "state": set(map(str, State)),
    "event": set(EVENTS),
    "reason": {reason for reasons in REASONS.values() for reason in reasons},
    "path": {"live", "stored"},
    "result": {"ok", "failed"},
}
"""Labels whose values are a closed list."""


def labels_of(name: str) -> set[str]:
    """The labels of a series; KeyError if no server tells it."""
    if name == "up":
        return SCRAPED
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and base in KNOWN and KNOWN[base].type in ("histogram", "summary"):
            return {*KNOWN[base].labels, *SCRAPED, *(["le"] if suffix == "_bucket" else [])}
    family = KNOWN[name]
    assert family.type in ("counter", "gauge"), f"{name} has no series of that name"
    return {*family.labels, *SCRAPED}


def check(text: str) -> None:
    """Every metric, label and closed value that an expression names is one that there is."""
    found = parse(text)
    assert found.selectors, text
    known: set[str] = set()
    for name, asked in found.selectors:
        labels = labels_of(name)
        known |= labels
        for label, value in asked.items():
            assert label in labels, f"{name} has no label {label}: {text}"
            if label in VALUES:
                assert set(value.split("|")) <= VALUES[label], f"{label} is never {value}: {text}"
    assert found.groups <= known, text


def expressions() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"panel {panel['title']} {target['refId']}", target["expr"]
    for rule in ALL_RULES:
        yield f"rule {rule['alert']}", rule["expr"]


EXPRESSIONS = dict(expressions())


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_name_only_what_a_server_tells(name: str) -> None:
    check(EXPRESSIONS[name])


@pytest.mark.parametrize(
    "text",
    [
        "posthouse_depht > 1",
        'posthouse_depth{mailbox="x"}',
        'posthouse_messages{state="dying"}',
        "sum by (mailbox) (posthouse_depth)",
        "posthouse_delivery_seconds > 1",
        "sum(posthouse_depth",
        "rate(posthouse_events_total[5x])",
        "quantile_of(posthouse_depth)",
    ],
)
def test_what_does_not_exist_is_found(text: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        check(text)


def test_panels_are_complete_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            known = set().union(*(labels_of(name) for name, _ in parse(target["expr"]).selectors))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}
    check(DASHBOARD["templating"]["list"][1]["definition"].removeprefix("label_values").split(",")[0] + ")")


def test_what_an_operator_must_see_is_on_the_dashboard() -> None:
    shown = {name for text in EXPRESSIONS.values() for name, _ in parse(text).selectors}
    for name in (
        "posthouse_depth", "posthouse_oldest_age_seconds", "posthouse_wait_seconds_bucket", "posthouse_attempts_bucket",
        "posthouse_ended_total", "posthouse_delivery_seconds_bucket", "posthouse_acknowledgements_total",
        "posthouse_peer_online", "posthouse_relay_connections", "posthouse_commit_seconds_bucket",
        "posthouse_commit_commands_bucket", "posthouse_journal_lag_events", "posthouse_journal_lag_seconds",
    ):  # fmt: skip
        assert name in shown


def test_books_of_which_no_turn_ended_well_for_an_hour_are_an_alert() -> None:
    (rule,) = [rule for rule in ALL_RULES if rule["alert"] == "PosthouseBooksNotKept"]
    text = " ".join(rule["expr"].split())
    assert text.startswith("time() - posthouse_books_last_success_timestamp_seconds > clamp_min(")
    assert ", 3600)" in text
    # What is brought up to date only when somebody asks is never late.
    assert text.endswith("and posthouse_books_interval_seconds > 0")
    asked = {name for name, _ in parse(rule["expr"]).selectors}
    assert asked == {"posthouse_books_last_success_timestamp_seconds", "posthouse_books_interval_seconds"}


def test_rules_are_whole_and_unique() -> None:
    assert set(RULES) == {"groups"}
    names = [rule["alert"] for rule in ALL_RULES]
    assert len(set(names)) == len(names)
    called = {" ".join(path) for path, _ in commands()}
    for rule in ALL_RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"Posthouse[A-Z]\w+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule["for"]), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.search(r"==|>|<", rule["expr"]), "a rule compares"
        found = parse(rule["expr"])
        # What is summed up has the labels that it is grouped by, all else those of its metric.
        left = found.groups - {"le"} or set().union(*(labels_of(name) for name, _ in found.selectors))
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= left, rule["alert"]
            assert text.count("{{") == text.count("}}")
            for command in re.findall(r"`(posthouse [a-z ]+)`", text):
                assert command in called, command


def test_the_scrape_example_is_of_this_server() -> None:
    (job,) = SCRAPE["scrape_configs"]
    port = next(setting.default for setting in SETTINGS if setting.name == "metrics.port")
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    assert job["metrics_path"] == "/metrics"
    assert [(DEPLOY / "prometheus" / name).exists() for name in SCRAPE["rule_files"]] == [True]
    assert job["job_name"] == "posthouse", "a rule asks for up of this job"
