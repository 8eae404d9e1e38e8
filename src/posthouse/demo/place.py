"""The demo's folder: its configuration file, and everything that the demo keeps.

In: a folder that is new, empty, or a demo's own. Out: the configuration file in it, written the first time and left as
it is afterwards; the address of the town, new at each start. It never touches a folder that is somebody else's.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError

FILE_NAME = "posthouse.toml"
TOWN_NAME = "town.url"
TOKEN_NAME = "api.token"
MARK = "# A demo of Posthouse."
CONFIG = f"""{MARK} Written when the folder was new; yours to change.
# Every port is any free one, so that the demo stands in nobody's way; `posthouse demo` says which they are.

[store]
path = "posthouse.db"
node = "demo"

[journal]
dir = "journal"
export_s = "3s"                 # quick, so that the books have something soon
wait_s = "6s"

[books]
enabled = true
lake = "lake"
every_s = "10s"
stand_back = false              # somebody is waiting to see them

[engine]
sweep_s = "10s"

[relay]
port = 0
rate_limit = 100                # agents of a demo are hasty
rate_burst = 1_000
queue_ttl_s = "5m"              # what is for somebody who never comes expires while you look

[agent]
dir = "agents"

[gateway]
handler = "python:posthouse.demo.handler:answer"
api_port = 0
files_dir = "openclaw"
breaker_s = "5s"

[channel.town]
kind = "websocket"
url_file = "{TOWN_NAME}"
reconnect_s = "1s"
tenant = "town"

[desk.inbound]
retry = ["1s", "2s"]            # a message that cannot be handled is a dead letter after a few seconds
attempts_max = 3

[desk.outbound]
retry = ["1s", "2s", "4s", "8s", "16s"]

[desk.outbox]
retry = {{ first_s = "1s", factor = 2, cap_s = "30s" }}

[peer]
enabled = true
key = "node.key"
listen = "/ip4/127.0.0.1/tcp/0"
handler = "python:posthouse.demo.handler:trade"

[console]
port = 0

[metrics]
port = 0
"""


class Place:
    """One folder of a demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / FILE_NAME
        self.agents = folder / "agents"
        self.traders = folder / "traders"
        self.token = folder / TOKEN_NAME

    def prepare(self) -> bool:
        """Make the folder a demo's; True if it was none before. ConfigError if it is somebody else's."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.config.exists():
                if not self.config.read_text(encoding="utf-8").startswith(MARK):
                    raise ConfigError(f"{self.config} is no demo's: choose another folder with --folder")
                return False
            if any(self.folder.iterdir()):
                raise ConfigError(f"{self.folder} is not empty and no demo's: choose another folder with --folder")
            write_secret(self.config, CONFIG)
        except OSError as error:
            raise ConfigError(f"{self.folder} cannot hold a demo: {error.strerror or error}") from error
        return True

    def write_town(self, port: int, path: str) -> None:
        """Tell the gateway's channel where the town is."""
        write_secret(self.folder / TOWN_NAME, f"ws://127.0.0.1:{port}{path}\n")


def write_secret(path: Path, text: str) -> None:
    """A whole file for its owner alone, or the one that was there."""
    draft = path.with_name(f"{path.name}.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)
