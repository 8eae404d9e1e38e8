"""Alert rules: when somebody is to be told that something is wrong, and when that it is over.

In: sections ``[alert.NAME]`` of the configuration; later, readings and instants. Out: checked rules, and for each
reading the next standing and the notice that is due, if one is. It reads no store and no clock.

    quiet ── above for for_s ──▶ firing ── at or below for for_s ──▶ quiet
                  "firing"         │ every repeat_s: "repeated"          "resolved"
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..config import Config, RuleSection, checked
from ..errors import ConfigError
from ..mailbox.message import SECOND, Instant
from ..settings import Kind, Setting

RULES_MAX = 100
DEFAULT_ACCOUNT = "alert/default"


class Measure(enum.StrEnum):
    """What a rule looks at."""

    DEPTH = "depth"
    AGE = "age"
    DEAD = "dead"
    BOOKS = "books"
    FINDINGS = "findings"


MEASURES: Mapping[Measure, str] = {
    Measure.DEPTH: "messages that are ready, leased or received",
    Measure.AGE: "the age of the oldest of them, as a duration",
    Measure.DEAD: "dead letters that are kept",
    Measure.BOOKS: "messages for which the books do not add up: posts without one outcome, outcomes without a post",
    Measure.FINDINGS: "findings of the books: lost, delivered twice, gaps and others",
}
_OF_THE_LAKE = frozenset({Measure.BOOKS, Measure.FINDINGS})
_NEEDS_ABOVE = frozenset({Measure.DEPTH, Measure.AGE})

OPTIONS: tuple[Setting, ...] = (
    Setting("on", Kind.CHOICE, None, "What is looked at; see below.", choices=tuple(Measure)),
    Setting("desk", Kind.TEXT, None, "Only this desk.", derived="every desk, each by itself"),
    Setting("mailbox", Kind.TEXT, None, "Only this mailbox of the desk.", derived="the whole desk"),
    Setting("above", Kind.NUMBER, None, "More than this is too much.", derived="0, where it need not be said"),
    Setting(
        "for_s",
        Kind.SECONDS,
        60.0,
        "How long it must be too much before somebody is told, and right again before that is over.",
        most=604_800,
    ),
    Setting("repeat_s", Kind.SECONDS, 14_400.0, "How often it is told again while it lasts; 0: once.", most=2_592_000),
    Setting(
        "account",
        Kind.TEXT,
        DEFAULT_ACCOUNT,
        "The channel and account that tells it, as `email/ops`; `alert/default` is what `gateway.alert` says.",
        pattern=r"[a-z0-9][a-z0-9_-]{0,62}/[A-Za-z0-9][A-Za-z0-9._@+-]{0,126}",
    ),
    Setting("to", Kind.TEXT, "operator", "Whom it is told to: a chat, an address, as the channel names it."),
)
"""What can be said in a section ``[alert.NAME]``."""
_BY_NAME = {setting.name: setting for setting in OPTIONS}
_DURATION = Setting("above", Kind.SECONDS, None, "")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, checked."""

    name: str
    on: Measure
    above: float
    desk: str | None = None
    mailbox: str | None = None
    for_s: float = 60.0
    repeat_s: float = 14_400.0
    account: str = DEFAULT_ACCOUNT
    to: str = "operator"
    where: str = ""

    @property
    def of_the_lake(self) -> bool:
        """Whether the books are asked, rather than the store."""
        return self.on in _OF_THE_LAKE


def rules_of(config: Config) -> tuple[Rule, ...]:
    """The rules that the configuration describes; ConfigError names the line that cannot be."""
    if len(config.alerts) > RULES_MAX:
        raise ConfigError(f"{config.alerts[RULES_MAX].where}: there are more than {RULES_MAX} alert rules")
    return tuple(_rule(section, config) for section in config.alerts)


def _rule(section: RuleSection, config: Config) -> Rule:
    found: dict[str, Any] = {}
    for key, (raw, _, where) in section.values.items():
        setting = _BY_NAME.get(key)
        if setting is None:
            near = difflib.get_close_matches(key, _BY_NAME, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_BY_NAME)}"
            raise ConfigError(f"{where}: unknown key alert.{section.name}.{key}; {hint}")
        if key != "above":
            found[key] = checked(_called(setting, section.name), raw, where, config.folder)

    def wrong(key: str, sentence: str) -> ConfigError:
        where = section.values[key].where if key in section.values else section.where
        return ConfigError(f"{where}: alert.{section.name} {sentence}")

    if "on" not in found:
        raise wrong("on", f"must say what it looks at: on = one of {', '.join(Measure)}")
    on = Measure(found["on"])
    if (desk := found.get("desk")) is not None and desk not in config.policies:
        near = difflib.get_close_matches(desk, config.policies, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(config.policies))}"
        raise wrong("desk", f"names the desk {desk!r}, which is not configured; {hint}")
    if "mailbox" in found and desk is None:
        raise wrong("mailbox", "names a mailbox and no desk: say whose it is")
    if "mailbox" in found and on in _OF_THE_LAKE:
        raise wrong("mailbox", f"looks at {on}, which is not told by mailbox")
    above = _above(section, on, config)
    if above is None:
        example = '"1h"' if on is Measure.AGE else "1000"
        raise wrong("above", f"must say how much is too much, as in above = {example}")
    found["on"] = on
    return Rule(section.name, above=above, where=section.where, **found)


def _above(section: RuleSection, on: Measure, config: Config) -> float | None:
    """How much is too much; an age is a duration. None where it must be said and is not."""
    given = section.values.get("above")
    if given is None:
        return None if on in _NEEDS_ABOVE else 0.0
    setting = _DURATION if on is Measure.AGE else _BY_NAME["above"]
    return float(checked(_called(setting, section.name), given.value, given.where, config.folder))


def _called(setting: Setting, rule: str) -> Setting:
    """The same setting under its full name, for what is said of a wrong value."""
    return replace(setting, name=f"alert.{rule}.{setting.name}")


class Standing(NamedTuple):
    """Where a rule stands for one of the things that it looks at; instants, 0 for not."""

    since: Instant = 0
    """Too much since then, or (while it fires) at its beginning."""
    fired_at: Instant = 0
    told_at: Instant = 0
    fine_at: Instant = 0
    """While it fires: no longer too much since then."""
    notices: int = 0
    """Told so often since it fired."""

    @property
    def word(self) -> str:
        """In one word: quiet, pending or firing."""
        return "firing" if self.fired_at else "pending" if self.since else "quiet"


QUIET = Standing()
FIRING, REPEATED, RESOLVED = "firing", "repeated", "resolved"


def step(rule: Rule, now_at: Standing, value: float, at: Instant) -> tuple[Standing, str | None]:
    """The next standing after a reading, and the notice that is due."""
    # A clock that was set back must not make anybody wait until it has caught up.
    since, fired_at, told_at, fine_at = (min(then, at) for then in now_at[:4])
    notices = now_at.notices
    lasts_us, repeat_us = int(rule.for_s * SECOND), int(rule.repeat_s * SECOND)
    if not fired_at:
        if value <= rule.above:
            return QUIET, None
        since = since or at
        if at - since < lasts_us:
            return Standing(since), None
        return Standing(since, at, at, 0, 1), FIRING
    if value > rule.above:
        if repeat_us and at - told_at >= repeat_us:
            return Standing(since, fired_at, at, 0, notices + 1), REPEATED
        return Standing(since, fired_at, told_at, 0, notices), None
    fine_at = fine_at or at
    if at - fine_at < lasts_us:
        return Standing(since, fired_at, told_at, fine_at, notices), None
    return QUIET, RESOLVED
