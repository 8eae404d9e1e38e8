"""The reference pages are what the program says of itself, and every command is in them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from posthouse.cli.reference import commands, pages
from posthouse.cli.root import COMMANDS
from posthouse.settings import SETTINGS

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(pages()))
def test_reference_pages_are_current(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == pages()[name], "run `.venv/bin/python -m posthouse.cli.reference`"


def test_every_command_is_documented() -> None:
    page = (FOLDER / "cli.md").read_text(encoding="utf-8")
    for path, _ in commands():
        if len(path) > 1:
            assert f"`{' '.join(path)}`" in page


def test_every_setting_is_documented() -> None:
    page = (FOLDER / "config.md").read_text(encoding="utf-8")
    for setting in SETTINGS:
        assert f"`{setting.name}`" in page
        assert f"`{setting.variable}`" in page


def test_every_command_and_option_has_help() -> None:
    for path, command in commands():
        assert command.help, path
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, (path, parameter.name)


def test_every_command_takes_json() -> None:
    for path, command in commands():
        if not isinstance(command, click.Group):
            assert "json" in {parameter.name for parameter in command.params}, path


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    said = {path[1]: command for path, command in commands() if len(path) == 2}
    assert {name: (command.help or "").splitlines()[0] for name, command in said.items()} == COMMANDS
