"""What the pages show and no server prints: shell lines, settings, JSON, SQL. Each is tried or taken apart.

A line of a block ``sh`` is made of commands that this repository knows, with options that they have; those that need
nobody else's machine are run as well. A table of settings is one that a server takes.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import apsw
import click
import pytest
import yaml
from click.testing import CliRunner
from tests.docs.page import FILE_NAME, PROGRAM, ROOT, Block, blocks, pages
from tests.docs.test_pages import dev_commands
from tests.relay.harness import Relay

from posthouse.agent.identity import Identity
from posthouse.cli import main
from posthouse.cli.session import FOUND
from posthouse.config import load
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.gateway.api import openapi
from posthouse.gateway.channels import catalogue, plain
from posthouse.gateway.channels.account import Account
from posthouse.journal.tail import export
from posthouse.mailbox.command import Park, Post
from posthouse.mailbox.message import Message
from posthouse.settings import SETTINGS, Kind

LANGUAGES = {"", "console", "http", "json", "python", "sh", "shell", "sql", "test", "text", "toml", "yaml"}
ELSEWHERE = frozenset({"tail", "jq", "find", "rsync", "systemctl"})
"""Programs that are not ours."""
PLACEHOLDER = re.compile(r"<[a-z ]+>")
TRIED = ("run", "verify", "compact")
"""What of the books is run here as it is written."""
SECRET = "whsec_" + base64.b64encode(bytes(24)).decode()


def of(language: str) -> Iterator[tuple[Path, Block]]:
    for page in pages():
        for block in blocks(page):
            if block.language == language:
                yield page, block


def lines(block: Block) -> list[str]:
    """The lines of a block, those that go on put together."""
    return [line for line in "\n".join(block.lines).replace("\\\n", " ").splitlines() if line.strip()]


def words_of(line: str) -> list[list[str]]:
    """The words of each command in a line, without what stands for something."""
    text = PLACEHOLDER.sub("something", re.sub(r"\$\([^)]*\)", "something", line)).replace(" … ", " ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in ("|", "&&", ">"):
            found.append([])
        else:
            found[-1].append(word)
    return found


def check_posthouse(words: list[str]) -> None:
    """Whether the program takes this command line; nothing of it is done."""
    command: click.Command = main
    context = click.Context(main, info_name="posthouse")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            break
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    assert command is not main, words
    with context.scope(cleanup=False):
        command.make_context(command.name, list(words), parent=context.parent)


def check(words: list[str]) -> None:
    """Whether a simple command is one that there is."""
    if words[0] in ("posthouse", "/opt/posthouse/bin/posthouse"):
        check_posthouse(words[1:])
    elif words[0] == "./dev":
        assert words[1] in dev_commands(), words
        if words[1] == "bench" and len(words) > 2:
            source = (ROOT / "bench" / f"{words[2]}.py").read_text(encoding="utf-8")
            assert all(f'"{word}"' in source for word in words[3:] if word.startswith("--")), words
    elif words[0].endswith("pip"):
        assert words[1] == "install", words
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in re.findall(r"\[([a-z,]+)\]", " ".join(words)):
            assert set(extra.split(",")) <= set(declared), words
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None, words
    else:
        assert words[0] in ELSEWHERE or words[0] == "/dev/null", words


def test_every_block_is_of_a_language_that_is_looked_at() -> None:
    found = {block.language for page in pages() for block in blocks(page)}
    assert found <= LANGUAGES


def test_every_shell_line_is_made_of_what_there_is() -> None:
    count = 0
    for page, block in of("sh"):
        for line in lines(block):
            for words in words_of(line):
                try:
                    check(words)
                except (click.ClickException, AssertionError) as error:
                    raise AssertionError(f"{page.name}, line {block.line}: {line}: {error}") from error
                count += 1
    assert count >= 40


@pytest.mark.parametrize(
    "line",
    [
        "posthouse nothing",
        "posthouse books run --nothing x",
        "posthouse message history",
        "./dev everything",
        "./dev bench console --slowly",
        "pip install 'posthouse[everything]'",
        "python -m posthouse.nothing",
        "make all",
    ],
)
def test_a_line_that_is_wrong_is_found(line: str) -> None:
    """The control."""
    (words,) = words_of(line)
    with pytest.raises((click.ClickException, AssertionError, OSError)):
        check(words)


def test_every_table_of_settings_is_one_that_a_server_takes(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    for name, text in {"telegram": "123:abc", "webhook": SECRET, "mail": "secret"}.items():
        (tmp_path / "secrets" / name).write_text(text)
        (tmp_path / "secrets" / name).chmod(0o600)
    environ = {"SUPPORT_BOT_TOKEN": "456:def", "BRIDGE_TOKEN": "secret"}
    count = 0
    for page, block in of("toml"):
        file = tmp_path / "posthouse.toml"
        file.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        where = f"{page.name}, line {block.line}"
        if FILE_NAME.fullmatch(block.lines[0]):
            continue  # it is run with its page
        config = load({}, tmp_path)
        if page.name != "channel.md":  # its kind is one that the page writes
            made = catalogue.channels(config, environ)
            assert len(made) == len(config.channels), where
        count += 1
    assert count >= 12


def test_the_shape_of_json_is_the_one_that_is_read(tmp_path: Path) -> None:
    found = {page.name: json.loads("\n".join(block.lines)) for page, block in of("json")}
    assert set(found) == {"agent.md", "channels.md"}
    Identity(bytes(32)).save(tmp_path / "identity.json", "2026-01-31T12:00:00Z")
    assert set(found["agent.md"]) == set(json.loads((tmp_path / "identity.json").read_text()))
    (tmp_path / "posthouse.toml").write_text("[channel.console]\n")
    (account,) = catalogue.channels(load({}, tmp_path), {})
    assert isinstance(account, Account)
    inbound = plain.inbound_from(account, found["channels.md"])
    assert (inbound.id, inbound.conversation, inbound.sender, inbound.text) == ("m1", "room 1", "ann", "hello")
    assert [media.type for media in inbound.media] == ["image/png"]


def test_a_request_is_to_an_address_that_there_is() -> None:
    for page, block in of("http"):
        method, target, _ = block.lines[0].split()
        path, _, query = target.partition("?")
        operation = openapi.document()["paths"][path][method.lower()]
        known = {parameter["name"].lower() for parameter in operation["parameters"] if "name" in parameter}
        assert {pair.partition("=")[0] for pair in query.split("&")} <= known, page
        headers = {line.partition(":")[0].lower() for line in block.lines[1:]}
        assert headers <= known | {"authorization"}, page


def test_a_query_is_one_that_the_store_answers(tmp_path: Path) -> None:
    config = load({}, tmp_path)
    with Engine(open_store(config, create=True)) as engine:
        engine.call(Post(Message("outbox", "peer", "m1", b"{}", lane="trade-1")))
    database = apsw.Connection(str(config.path("store.path")), flags=apsw.SQLITE_OPEN_READONLY)
    for _, block in of("sql"):
        rows = database.execute("\n".join(block.lines)).fetchall()
        assert [row[:2] for row in rows] == [("m1", "trade-1")]


def cluster_job() -> tuple[dict[str, Any], dict[str, Any]]:
    """The job that the guide to the books gives to Kubernetes, and its container."""
    ((_, block),) = of("yaml")
    job = yaml.safe_load("\n".join(block.lines))["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    return job, container


def run_container(container: dict[str, Any], folder: Path, code: int) -> tuple[int, list[str]]:
    """What it ends with, and what the program is called with, where that ends with ``code`` and does nothing else."""
    program = folder / "posthouse"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "$WORDS"\nexit {code}\n', encoding="utf-8")
    program.chmod(0o755)
    told = {"status.podIP": "10.1.2.3"}
    given = {each["name"]: told[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]}
    environ = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "WORDS": str(folder / "words"), **given}
    done = subprocess.run(container["args"], env=environ, check=False)
    return done.returncode, (folder / "words").read_text(encoding="utf-8").splitlines()


def test_the_cluster_runs_a_command_that_there_is_and_executors_find_their_image_and_the_driver(tmp_path: Path) -> None:
    _, container = cluster_job()
    _, words = run_container(container, tmp_path, 0)
    check(["posthouse", *words])
    assert words[:2] == ["books", "run"]
    conf = dict(word.split("=", 1) for before, word in itertools.pairwise(words) if before == "--conf")
    assert conf == {
        "spark.kubernetes.container.image": container["image"],
        "spark.driver.host": "10.1.2.3",
        "spark.driver.bindAddress": "0.0.0.0",
    }


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (FOUND, 0), (2, 2), (3, 3)])
def test_the_cluster_fails_a_run_once_and_not_for_what_it_found(tmp_path: Path, code: int, ended: int) -> None:
    job, container = cluster_job()
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert run_container(container, tmp_path, code)[0] == ended


def test_the_connector_that_is_added_for_an_object_store_is_that_of_sparks_hadoop() -> None:
    import pyspark

    text = (ROOT / "docs/guides/books.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"`--conf spark\.jars=(\S+)`", text)
    (connector,) = re.findall(r"/hadoop-aws-([\d.]+)\.jar", line)
    assert Path(pyspark.__path__[0], "jars", f"hadoop-client-api-{connector}.jar").exists()
    assert f"whose Hadoop is {connector}:" in text


def test_whoever_keeps_the_books_on_a_cluster_is_told_to_share_the_journal() -> None:
    known = {setting.name: setting for setting in SETTINGS}
    assert known["journal.dir"].kind is Kind.PATH
    assert "must find `journal.dir` at the same path" in known["books.master"].help
    text = " ".join((ROOT / "docs/guides/books.md").read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"With a cluster as `books\.master`[^.]*`journal\.dir`[^.]*\.", text)
    assert "shared with the executors at the same path" in sentence


def test_what_the_relays_guide_tells_operators_to_type_works(folder: Path) -> None:
    """With an agent that waits to be let in, and a message that nobody confirmed."""
    relay = Relay(folder, {"relay.locked": "true", "relay.secret": "a long random text"}).start()
    try:
        agent = relay.agent("alice")
        body = json.dumps({"public_key": base64.b64encode(agent.public_key).decode()}).encode()
        status, _, answer = relay.http("/agents/register", body)
        assert status == 200
        address = str(json.loads(answer)["address"])
    finally:
        relay.stop()
    with Engine(open_store(load({}, folder))) as engine:
        engine.call(Post(Message("relay", address, "m1", b"x", sender="pinch:bob@relay.test")))
        (view,) = engine.store.find("m1")
        engine.call(Park(view.message.ref))
        engine.call(Post(Message("relay", address, "m2", b"x", sender="pinch:bob@relay.test")))
    page = ROOT / "docs/guides/relay.md"
    printed = {}
    for block in blocks(page):
        if block.language == "sh" and "pip" not in block.lines[0]:
            for line in lines(block):
                text = line.replace("pinch:…@relay.example.com", address).replace("<message id>", "m1")
                words = shlex.split(text, comments=True)
                result = CliRunner().invoke(main, words[1:], catch_exceptions=False)
                assert result.exit_code == 0, (line, result.output)
                printed[" ".join(words[1:3])] = result.output
    assert "may connect no longer (it was approved)" in printed["relay keys"]
    assert "parked" in printed["message history"]
    assert "m2" in printed["lane why"]
    with Engine(open_store(load({}, folder))) as engine:
        (view,) = engine.store.find("m1")
        assert view.state == "ready"


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_what_the_guide_to_the_books_tells_to_type_works(folder: Path) -> None:
    """On Spark, but for what needs a cluster, does not end, or is tried with the pipeline (``tests/pipeline``)."""
    config = load({}, folder)
    with Engine(open_store(config, create=True)) as engine:
        engine.call(*(Post(Message("relay", name, f"m{n}", b"x")) for name in ("bob", "carol") for n in range(20)))
        export(engine.store, config.path("journal.dir"), final=True)
    places = {"DIR --lake DIR": f"{config.path('journal.dir')} --lake {folder / 'other'}"}
    typed = []
    for block in blocks(ROOT / "docs/guides/books.md"):
        for line in lines(block) if block.language in ("sh", "") else ():
            for what, instead in places.items():
                line = line.replace(what, instead)
            words = shlex.split(line, comments=True)
            if words[:2] != ["posthouse", "books"] or words[2] not in TRIED or "://" in line or "…" in line:
                continue
            done = subprocess.run([*PROGRAM, *words[1:]], capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            typed.append(words[2])
    assert typed == ["run", "run", "verify", "compact"]
    told = subprocess.run(
        [*PROGRAM, "books", "show", "books", "--json"], check=True, capture_output=True, text=True
    ).stdout
    assert "relay" in told
