"""Kinds of channels: those that come with the gateway, those of plug-ins, and sections that name them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.channels.setups import setup

from posthouse.config import Config, load
from posthouse.errors import ConfigError, MissingExtra
from posthouse.gateway.channel import ENTRY_POINTS
from posthouse.gateway.channels import catalogue
from posthouse.gateway.channels.console import Console
from posthouse.gateway.channels.option import COMMON, Options
from posthouse.gateway.channels.webhook import Webhook
from posthouse.settings import Kind, Setting

PLUGIN = """
class Pigeon:
    idempotent = False

    def __init__(self, setup):
        self.kind, self.account, self.loft = setup.kind, setup.account, setup.values.get("loft")

    async def start(self, port): ...
    async def close(self): ...
    def connection(self): return None

make = Pigeon
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution that declares a kind of channel, one that is broken, and one that a built-in has the name of."""
    (tmp_path / "pigeon_post.py").write_text(PLUGIN)
    info = tmp_path / "pigeon_post-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    lines = ["pigeon = pigeon_post:make", "lame = pigeon_post:missing", "console = pigeon_post:make"]
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("pigeon_post", None)


def config(folder: Path, text: str) -> Config:
    (folder / "posthouse.toml").write_text(text)
    return load({}, folder)


def test_every_section_becomes_a_channel(tmp_path: Path, plugins: Path):
    found = config(
        tmp_path,
        '[channel.console]\n[channel.crm]\nkind = "webhook"\nurl_env = "CRM"\n[channel.pigeon]\nloft = "east"\n',
    )
    console, crm, pigeon = catalogue.channels(found, {"CRM": "https://example.org/hook"})
    assert isinstance(console, Console)
    assert isinstance(crm, Webhook)
    assert [(c.kind, c.account) for c in (console, crm, pigeon)] == [
        ("console", "default"), ("webhook", "crm"), ("pigeon", "default")
    ]  # fmt: skip
    assert pigeon.loft == "east"  # type: ignore[attr-defined]


def test_all_kinds_are_known_and_a_plug_in_does_not_replace_one_of_ours(plugins: Path):
    assert {*catalogue.BUILT_IN, "pigeon", "lame"} <= set(catalogue.kinds())
    assert catalogue.factory("console").__module__ == "posthouse.gateway.channels.console"


def test_every_built_in_kind_is_declared_as_others_are():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    for kind, module in catalogue.BUILT_IN.items():
        assert f'{kind} = "{module}:make"' in text
        assert catalogue.options(kind)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('[channel.x]\nkind = "telegramm"\n', "did you mean telegram?"),
        ('[channel.x]\nkind = "lame"\n', "cannot be loaded"),
        ("[channel.webhook]\nurrl = 'https://example.org'\n", "did you mean url?"),
        ("[channel.telegram]\ntoken = '1:A'\n", "token is a secret and is not written here"),
    ],
)
def test_a_section_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, plugins: Path, section: str, said: str):
    with pytest.raises(ConfigError) as caught:
        catalogue.channels(config(tmp_path, "[log]\nlevel = 'info'\n" + section), {})
    assert said in str(caught.value)
    assert "posthouse.toml:3" in str(caught.value) or "line 3" in str(caught.value)


def test_a_part_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "aiosmtplib", None)
    monkeypatch.delitem(sys.modules, "posthouse.gateway.channels.email", raising=False)
    with pytest.raises(MissingExtra, match=r"aiosmtplib: pip install 'posthouse\[gateway,relay\]'"):
        catalogue.factory("email")


# Options.

TABLE = (
    Setting("place", Kind.PATH, "here", "A path."),
    Setting("many", Kind.TEXT, None, "A list."),
    Setting("word", Kind.TEXT, None, "A secret.", secret=True),
)


def options(values: dict[str, Any], folder: Path, **environ: str) -> Options:
    made = setup("test", values, **environ)
    return Options(type(made)(made.name, made.kind, made.account, values, environ, folder), TABLE)


def test_paths_start_from_the_files_folder_and_lists_may_be_lists(tmp_path: Path):
    assert options({}, tmp_path).path("place") == tmp_path / "here"
    assert options({"place": "there"}, tmp_path).path("place") == tmp_path / "there"
    assert options({"many": ["a", "b c"]}, tmp_path).texts("many") == ("a", "b c")
    assert options({"many": "a, b c,"}, tmp_path).texts("many") == ("a", "b c")
    assert options({}, tmp_path).text("tenant") == "default"


def test_a_secret_comes_from_its_file_or_its_variable_and_is_not_shown(tmp_path: Path):
    (tmp_path / "word").write_text("hunter2\n")
    for found in (options({"word_file": "word"}, tmp_path), options({"word_env": "W"}, tmp_path, W="hunter2")):
        assert found.secret("word").reveal() == "hunter2"
        assert "hunter2" not in repr(found.secret("word")) + repr(found) + str(vars(found))
        assert found.scrubber.scrub("say hunter2, aHVudGVyMg==, aHVudGVyMg") == "say (hidden), (hidden), (hidden)"


@pytest.mark.parametrize("content", [b"", b"  \n", b"two\nlines", b"\xff\xfe", b"x" * 70_000])
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "word").write_bytes(content)
    with pytest.raises(ConfigError, match="word_file"):
        options({"word_file": "word"}, tmp_path)


def test_a_scrubbed_text_is_short_and_holds_no_form_of_the_secret(tmp_path: Path):
    scrub = options({"word_env": "W"}, tmp_path, W="a/b c+d'e").scrubber.scrub
    assert scrub("https://x/?t=a%2Fb%20c%2Bd%27e&u=a%2Fb+c%2Bd%27e") == "https://x/?t=(hidden)&u=(hidden)"
    assert len(scrub("x" * 5_000)) == 500


def test_all_kinds_have_different_options_from_those_of_all():
    for kind in catalogue.BUILT_IN:
        names = [setting.name for setting in (*COMMON, *catalogue.options(kind))]
        assert len(names) == len(set(names)), kind
        assert all(setting.help.endswith(".") for setting in catalogue.options(kind)), kind
