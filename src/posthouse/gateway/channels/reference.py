"""The reference of channels, made from the tables of their options.

python -m posthouse.gateway.channels.reference > docs/reference/channels.md
"""

from __future__ import annotations

import math
import sys

from ...settings import Kind, Setting
from . import catalogue
from .option import COMMON, keys_of

HEAD = """\
# Channels

<!-- Made by `python -m posthouse.gateway.channels.reference`; do not edit. -->

A section `[channel.NAME]` of the configuration is one account on one network. `kind` says which; without it the name
is the kind. `account` names the account in messages; without it, it is `default` where the name is the kind, else the
name. All other keys are below. Those that end in `_file` name a file that holds the value, those in `_env` a variable
of the environment: secrets are given in these ways only. [The guide](../guides/channels.md) shows each kind.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD, "## All kinds\n", _table(COMMON)]
    for kind in catalogue.BUILT_IN:
        parts += [f"## {kind}\n", _table(catalogue.options(kind))]
    return "\n".join(parts)


def _table(settings: tuple[Setting, ...]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for setting in settings:
        keys = ", ".join(f"`{key}`" for key in keys_of(setting))
        rows.append(f"| {keys} | {_kind(setting)} | {_default(setting)} | {setting.help} |")
    return "\n".join(rows) + "\n"


def _kind(setting: Setting) -> str:
    if setting.choices:
        return " · ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is Kind.PLACE:
        return "URL"
    kind = "secret" if setting.secret else str(setting.kind)
    if setting.kind in (Kind.WHOLE, Kind.NUMBER, Kind.SECONDS) and setting.most != math.inf:
        kind += f", {setting.least:g} to {setting.most:.0f}"
    return kind


def _default(setting: Setting) -> str:
    if setting.default is None:
        return setting.derived
    if isinstance(setting.default, bool):
        return "`true`" if setting.default else "`false`"
    return f'`"{setting.default}"`' if isinstance(setting.default, str) else f"`{setting.default:.15g}`"


if __name__ == "__main__":
    sys.stdout.write(page())
