"""What is deployed: the unit, the container file and their configuration say what the program knows."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
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
    "CMD", "ARG",
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
    assert (values["KillMode"], values["OOMPolicy"]) == ("mixed", "continue")
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
    (usual,) = (words.removeprefix("EXTRAS=") for name, words in found if name == "ARG")
    (with_books,) = re.findall(r"--build-arg EXTRAS=(\S+)", CONTAINER.read_text(encoding="utf-8"))
    assert {*with_books.split(",")} - {*usual.split(",")} == {"pipeline"}
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in with_books.split(","))


@pytest.mark.parametrize(
    ("extras", "asked"), [("journal,relay", False), ("journal,pipeline", True), ("all", True), ("pipelines", False)]
)
def test_an_image_with_the_books_has_what_they_need(tmp_path: Path, extras: str, asked: bool) -> None:
    """The very line of the container file, with a program in the place of Python that only notes what it is asked."""
    (line,) = (words for name, words in instructions() if name == "RUN" and "pipeline.jars" in words)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s " "$@" > "$0.words"\n', encoding="utf-8")
    python.chmod(0o755)
    words = ["sh", "-ec", line.replace("/opt/posthouse/bin/python", str(python))]
    subprocess.run(words, env={"EXTRAS": extras, "PATH": os.environ["PATH"]}, check=True)
    told = tmp_path / "python.words"
    assert (told.read_text(encoding="utf-8") if told.exists() else None) == (
        "-m posthouse.pipeline.jars " if asked else None
    )


def test_what_the_container_file_names_is_what_the_program_has() -> None:
    found = instructions()
    config = load({}, ROOT, {}, str(CONFIG))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    stages = [words for name, words in found if name == "FROM"]
    for words in stages:
        (version,) = re.findall(r"^docker\.io/library/python:(\d+\.\d+)-slim\b", words)
        assert tuple(map(int, version.split("."))) >= least
    assert len({words.split()[0] for words in stages}) == 1, "what is built on one is run on another"
    # Every variable is a setting, and is taken.
    given = dict(re.findall(r'(\w+)="([^"]*)"', " ".join(words for name, words in found if name == "ENV")))
    assert given
    inside = load(given, ROOT, {}, str(CONFIG))
    for name in given:
        setting = name.removeprefix("POSTHOUSE_").lower().replace("_", ".", 1)
        assert inside.text(setting) == given[name]
    last = dict(found)
    assert last["EXPOSE"] == str(config.whole("relay.port"))
    assert f"127.0.0.1:{last['EXPOSE']}:{last['EXPOSE']}" in CONTAINER.read_text(encoding="utf-8")
    assert f":{config.whole('metrics.port')}/" in last["HEALTHCHECK"]
    for name in ("console.host", "metrics.host"):
        assert inside.text(name) == "127.0.0.1", name
    # The account that it runs under is made, and the folder of its store is its own and lasts.
    made = " ".join(words for name, words in found if name == "RUN")
    assert re.search(rf"useradd .* {last['USER']} ", made)
    assert config.path("store.path").is_relative_to(last["VOLUME"])
    assert last["WORKDIR"] == last["VOLUME"]
    assert re.search(rf"install -d -m 0700 -o {last['USER']} -g {last['USER']} {last['VOLUME']}$", made.strip())
    # What is copied is what starts.
    venv = json.loads(last["ENTRYPOINT"])[0].removesuffix("/bin/posthouse")
    assert f"python -m venv {venv}" in made
    assert ("COPY", f"--from=build {venv} {venv}") in found
    (_, target) = next(words.split() for name, words in found if name == "COPY" and words.startswith("deploy/"))
    assert target == json.loads(last["CMD"])[2]


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
