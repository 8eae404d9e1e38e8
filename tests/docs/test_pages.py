"""What the pages claim about the program is compared with the program."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from tests.docs.page import ROOT, blocks, pages
from tests.stateful.differential import run
from tests.stateful.histories import POLICIES, history_of
from tests.stateful.replay import STATES

from posthouse.cli.reference import commands
from posthouse.cli.reference_metrics import TABLES
from posthouse.mailbox.event import EVENTS, REASONS
from posthouse.mailbox.message import State
from posthouse.metrics import FAMILIES
from posthouse.settings import SETTINGS
from posthouse.stores.memory import MemoryStore

PAGES = list(pages())
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"posthouse ((?:[a-z]+ )*[a-z]+)")
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"

Transition = tuple[str, str, str]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve()
        assert there.exists(), f"{target} leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


@functools.cache
def all_tests() -> str:
    """All tests, to look names up in."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py")))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:tests|bench|docs|src)/[\w/.-]*\w", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"(?<!/)\b(?:engine|mailbox|journal|stores|control|cli)/[\w/]+\.py", text):
        assert (ROOT / "src" / "posthouse" / path).exists(), path
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in all_tests(), name
    if page.name == "correctness.md":
        for name in re.findall(r"`([A-Z]\w+[a-z]\w*)`", text):
            assert f"class {name}(" in all_tests(), name


def dev_commands() -> set[str]:
    loader = SourceFileLoader("dev", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader("dev", loader)
    assert spec is not None
    dev = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(dev)
    finally:
        sys.dont_write_bytecode = written
    return set(re.findall(r"^  ([a-z]+) ", dev.HELP, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\./dev ([a-z]+)", text)) <= dev_commands()
    known = {" ".join(path[1:]) for path, _ in commands()}
    groups = {name.split()[0] for name in known if " " in name}
    for code in re.findall(r"`([^`\n]+)`", text):
        if said := COMMAND.match(code):
            words = said[1].split()
            name = " ".join(words[:2]) if words[0] in groups else words[0]
            assert name in known, code


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_settings_that_are_named_exist(page: Path) -> None:
    known = {setting.name for setting in SETTINGS}
    groups = "|".join(sorted({name.split(".")[0] for name in known}))
    for name in re.findall(rf"`((?:{groups})\.[a-z_]+)`", page.read_text(encoding="utf-8")):
        assert name in known or name.endswith(".py"), name


def test_metrics_that_are_named_exist() -> None:
    text = (ROOT / "docs/guides/operate.md").read_text(encoding="utf-8")
    known = {family.name for families in TABLES.values() for family in families}
    said = set(re.findall(r"\bposthouse_\w+", text))
    assert said <= known | {f"{name}_bucket" for name in known}
    assert {family.name for family in FAMILIES} <= said, "a metric of every server is not in the guide"


def transitions() -> Iterator[tuple[Transition, set[str]]]:
    """The rows of the table of transitions, and the reasons that each lists."""
    for line in ARCHITECTURE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[1].startswith("`"):
            before, event, after, reasons, _ = cells
            for state in before.split(", "):
                yield (state, event.strip("`"), after), set(re.findall(r"`(\w+)`", reasons))


def test_the_state_machine_that_is_drawn_is_the_one_that_runs() -> None:
    drawn = {transition for transition, _ in transitions()}
    seen: set[Transition] = set()
    for seed in range(1_500):
        store = MemoryStore(POLICIES)
        run(history_of(seed), store, MemoryStore(POLICIES))
        states: dict[tuple[str, ...], str] = {}
        for _, _, event in store.events():
            if event.event in STATES:
                ref = (event.desk, event.mailbox, event.sender, event.message_id)
                # An id that was forgotten may be posted again.
                before = "–" if event.event == "posted" else states[ref]
                states[ref] = str(STATES[event.event])
                seen.add((before, event.event, states[ref]))
        assert seen <= drawn, f"seed {seed}"
        if seen == drawn:
            return
    pytest.fail(f"drawn, and never seen: {drawn - seen}")


def test_the_state_machine_names_every_state_and_every_reason() -> None:
    states: set[str] = set()
    reasons: dict[str, set[str]] = {}
    for (before, event, after), listed in transitions():
        states |= {before, after}
        reasons.setdefault(event, set()).update(listed)
    assert states - {"–"} == set(map(str, State))
    assert set(reasons) == set(STATES)
    assert {event: found for event, found in reasons.items() if found} == {
        event: set(codes) for event, codes in REASONS.items() if event in STATES
    }
    text = ARCHITECTURE.read_text(encoding="utf-8")
    assert all(f"`{event}`" in text for event in EVENTS)


def test_every_package_is_in_the_layout() -> None:
    (layout,) = (b for b in blocks(ARCHITECTURE) if b.lines and b.lines[0] == "src/posthouse/")
    listed = {line.split()[0].rstrip("/") for line in layout.lines[1:] if line.startswith("  ")}
    source = ROOT / "src" / "posthouse"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    modules = {path.name for path in source.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert listed == packages | modules


def test_decisions_are_numbered_and_say_why() -> None:
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [path.name[:4] for path in found] == [f"{n:04}" for n in range(1, len(found) + 1)]
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]} "), path.name
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings[:3] == ["Context", "Decision", "Consequences"], path.name
