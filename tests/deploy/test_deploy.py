"""What is deployed: the unit, the container file and their configuration say what the program knows."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.unit.cli.house import House

from posthouse.cli import main, supervisor
from posthouse.cli.root import common_options
from posthouse.config import load

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "posthouse.service"
CONTAINER = ROOT / "deploy" / "Containerfile"
CONFIG = ROOT / "deploy" / "posthouse.toml"
INSTRUCTIONS = {
    "FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT",
    "CMD",
}  # fmt: skip


def unit() -> list[tuple[str, str, str]]:
    """Section, key and value of every line; keys may repeat."""
    found, section = [], ""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            found.append((section, key, value))
    return found


def instructions() -> list[tuple[str, str]]:
    """The container file's instructions, lines that go on put together."""
    text = CONTAINER.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def check_command(words: list[str]) -> None:
    """A command line that the program understands, and whose configuration is the one that we deploy."""
    assert words[0] == "/opt/posthouse/bin/posthouse"
    context = click.Context(main)
    command = main.get_command(context, words[1])
    assert command is not None, words
    known = {name for option in (*command.params, *common_options()) for name in option.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= known
    assert words[words.index("--config") + 1] == "/etc/posthouse/posthouse.toml"


def test_the_unit_starts_what_there_is_and_lets_it_drain() -> None:
    values = {key: value for section, key, value in unit() if section == "Service"}
    check_command(shlex.split(values["ExecStart"]))
    assert values["Type"] == "notify"
    assert values["KillMode"] == "mixed"
    assert int(values["TimeoutStopSec"]) >= 60
    # Exit code 2 is a configuration that is wrong: starting again would not mend it.
    assert values["RestartPreventExitStatus"] == "2"
    assert "KillSignal" not in values
    # The start-up summary holds a token.
    assert values["StandardOutput"] == "null"
    assert values["ExecReload"].split()[-2:] == ["-HUP", "$MAINPID"]
    # Every connection that the relay takes is a file.
    assert int(values["LimitNOFILE"]) > load({}, ROOT).whole("relay.connections_max")


def test_the_unit_is_what_systemd_takes_and_calls_safe(tmp_path: Path) -> None:
    """By systemd's own check where it is installed; else by the keys that make it safe."""
    safe = {
        "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
        "PrivateDevices": "yes", "CapabilityBoundingSet": "", "SystemCallFilter": "@system-service", "UMask": "0077",
    }  # fmt: skip
    values = {key: value for section, key, value in unit() if section == "Service"}
    assert {key: values.get(key) for key in safe} == safe
    if shutil.which("systemd-analyze") is None:
        return
    copy = tmp_path / UNIT.name
    # The check wants the program to be there.
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/posthouse/bin/posthouse", sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    # Out of 10; "OK" is below 5. The threshold is in tenths.
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(copy)]
    judged = subprocess.run(words, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stdout.splitlines()[-1]


def test_the_deployed_configuration_keeps_everything_in_one_folder() -> None:
    config = load({}, ROOT, {}, str(CONFIG))
    for name in ("store.path", "journal.dir", "agent.dir", "gateway.files_dir", "peer.key", "control.path"):
        assert config.path(name).is_relative_to("/var/lib/posthouse"), name
    assert config.text("books.lake").startswith("/var/lib/posthouse/")


def test_the_container_file_builds_from_what_there_is_and_starts_it() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    for name, words in found:
        if name == "COPY" and not words.startswith("--from"):
            for source in words.split()[:-1]:
                assert (ROOT / source).exists(), source
    last = dict(found)
    check_command(json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"]))
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["USER"] != "root"
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", "".join(words for name, words in found if name == "RUN"))
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras.split(","))


def test_the_constraints_of_the_container_are_the_locked_versions(tmp_path: Path) -> None:
    """The very line of the container file, run on the lock."""
    (line,) = (words for name, words in instructions() if name == "RUN" and "requirements.lock" in words)
    shutil.copyfile(ROOT / "requirements.lock", tmp_path / "requirements.lock")
    subprocess.run(["sh", "-ec", line.split("&&")[0]], cwd=tmp_path, check=True)
    made = [
        line for line in (tmp_path / "constraints.txt").read_text().splitlines() if not line.lstrip().startswith("#")
    ]
    assert len(made) > 50
    assert all(re.fullmatch(r"[a-z0-9_.-]+==[^\s\\]+( ; .+)?", line) for line in made), made


def test_a_server_tells_its_supervisor_when_it_serves_and_when_it_stops(house: House, tmp_path: Path) -> None:
    """And answers the container's health check in between."""
    place = tmp_path / "notify"
    (_, check), *_ = (each for each in instructions() if each[0] == "HEALTHCHECK")
    source = json.loads(check[check.index("[") :])[2]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(place))
        listener.settimeout(30)
        process = house.spawn("up", "--metrics-port", "0", "--json", env={"NOTIFY_SOCKET": str(place)})
        try:
            metrics = house._summary(process)["metrics"]
            assert listener.recv(1_000).startswith(b"READY=1\nSTATUS=serves node ")
            port = metrics.split(":")[2].partition("/")[0]
            subprocess.run([sys.executable, "-c", source.replace("9464", port)], check=True, capture_output=True)
            process.send_signal(signal.SIGTERM)
            assert listener.recv(1_000) == b"STOPPING=1\nSTATUS=stopping (SIGTERM)\n"
            process.communicate(timeout=30)
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()


def test_an_abstract_socket_is_told_too_and_nobody_is_missed() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")
        name = listener.getsockname()
        assert supervisor.tell({"NOTIFY_SOCKET": f"@{name[1:].decode()}"}, supervisor.READY, "here")
        assert listener.recv(100) == b"READY=1\nSTATUS=here\n"
    assert not supervisor.tell({}, supervisor.READY, "here")
    assert not supervisor.tell({"NOTIFY_SOCKET": "relative"}, supervisor.READY, "here")
    assert not supervisor.tell({"NOTIFY_SOCKET": "/nowhere/notify"}, supervisor.READY, "here")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    folder = tmp_path / "house"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return House(folder)
