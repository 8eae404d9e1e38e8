"""The reference pages that are made from the program: docs/reference/cli.md, config.md and metrics.md.

`python -m posthouse.cli.reference` writes them; a test holds the files to what this makes.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ..config import POLICY_HELP
from ..control import rule
from ..mailbox.policy import PRESETS, Policy
from ..settings import SETTINGS, Kind, Setting
from .reference_metrics import metrics_page
from .root import common_options, main

_MADE = "<!-- Made by `python -m posthouse.cli.reference`; a test holds this page to the program. -->\n"


def pages() -> dict[str, str]:
    """Each page by its file's name."""
    return {"cli.md": cli_page(), "config.md": config_page(), "metrics.md": f"{_MADE}\n{metrics_page()}"}


# The command line


def commands(
    command: click.Command | None = None, path: tuple[str, ...] = ("posthouse",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group with the words that call it."""
    command = command or main
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def cli_page() -> str:
    """docs/reference/cli.md."""
    parts = [_MADE, "# The command line\n"]
    common = {option.name for option in common_options()}
    for path, command in commands():
        if len(path) == 1:
            parts += [_paragraphs(command), "", _table(command.params), ""]
            parts.append("These options are taken by every command, before or behind its name.\n")
            continue
        words = " ".join(path)
        parts.append(f"{'#' * len(path)} `{words}`\n")
        parts.append(_paragraphs(command))
        if isinstance(command, click.Group) and not command.invoke_without_command:
            parts.append("")
            continue
        context = click.Context(command, info_name=words)
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"\n```\n{words} {usage}\n```\n")
        own = [p for p in command.params if p.name not in common]
        if any(isinstance(p, click.Option) for p in own):
            parts += [_table(own), ""]
    return "\n".join(parts).rstrip() + "\n"


def _paragraphs(command: click.Command) -> str:
    text = "\n".join(line.strip() for line in (command.help or "").splitlines())
    before, mark, literal = text.partition("\b")
    return before.strip() + (f"\n\n```\n{literal.strip()}\n```" if mark else "")


def _table(parameters: list[click.Parameter]) -> str:
    rows = ["| option | meaning |", "|---|---|"]
    context = click.Context(main)
    for parameter in parameters:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            name, meaning = (cell.replace("|", "\\|") for cell in record)
            rows.append(f"| `{name}` | {meaning} |")
    return "\n".join(rows)


# The configuration


def config_page() -> str:
    """docs/reference/config.md."""
    settings = []
    for s in SETTINGS:
        default = s.derived if s.default is None else f"`{_toml(s.default)}`"
        kind = " · ".join(f"`{c}`" for c in s.choices) if s.choices else str(s.kind)
        if s.kind in (Kind.WHOLE, Kind.NUMBER, Kind.SECONDS) and s.most != math.inf:
            kind += f", {s.least:g} to {s.most:.0f}"
        settings.append(f"| `{s.name}` | {kind} | {default} | `{s.variable}` | {s.help} |")
    fields = []
    for field in dataclasses.fields(Policy):
        if field.name != "name":
            cells = " | ".join(f"`{_toml(p.as_json()[field.name])}`" for p in PRESETS.values())
            fields.append(f"| `{field.name}` | {POLICY_HELP[field.name]} | {cells} |")
    return _CONFIG_PAGE.format(
        made=_MADE,
        settings="\n".join(settings),
        presets=" | ".join(PRESETS),
        rule="|".join(["---"] * (2 + len(PRESETS))),
        fields="\n".join(fields),
        options="\n".join(_option(setting) for setting in rule.OPTIONS),
        measures="\n".join(f"| `{name}` | {meaning} |" for name, meaning in rule.MEASURES.items()),
    )


def _option(setting: Setting) -> str:
    """A row of what can be said in a rule."""
    kind = " · ".join(f"`{choice}`" for choice in setting.choices) if setting.choices else str(setting.kind)
    default = setting.derived or ("must be said" if setting.default is None else f"`{_toml(setting.default)}`")
    return f"| `{setting.name}` | {kind} | {default} | {setting.help} |"


def _toml(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return str(value)


_CONFIG_PAGE = """\
{made}
# Configuration

One TOML file, environment variables and flags. A flag wins over the environment, the environment over
the file, the file over the default; `posthouse config explain` shows each value and where it came from.

- The file is the one that `--config` names, else the one that `POSTHOUSE_CONFIG` names, else
  `posthouse.toml` in the working directory, if there is one.
- Every setting has a variable (`store.path` is `POSTHOUSE_STORE_PATH`) and can be given as a flag
  (`--set store.path=mail.db`). An empty variable counts as not set.
- An unknown key, variable or setting is an error that names the nearest known one.
- Durations are seconds, or text such as `"250ms"`, `"30s"`, `"5m"`, `"1h30m"`, `"7d"`, `"2w"`.
- Relative paths in the file, and the defaults, start from the file's folder (without a file, from the
  working directory); those of variables and flags start from the working directory.

```toml
[store]
path = "/var/lib/posthouse/mail.db"

[metrics]
port = 9464

[desk.relay]            # the preset of that name, with one field changed
ttl_s = "3d"

[desk.invoices]         # a desk of your own starts from a preset
preset = "inbound"
poison = "block"
retry = ["5s", "1m", "10m"]
```

## Settings

| setting | type | default | variable | meaning |
|---|---|---|---|---|
{settings}

## Desks

A desk is a policy with a name. `[desk.<name>]` changes fields of the preset of that name; under any other
name, `preset` says which one to start from. `"none"` means no limit. By variable:
`POSTHOUSE_DESK_RELAY_TTL_S=3d`; by flag: `--set desk.relay.ttl_s=3d`.

| field | meaning | {presets} |
|{rule}|
{fields}

## Channels

`[channel.<name>]` is one account on one of the gateway's networks; [their keys](channels.md) are those of its kind.
By flag: `--set channel.telegram.token_file=secrets/telegram`. They have no variables of their own: a secret is in a
file, or in a variable that a key ending in `_env` names.

## Alerts

`[alert.<name>]` is a rule: when the gateway tells somebody that something is wrong
([guide](../guides/operate.md#alerts-of-its-own)). By flag: `--set alert.backlog.above=500`. They have no variables.

| key | type | default | meaning |
|---|---|---|---|
{options}

| `on` | what is looked at |
|---|---|
{measures}
"""


def write(folder: Path) -> None:
    """Write every page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[3] / "docs" / "reference")
