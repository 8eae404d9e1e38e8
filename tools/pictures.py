"""Take the pictures of the documents anew: a demo runs for a while, and a browser looks at every page of its console.

In: nothing; Debian's Chromium must be installed. Out: docs/pictures/NAME-THEME.png, light and dark. Run by
`./dev pictures`. It starts a demo of its own in a temporary folder and stops it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

from posthouse.config import Config, load
from posthouse.control.operation import Refused
from posthouse.control.operator import Operator

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = "/usr/bin/chromium"
SIZE = {"width": 1280, "height": 860}
WAIT_S = 1_200.0
DEAD = 5
PACE = "2"
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@contextlib.contextmanager
def demo(folder: Path) -> Iterator[tuple[dict[str, Any], Config]]:
    """A demo that runs, and what it said of itself."""
    program = [sys.executable, "-c", "from posthouse.cli import main; main()"]
    words = ["demo", "--folder", str(folder), "--pace", PACE, "--json"]
    process = subprocess.Popen([*program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        else:
            sys.exit("the demo did not start")
        yield json.loads(text), load({}, folder, {}, str(folder / "posthouse.toml"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask(config: Config, name: str, **parameters: Any) -> Any:
    """What an operation says."""
    with contextlib.closing(Operator.connect(config)) as operator:
        return operator.call(name, parameters)


def wait(config: Config) -> str:
    """Until there is something to see: dead letters, books, and a message that was answered, whose id is returned."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        dead = ask(config, "dead.ls")["messages"]
        books = ask(config, "books.summary")
        events = ask(config, "journal.events", last=500)["events"]
        answered = [row["cause_id"] for row in events if row["event"] == "posted" and row["cause_id"]]
        if dead >= DEAD and not isinstance(books, Refused) and books["totals"]["posted"] and answered:
            return str(answered[0])
        print(f"{dead} dead letters, {'no books yet' if isinstance(books, Refused) else 'books'}", flush=True)
        time.sleep(5)
    sys.exit(f"there is nothing to see after {WAIT_S:.0f} s")


def look(page: Page, name: str, path: str) -> None:
    """One page in both themes."""
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.goto(path)
        page.screenshot(path=PICTURES / f"{name}-{theme}.png")
    page.emulate_media(color_scheme="light")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="posthouse-") as folder,
        demo(Path(folder) / "demo") as (
            summary,
            config,
        ),
    ):
        answered = wait(config)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_context(base_url=summary["console"], viewport=SIZE).new_page()  # type: ignore[arg-type]
            page.goto(summary["console_login"])
            page.get_by_role("button", name="Log in").click()
            for name, path in (
                ("overview", "/"),
                ("mailboxes", "/mailboxes"),
                ("message", f"/message?{urlencode({'id': answered, 'desk': 'inbound'})}"),
                ("dead", "/dead"),
                ("peers", "/peers"),
                ("books", "/books?span=day"),
                ("settings", "/settings"),
            ):
                look(page, name, path)
            browser.close()
    print(f"{PICTURES.relative_to(ROOT)} is up to date")


if __name__ == "__main__":
    main()
