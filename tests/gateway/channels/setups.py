"""Sections of the configuration for the channels' tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from posthouse.gateway.channel import Setup


def setup(kind: str, values: dict[str, Any], account: str = "default", **environ: str) -> Setup:
    """A section ``[channel.KIND]``."""
    return Setup(kind, kind, account, values, environ, Path(tempfile.gettempdir()))
