"""Compiles the hot path with mypyc: `build.py FOLDER`, the modules named in pyproject.toml.

In: the sources, which mypy checks on the way. Out: FOLDER with one extension a module and a manifest
that says which sources they were made from (see `finder.py`). The sources' own folder is not touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


def main(folder: Path) -> int:
    """Compile into a folder that replaces the old one only when all went well."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["posthouse"]["native"]["modules"]
    files = [Path(*name.split(".")).with_suffix(".py") for name in names]
    digests = {str(SOURCES / file): hashlib.sha256((SOURCES / file).read_bytes()).hexdigest() for file in files}
    with tempfile.TemporaryDirectory(prefix="native-", dir=folder.parent) as scratch:
        place = Path(scratch)
        shutil.copytree(SOURCES, place / "src", ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(
            [sys.executable, "-m", "mypyc", "--config-file", ROOT / "pyproject.toml", *files],
            cwd=place / "src",
            env={**os.environ, "MYPY_CACHE_DIR": str(place / "cache"), "POSTHOUSE_PURE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            sys.stderr.write(done.stdout[-4_000:])
            return 1
        made = place / "made"
        made.mkdir()
        modules: dict[str, str] = {}
        for built in (place / "src").rglob("*.so"):
            if "build" in built.relative_to(place / "src").parts:
                continue
            name = ".".join(built.relative_to(place / "src").with_name(built.name.partition(".")[0]).parts)
            modules[name] = f"{name}.so"
            shutil.copy2(built, made / modules[name])
        manifest = {"python": sys.implementation.cache_tag, "sources": digests, "modules": modules}
        (made / "manifest.json").write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
