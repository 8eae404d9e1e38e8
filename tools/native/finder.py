"""Loads the compiled modules of Posthouse where they fit the sources; else Python finds the sources.

`./dev` copies this file into .venv, where a .pth file imports it at start. It checks all sources of the
compiled set at once, when the first of them is wanted: the set is compiled as a whole, so one changed
source puts all of it out of use until `./dev` compiles again. POSTHOUSE_PURE=1 does the same by choice.
Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class NativeFinder:
    """Finds the modules named in the manifest of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, str] | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The compiled module of this name, or None."""
        if not name.startswith("posthouse.") and not name.endswith("__mypyc"):
            return None
        if self._modules is None:
            self._modules = _usable(self._folder)
        file = self._modules.get(name)
        if file is None:
            return None
        place = str(self._folder / file)
        return importlib.util.spec_from_file_location(
            name, place, loader=importlib.machinery.ExtensionFileLoader(name, place)
        )


def _usable(folder: Path) -> dict[str, str]:
    """The modules of the manifest, none of them if a source is not the one that was compiled."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        if manifest["python"] != sys.implementation.cache_tag:
            return {}
        for source, digest in manifest["sources"].items():
            if hashlib.sha256(Path(source).read_bytes()).hexdigest() != digest:
                return {}
        modules: dict[str, str] = manifest["modules"]
    except (OSError, ValueError, KeyError):
        return {}
    return modules


def install(folder: Path) -> None:
    """Look in this folder before Python's own finders do."""
    if os.environ.get("POSTHOUSE_PURE") != "1" and (folder / "manifest.json").exists():
        sys.meta_path.insert(0, NativeFinder(folder))


install(Path(sys.prefix) / "native")
