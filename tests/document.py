"""An HTTP API against its own OpenAPI document, tried by schemathesis in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path


async def hold_to_document(url: str, token: str, examples: int, folder: Path, *words: str) -> None:
    """Whatever the document allows or forbids is answered as it says; ``words`` are further options."""
    options = [
        *("run", url),
        *("--header", f"Authorization: Bearer {token}"),
        *("--max-examples", str(examples)),
        *("--seed", "1"),
        *("--checks", "all"),
        *("--request-timeout", "90"),
        "--no-color",
        *words,
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", *options),
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
