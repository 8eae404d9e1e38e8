"""Which kinds of channels there are: those that come with the gateway, and those of plug-ins.

In: the name of a kind, and sections of the configuration. Out: channels that are not started yet.
A plug-in declares its factory as an entry point of the group ``posthouse.channels`` under the name of its kind. It is
imported only when a section names that kind.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import cast

from ...config import Config
from ...errors import ConfigError, MissingExtra
from ...settings import Setting
from ..channel import ENTRY_POINTS, Channel, Factory, Setup

BUILT_IN: Mapping[str, str] = {
    kind: f"posthouse.gateway.channels.{kind}"
    for kind in ("webhook", "websocket", "pinch", "telegram", "email", "console")
}
"""The kinds that come with the gateway, and their modules; each has ``make`` and ``OPTIONS``."""


def kinds() -> list[str]:
    """The names of all kinds that can be used here."""
    return sorted({*BUILT_IN, *(point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS))})


def factory(kind: str) -> Factory:
    """What makes channels of a kind; ConfigError if there is none, MissingExtra if it is not installed whole."""
    # A built-in kind is never replaced by somebody else's of the same name.
    if kind in BUILT_IN:
        try:
            module = importlib.import_module(BUILT_IN[kind])
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"the channel {kind} needs {error.name}: pip install 'posthouse[gateway,relay]'"
            ) from error
        return cast(Factory, module.make)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=kind):
        try:
            return cast(Factory, point.load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the plug-in for the channel {kind} ({point.value}) cannot be loaded: {error}"
            ) from error
    near = difflib.get_close_matches(kind, kinds(), n=1)
    hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(kinds())
    raise ConfigError(f"there is no kind of channel {kind!r}; {hint}")


def options(kind: str) -> tuple[Setting, ...]:
    """What can be said in a section of a built-in kind, besides what all kinds have."""
    return cast(tuple[Setting, ...], importlib.import_module(BUILT_IN[kind]).OPTIONS)


def channels(config: Config, environ: Mapping[str, str]) -> list[Channel]:
    """A channel for each section of the configuration; ConfigError names the section that cannot be used."""
    return [
        _made(Setup(section.name, section.kind, section.account, section.values, environ, config.folder), section.where)
        for section in config.channels
    ]


def _made(setup: Setup, where: str) -> Channel:
    try:
        return factory(setup.kind)(setup)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
