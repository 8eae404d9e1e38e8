"""A running gateway with credentials on four networks, all of which repeat them in their errors: nothing shows them."""

from __future__ import annotations

import asyncio
import base64
import signal
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from tests.gateway.channels import email_bench, telegram_bench, webhook_bench, websocket_bench
from tests.port import free_port
from tests.unit.cli.house import House

from posthouse.gateway.channels.bench import Bench, Changes

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

CONFIG = """
[gateway]
handler = "echo"
breaker_failures = 0

[channel.webhook]
key_env = "HOOK_KEY"
url_env = "HOOK_URL"
allow = ["127.0.0.1"]
port = {hook}

[channel.websocket]
url = "ws://127.0.0.1:{socket}/ws"
token_file = "socket-token"

[channel.telegram]
token_env = "BOT_TOKEN"
base_url = "http://127.0.0.1:{telegram}"

[channel.email]
address = "{user}"
password_env = "MAIL_PASSWORD"
imap_host = "127.0.0.1"
imap_port = {imap}
imap_security = "none"
smtp_host = "127.0.0.1"
smtp_port = {smtp}
smtp_security = "none"
"""


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    await Changes().until(condition, what)


def forms(*secrets: str) -> Iterator[str]:
    """A secret as it is, as URLs write it, and as base64 does, also behind other bytes."""
    for secret in secrets:
        yield secret
        yield urllib.parse.quote(secret, safe="")
        for before in ("", "x", "xx"):
            # The last characters depend on what follows.
            yield base64.b64encode((before + secret).encode()).decode()[4 if before else 0 : -4]


class Hook:
    """As much of a webhook channel as its bench needs to know."""

    def __init__(self, port: int) -> None:
        self.port = port


def test_neither_log_nor_journal_nor_store_shows_a_secret(tmp_path: Path):
    said, secrets = asyncio.run(_run(tmp_path))
    assert "posthouse.gateway" in said, "the log says nothing at all"
    exported = _exported(House(tmp_path))
    assert exported.count("died") == 4
    for what, text in (("log", said), ("journal", exported), ("store", _stored(tmp_path))):
        for form in forms(*secrets):
            assert form not in text, f"the {what} shows a secret"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "socket-token":
            data = path.read_bytes()
            assert not any(form.encode() in data for form in forms(*secrets)), path.name


async def _run(folder: Path) -> tuple[str, list[str]]:
    """What the gateway logged, and the secrets that it used."""
    hook, socket = webhook_bench.WebhookBench(), websocket_bench.WebSocketBench()
    bot, mail = telegram_bench.TelegramBench(), email_bench.EmailBench()
    benches: list[Bench] = [hook, socket, bot, mail]
    for bench in benches:
        await bench.open()
    hook.made = Hook(free_port())  # type: ignore[assignment]
    secrets = [secret for bench in benches for secret in bench.secrets]
    values: dict[str, Any] = {"hook": hook.made.port, "socket": socket.port, "telegram": bot.port}
    values |= {"imap": mail.imap.port, "smtp": mail.smtp.port, "user": email_bench.USER}
    (folder / "posthouse.toml").write_text(CONFIG.format(**values), encoding="utf-8")
    (folder / "socket-token").write_text(websocket_bench.TOKEN + "\n", encoding="utf-8")
    environ = {
        "HOOK_KEY": webhook_bench.KEY,
        "HOOK_URL": hook.url,
        "BOT_TOKEN": telegram_bench.TOKEN,
        "MAIL_PASSWORD": email_bench.PASSWORD,
    }
    house = House(folder)
    process = house.spawn("gateway", "--no-metrics", "--json", "--log-level", "debug", env=environ)
    said = ""
    try:
        summary = await asyncio.to_thread(house._summary, process)
        await _exchange(benches)
        for bench in benches:
            bench.answer("permanent")
            await bench.bring("refused")
        await wait_until(lambda: _dead(folder) == 4, "what is refused dies")
        process.send_signal(signal.SIGTERM)
        said, errors = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == 0, errors
        said += errors + str(summary)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for bench in benches:
            await bench.close()
    return said, secrets


async def _exchange(benches: list[Bench]) -> None:
    """A message comes over each network, and its answer goes back."""
    for bench in benches:
        if isinstance(bench, websocket_bench.WebSocketBench):
            await wait_until(lambda: bool(bench._sockets), "the socket is connected")  # noqa: B023
        await bench.bring("hello")
    for bench in benches:
        await wait_until(lambda: bench.arrived() == ["hello"], f"{type(bench).__name__} is answered")  # noqa: B023


def _dead(folder: Path) -> int:
    with sqlite3.connect(f"file:{folder / '.posthouse/posthouse.db'}?mode=ro", uri=True) as store:
        (found,) = store.execute("SELECT count(*) FROM outbound_dead_letter").fetchone()
    return int(found)


def _exported(house: House) -> str:
    """Every row of the journal, as text."""
    process = house.spawn("journal", "export")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    segments = sorted((house.folder / ".posthouse/journal").rglob("*.parquet"))
    assert segments
    return "\n".join(str(row) for path in segments for row in parquet.read_table(path).to_pylist())


def _stored(folder: Path) -> str:
    """Everything in every table, as text."""
    found: list[str] = []
    with sqlite3.connect(f"file:{folder / '.posthouse/posthouse.db'}?mode=ro", uri=True) as store:
        tables = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in store.execute(f'SELECT * FROM "{table}"'):
                found.append(" ".join(v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in row))
    assert any("refused" in text for text in found), "the store holds no message at all"
    return "\n".join(found)
