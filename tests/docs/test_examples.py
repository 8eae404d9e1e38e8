"""Everything that the pages show is run: scripts, commands, and what they print."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.docs.page import ROOT, Runner
from tests.interop.bolt import HOST, kept_file
from tests.relay.harness import Relay
from tests.unit.pipeline.lakes import two_days

from posthouse.agent.identity import Identity
from posthouse.cli import main
from posthouse.config import load
from posthouse.control.operator import Operator, open_store
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Leased


def three_invoices_die() -> None:
    """What the operators' guide finds: a desk whose worker could not handle three of its messages."""
    customers = {"invoice-7": "acme", "invoice-8": "bolt", "invoice-9": "crux"}
    with Engine(open_store(load({}, Path.cwd()), create=True)) as engine:
        for id, lane in customers.items():
            engine.call(Post(Message("invoices", "billing", id, b"{}", sender="shop", lane=lane)))
        for number in range(3):
            leased = engine.call(Lease("invoices", "billing", f"t{number}", "worker-1"))[0]
            assert isinstance(leased, Leased)
            (delivery,) = leased.deliveries
            error = f"no price for article {4711 + number}"
            engine.call(Settle(delivery.message.ref, leased.token, Verdict.DEAD, error=error))


def some_letters_are_dead() -> None:
    """What the tour finds: a demo some of whose people asked for customers that there are not."""
    config = load({}, Path("posthouse-demo"))
    until = time.monotonic() + 60
    with contextlib.closing(Operator.connect(config)) as operator:
        while not any("no customer" in group["error"] for group in operator.call("dead.ls")["groups"]):
            assert time.monotonic() < until, "nothing has failed in the demo"
            time.sleep(0.2)


def test_what_the_readme_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "README.md", {"some letters are dead": some_letters_are_dead})
    runner.run()
    assert runner.scripts >= 2
    assert runner.commands >= 14


def test_what_the_library_guide_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/library.md", {})
    runner.run()
    assert runner.scripts >= 8


def test_what_the_operators_guide_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/operate.md", {"three invoices die": three_invoices_die})
    runner.run()
    assert runner.commands >= 20


def a_relays_file() -> None:
    """What the guide to moving finds: a Go relay's file, and a time to live that its messages have not used up."""
    kept_file(Path.cwd())
    Path("posthouse.toml").write_text(f'[relay]\npublic_host = "{HOST}"\nqueue_ttl_s = 3_000_000_000\n')


def test_what_the_guide_to_moving_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/migrate.md", {"a relay's file": a_relays_file})
    runner.run()
    assert runner.commands >= 3


def an_openclaw_folder() -> None:
    """What the guide to moving from OpenClaw finds: its state folder."""
    shutil.copytree(ROOT / "tests/gateway/samples/2026.5.18", ".openclaw")


def test_what_the_guide_to_moving_from_openclaw_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/openclaw.md", {"an OpenClaw folder": an_openclaw_folder})
    runner.run()
    assert runner.commands >= 5


def test_what_the_guide_to_the_api_shows_is_what_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(ROOT / "docs/guides/gateway-api.md", {})

    def a_token_and_an_address() -> None:
        scopes = ("--scope", "inbound", "--scope", "status")
        made = CliRunner().invoke(main, ["token", "add", "reader", *scopes], catch_exceptions=False)
        monkeypatch.setenv("TOKEN", made.stdout.strip())
        monkeypatch.setenv("API", runner.said("api"))

    runner.directives["a token and an address"] = a_token_and_an_address
    runner.run()
    assert runner.commands >= 4
    assert runner.scripts >= 2


def test_what_the_guide_to_the_console_shows_is_what_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(ROOT / "docs/guides/console.md", {})

    def a_token_and_an_address() -> None:
        made = CliRunner().invoke(main, ["token", "add", "reader", "--role", "operator"], catch_exceptions=False)
        monkeypatch.setenv("TOKEN", made.stdout.strip())
        monkeypatch.setenv("CONSOLE", runner.said("console").partition("/login")[0])

    runner.directives["a token and an address"] = a_token_and_an_address
    runner.run()
    assert runner.commands >= 5
    assert runner.scripts >= 1


def test_what_the_agents_guide_shows_is_what_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(folder, {"relay.public_host": "localhost"})

    def relay_and_keys() -> None:
        relay.start()
        monkeypatch.setenv("POSTHOUSE_AGENT_RELAY", f"ws://127.0.0.1:{relay.settings['relay.port']}")
        for number, name in enumerate(("alice", "bob"), 1):
            path = folder / ".posthouse/agents" / name / "identity.json"
            Identity(number.to_bytes(32, "big")).save(path, "2026-01-31T12:00:00Z")

    runner = Runner(ROOT / "docs/guides/agent.md", {"a relay, and the keys of alice and bob": relay_and_keys})
    try:
        runner.run()
    finally:
        relay.stop()
    assert runner.commands >= 9
    assert runner.scripts >= 1


def test_what_the_guide_to_the_books_shows_is_what_happens(folder: Path) -> None:
    lake = {"a lake of two days": lambda: two_days(folder / ".posthouse/lake")}
    runner = Runner(ROOT / "docs/guides/books.md", lake)
    runner.run()
    assert runner.commands >= 7


def test_what_the_guide_to_channels_shows_is_what_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    runner = Runner(ROOT / "docs/guides/channels.md", {})
    runner.run()
    assert runner.scripts >= 1


def test_what_the_guide_to_writing_a_channel_shows_is_what_happens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    runner = Runner(ROOT / "docs/guides/channel.md", {})
    runner.run()
    assert runner.scripts >= 1


def test_what_the_guide_to_writing_a_handler_shows_is_what_happens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    # The command in it is `python`.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    runner = Runner(ROOT / "docs/guides/handler.md", {})
    runner.run()
    assert runner.commands >= 4
    assert runner.scripts >= 2


def test_what_the_guide_to_backups_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/backup.md", {})
    runner.run()
    assert runner.commands >= 9
    assert runner.scripts >= 1


def test_what_the_guide_to_upgrades_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/upgrade.md", {})
    runner.run()
    assert runner.commands >= 8


def test_what_the_guide_to_the_gateway_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/gateway.md", {})
    runner.run()
    assert runner.commands >= 3


def test_what_the_guide_to_libp2p_shows_is_what_happens(folder: Path) -> None:
    runner = Runner(ROOT / "docs/guides/libp2p.md", {})
    runner.run()
    assert runner.scripts >= 3


def test_a_page_that_shows_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is shown is really compared with what happens."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    for wrong in (
        '```python\nprint("one")\n```\n\n```text\ntwo\n```\n',
        "```python\nraise ValueError\n```\n",
        "```console\n$ posthouse --version\nposthouse nine\n```\n",
        "```console\n$ posthouse mailbox ls\n```\n",
        "```console\n$ posthouse --version  # exit code 4\n```\n",
        "```console\n$ rm -rf everything\n```\n",
    ):
        page.write_text(wrong, encoding="utf-8")
        with pytest.raises(AssertionError, match=r"page\.md, line"):
            Runner(page, {}).run()
