"""The configuration: the table of settings, filled from one TOML file, the environment and flags.

In: the text of ``posthouse.toml``, a mapping of environment variables, flags as text, a folder.
Out: a ``Config`` whose every value is checked and remembers where it came from.
A flag wins over the environment, that over the file, and the file over the default. What is not in
the table is an error that names the nearest thing that is. It opens no store and changes nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ConfigError, InvalidInput
from .mailbox.policy import PRESETS, LostLease, OnExpiry, Poison, Policy, SettleBy, policy_from
from .settings import SETTINGS, VARIABLE_PREFIX, Kind, Plain, Setting

FILE_NAME = "posthouse.toml"
FILE_VARIABLE = "POSTHOUSE_CONFIG"


class Source(enum.StrEnum):
    """Where a value came from; later ones win."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Value(NamedTuple):
    """A value and its origin; ``where`` is a file and line, a variable or a flag, '' for a default."""

    value: Any
    source: Source
    where: str


class Given(NamedTuple):
    """A flag as it was typed: the text of its value and the flag's own name."""

    text: str
    flag: str


_DESK_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

_PLACES = (Kind.PATH, Kind.PLACE)
_BY_NAME = {s.name: s for s in SETTINGS}
_BY_VARIABLE = {s.variable: s for s in SETTINGS}
_SECTIONS = sorted({s.name.partition(".")[0] for s in SETTINGS} | {"alert", "channel", "desk"})

POLICY_HELP: Mapping[str, str] = {
    "capacity": "Messages ready, leased or received in one mailbox; more are refused as full.",
    "sender_max": "Of those, messages of one sender: one alone cannot fill a mailbox. More are refused as share.",
    "parked_max": "Parked messages in one mailbox; past it what would be parked dies instead.",
    "size_bytes_max": "The largest body.",
    "ttl_s": "How long a message may wait before it expires.",
    "window_per_lane": "Messages of one lane in flight at once.",
    "lease_s": "How long a holder may keep a message without renewing; none: until it leaves.",
    "settle_by": "Who may finish a message: the holder of its lease, or whoever names its id.",
    "retry": "Waits between attempts: a list whose last step repeats, or {first_s, factor, cap_s}.",
    "attempts_max": "Counted attempts before the poison policy applies.",
    "unreceived_max": "Holders in a row that may leave with a first message unreceived before it is parked.",
    "on_expiry": "What passing its limit means: silently expired, or dead by deadline.",
    "poison": "When attempts are used up: block (dead, lane paused), skip (dead, lane goes on) or park.",
    "lost_lease": "What becomes of a message whose lease ran out.",
    "quiet_s": "How long a lane must be quiet before its messages are leased, as one batch.",
    "quiet_max_s": "The longest that a quiet period may delay a message.",
    "dedup_s": "How long the id of a finished message is remembered.",
    "history_s": "How long delivered, expired and cancelled messages are kept whole.",
    "aside_s": "How long dead, parked and uncertain messages are kept for an operator.",
}
_OPTIONAL_FIELDS = frozenset(f.name for f in dataclasses.fields(Policy) if "None" in str(f.type))
_WHOLE_FIELDS = frozenset(f.name for f in dataclasses.fields(Policy) if str(f.type).startswith("int"))
_CHOICE_FIELDS: Mapping[str, type[enum.StrEnum]] = {
    "settle_by": SettleBy,
    "on_expiry": OnExpiry,
    "poison": Poison,
    "lost_lease": LostLease,
}

# The variables of the Go relay that this one replaces, and what becomes of their text.
_PINCH: Mapping[str, tuple[tuple[str, Callable[[str], str]], ...]] = {
    # That one listens on every address.
    "PINCH_RELAY_PUBLIC_HOST": (("relay.public_host", str), ("relay.host", lambda text: "*")),
    "PINCH_RELAY_PORT": (("relay.port", str),),
    "PINCH_RELAY_DB": (("store.path", str),),
    "PINCH_RELAY_QUEUE_MAX": (("relay.queue_max", str),),
    "PINCH_RELAY_QUEUE_TTL": (("relay.queue_ttl_s", lambda hours: f"{hours}h"),),
    "PINCH_RELAY_RATE_LIMIT": (("relay.rate_limit", str),),
    "PINCH_RELAY_RATE_BURST": (("relay.rate_burst", str),),
    "PINCH_RELAY_ALLOWED_ORIGINS": (("relay.allowed_origins", str),),
}
PINCH_VARIABLES: Mapping[str, str] = {variable: target[0][0] for variable, target in _PINCH.items()}
"""The Go relay's variables and the settings that they stand for."""

# Kubernetes puts these into every pod beside a service called "posthouse"; they are not meant for us. The last one is
# for whoever loads the compiled modules.
_FOREIGN = re.compile(r"POSTHOUSE_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?|PURE)")


@dataclass(frozen=True, slots=True)
class Section:
    """A section ``[channel.NAME]``: one account on one channel. What its keys mean, only the channel knows."""

    name: str
    kind: str
    account: str
    values: Mapping[str, Any]
    """Its other keys, as they were written; they may hold secrets, so it has no repr of them."""
    where: str

    def __repr__(self) -> str:
        return f"Section({self.name!r}, {self.kind!r}, {self.account!r})"


@dataclass(frozen=True, slots=True)
class RuleSection:
    """A section ``[alert.NAME]``: a rule of when somebody is told. What its keys mean, ``control.rule`` knows."""

    name: str
    values: Mapping[str, Value]
    where: str


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was decided, checked. Made by ``load``."""

    file: Path | None
    """The TOML file that was read."""
    folder: Path
    """What relative paths of the file and the defaults start from: its folder, else the working directory."""
    values: Mapping[str, Value]
    policies: Mapping[str, Policy]
    desk_values: Mapping[str, Value]
    """What was said about desks, by ``desk.<name>.<field>``."""
    channels: tuple[Section, ...] = ()
    alerts: tuple[RuleSection, ...] = ()

    def path(self, name: str) -> Path:
        """A path setting, absolute."""
        return Path(str(self.values[name].value))

    def text(self, name: str) -> str:
        """A text or choice setting."""
        return str(self.values[name].value)

    def whole(self, name: str) -> int:
        """A whole number."""
        return int(self.values[name].value)

    def seconds(self, name: str) -> float:
        """A duration in seconds."""
        return float(self.values[name].value)

    def number(self, name: str) -> float:
        """A number that need not be whole."""
        return float(self.values[name].value)

    def path_or_none(self, name: str) -> Path | None:
        """A path setting that may be left out, absolute."""
        return None if self.values[name].value is None else self.path(name)

    def text_or_none(self, name: str) -> str | None:
        """A text that may be left out."""
        return None if self.values[name].value is None else self.text(name)

    def switch(self, name: str) -> bool:
        """A setting that is on or off."""
        return bool(self.values[name].value)

    def is_given(self, name: str) -> bool:
        """Whether somebody chose the value."""
        return self.values[name].source is not Source.DEFAULT

    def explain(self) -> list[dict[str, Any]]:
        """Every setting and every field of every desk with its value and origin."""
        rows = [
            {"name": name, "value": _explained(name, v.value), "source": str(v.source), "where": v.where or None}
            for name, v in self.values.items()
        ]
        for desk, policy in sorted(self.policies.items()):
            for field, value in policy.as_json().items():
                if field == "name":
                    # In its place stands what the desk starts from.
                    field, value = "preset", desk
                given = self.desk_values.get(f"desk.{desk}.{field}")
                rows.append(
                    {
                        "name": f"desk.{desk}.{field}",
                        "value": given.value if given and field == "preset" else value,
                        "source": str(given.source if given else Source.DEFAULT),
                        "where": given.where if given else None,
                    }
                )
        for channel in self.channels:
            # Its own keys may be secrets, and only the channel knows which.
            shown = {"kind": channel.kind, "account": channel.account, **dict.fromkeys(channel.values, "(hidden)")}
            for field, value in shown.items():
                name = f"channel.{channel.name}.{field}"
                rows.append({"name": name, "value": value, "source": str(Source.FILE), "where": channel.where})
        for rule in self.alerts:
            for field, (value, source, where) in rule.values.items():
                name = f"alert.{rule.name}.{field}"
                rows.append({"name": name, "value": value, "source": str(source), "where": where})
        return rows


def load(
    environ: Mapping[str, str],
    folder: Path,
    flags: Mapping[str, Given] | None = None,
    file: str | None = None,
) -> Config:
    """Read and check the whole configuration; ConfigError with the first thing that is wrong.

    ``folder`` is the working directory, ``flags`` are by name of setting, ``file`` is what --config named.
    """
    flags = flags or {}
    path = _find_file(environ, folder, file)
    base = path.parent if path else folder
    values = {s.name: Value(s.default, Source.DEFAULT, "") for s in SETTINGS}
    desk_values: dict[str, Value] = {}
    named: Named = {"alert": {}, "channel": {}}
    if path:
        _read_file(path, values, desk_values, named)
    _read_environ(environ, folder, values, desk_values)
    _read_flags(flags, folder, values, desk_values, named)
    _derive(values, base)
    _debounce(values, desk_values)
    policies = _policies(desk_values)
    _shorten(values, desk_values, policies)
    return Config(path, base, values, policies, desk_values, _sections(named["channel"]), _rules(named["alert"]))


def _find_file(environ: Mapping[str, str], folder: Path, flag: str | None) -> Path | None:
    named, by = (flag, "--config") if flag else (environ.get(FILE_VARIABLE), FILE_VARIABLE)
    path = folder / (named or FILE_NAME)
    if path.is_file():
        return path
    if named:
        raise ConfigError(f"{by}: there is no file {str(path)!r}")
    return None


Named = dict[str, dict[str, dict[str, Value]]]
"""Sections that have a name of their own, as they were written: by ``alert`` or ``channel``, and by that name.
Under '' stands where a section begins."""


def _read_file(path: Path, values: dict[str, Value], desk_values: dict[str, Value], named: Named) -> None:
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    lines = _line_numbers(text)

    def where(*keys: str) -> str:
        for length in range(len(keys), 0, -1):
            if keys[:length] in lines:
                return f"{path}:{lines[keys[:length]]}"
        return str(path)

    for section, table in document.items():
        if section not in _SECTIONS:
            raise _unknown(where(section), section, _SECTIONS, "section")
        if not isinstance(table, dict):
            raise ConfigError(f"{where(section)}: {section} is a section: write [{section}] and its keys below")
        for key, raw in table.items():
            if section in named:
                if not isinstance(raw, dict):
                    raise ConfigError(f"{where(section, key)}: it is a section of its own: write [{section}.{key}]")
                _check_section_name(section, key, where(section, key))
                read = {field: Value(value, Source.FILE, where(section, key, field)) for field, value in raw.items()}
                named[section][key] = {"": Value(None, Source.FILE, where(section, key)), **read}
                continue
            if section == "desk":
                if not isinstance(raw, dict):
                    raise ConfigError(f"{where(section, key)}: a desk is a section: write [desk.{key}]")
                for field, value in raw.items():
                    place = where(section, key, field)
                    _set_desk(key, field, value, Source.FILE, place, desk_values)
                if not raw:
                    _check_desk_name(key, where(section, key))
                    desk_values.setdefault(f"desk.{key}.", Value(None, Source.FILE, where(section, key)))
                continue
            setting = _BY_NAME.get(f"{section}.{key}")
            if setting is None:
                # The right key in the wrong section is nearer than a like one in the right section.
                same = [s.name for s in SETTINGS if s.name.endswith(f".{key}")]
                known = same or [s.name for s in SETTINGS if s.name.startswith(f"{section}.")]
                raise _unknown(where(section, key), f"{section}.{key}", known, "key")
            place = where(section, key)
            found = Value(_checked(setting, raw, place, path.parent), Source.FILE, place)
            _set(setting, found, values, desk_values)


def _read_environ(
    environ: Mapping[str, str], folder: Path, values: dict[str, Value], desk_values: dict[str, Value]
) -> None:
    # First the Go relay's, so that ours win.
    for variable, targets in _PINCH.items():
        if text := environ.get(variable, ""):
            for name, read in targets:
                setting = _BY_NAME[name]
                given = Value(_checked(setting, read(text), variable, folder), Source.ENVIRONMENT, variable)
                _set(setting, given, values, desk_values)
    for variable in sorted(environ):
        text = environ[variable]
        ours = variable.startswith(VARIABLE_PREFIX) and variable != FILE_VARIABLE and not _FOREIGN.fullmatch(variable)
        if not ours or not text:
            continue
        if variable.startswith(VARIABLE_PREFIX + "DESK_"):
            desk, field = _split_desk_variable(variable)
            _set_desk(desk, field, _from_text(text), Source.ENVIRONMENT, variable, desk_values)
            continue
        known = _BY_VARIABLE.get(variable)
        if known is None:
            raise _unknown("environment", variable, [*_BY_VARIABLE, FILE_VARIABLE], "variable")
        given = Value(_checked(known, text, variable, folder), Source.ENVIRONMENT, variable)
        _set(known, given, values, desk_values)


def _read_flags(
    flags: Mapping[str, Given],
    folder: Path,
    values: dict[str, Value],
    desk_values: dict[str, Value],
    named: Named,
) -> None:
    for name, (text, flag) in flags.items():
        parts = name.split(".")
        if parts[0] in named and len(parts) == 3:
            _check_section_name(parts[0], parts[1], flag)
            section = named[parts[0]].setdefault(parts[1], {"": Value(None, Source.FLAG, flag)})
            section[parts[2]] = Value(_from_text(text), Source.FLAG, flag)
            continue
        if parts[0] == "desk" and len(parts) == 3:
            _set_desk(parts[1], parts[2], _from_text(text), Source.FLAG, flag, desk_values)
            continue
        setting = _BY_NAME.get(name)
        if setting is None:
            raise _unknown(flag, name, list(_BY_NAME), "setting")
        _set(setting, Value(_checked(setting, text, flag, folder), Source.FLAG, flag), values, desk_values)


def _set(setting: Setting, value: Value, values: dict[str, Value], desk_values: dict[str, Value]) -> None:
    if setting.short_for:
        desk_values[setting.short_for] = value
    else:
        values[setting.name] = value


def _shorten(values: dict[str, Value], desk_values: Mapping[str, Value], policies: Mapping[str, Policy]) -> None:
    """What is short for a desk's field has that field's value and origin."""
    for setting in SETTINGS:
        if setting.short_for:
            _, desk, field = setting.short_for.split(".")
            given = desk_values.get(setting.short_for, Value(None, Source.DEFAULT, ""))
            values[setting.name] = given._replace(value=policies[desk].as_json()[field])


def _explained(name: str, value: Plain | None) -> Plain | None:
    """The value as it may be shown."""
    return "(hidden)" if value is not None and _BY_NAME[name].secret else value


def _derive(values: dict[str, Value], base: Path) -> None:
    for name, value in list(values.items()):
        if value.source is Source.DEFAULT and _BY_NAME[name].kind in _PLACES and value.value is not None:
            values[name] = value._replace(value=str(base / str(value.value)))
    if values["control.path"].value is None:
        values["control.path"] = Value(f"{values['store.path'].value}.sock", Source.DEFAULT, "")
    if values["agent.relay"].value is None:
        scheme = "ws" if values["relay.tls_cert"].value is None else "wss"
        values["agent.relay"] = Value(f"{scheme}://127.0.0.1:{values['relay.port'].value}", Source.DEFAULT, "")
    if values["store.node"].value is None:
        values["store.node"] = Value(node_name(socket.gethostname()), Source.DEFAULT, "")


def _debounce(values: Mapping[str, Value], desk_values: dict[str, Value]) -> None:
    """The gateway's quiet period is its inbound desk's, and a message waits five times that at most."""
    given = values["gateway.debounce_s"]
    if given.value:
        desk_values.setdefault("desk.inbound.quiet_s", given)
        desk_values.setdefault("desk.inbound.quiet_max_s", given._replace(value=5 * given.value))


# Channels and alerts

_CHANNEL_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
ACCOUNT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,126}")


def _check_section_name(section: str, name: str, where: str) -> None:
    if not _CHANNEL_PATTERN.fullmatch(name):
        what = {"alert": "an alert's", "channel": "a channel's"}[section]
        raise ConfigError(f"{where}: {what} name is lower-case letters, digits, - and _: {_shown(name)}")


def _rules(alerts: Mapping[str, Mapping[str, Value]]) -> tuple[RuleSection, ...]:
    return tuple(
        RuleSection(name, {key: value for key, value in given.items() if key}, given[""].where)
        for name, given in alerts.items()
    )


def _sections(channels: Mapping[str, Mapping[str, Value]]) -> tuple[Section, ...]:
    """Each channel with its kind (its name, if none is said) and its account (its name, if that is not the kind)."""
    found: dict[tuple[str, str], Section] = {}
    for name, given in channels.items():
        own = dict(given)
        where = own.pop("").where
        kind = own.pop("kind", Value(name, Source.DEFAULT, where))
        if not isinstance(kind.value, str) or not _CHANNEL_PATTERN.fullmatch(kind.value):
            raise ConfigError(
                f"{kind.where}: channel.{name}.kind is the name of a kind of channel: {_shown(kind.value)}"
            )
        derived = "default" if kind.value == name else name
        account = own.pop("account", Value(derived, Source.DEFAULT, where))
        if not isinstance(account.value, str) or not ACCOUNT_PATTERN.fullmatch(account.value):
            raise ConfigError(
                f"{account.where}: channel.{name}.account is letters, digits and ._@+-: {_shown(account.value)}"
            )
        values = {key: value.value for key, value in own.items()}
        section = Section(name, kind.value, account.value, values, where)
        twin = found.setdefault((section.kind, section.account), section)
        if twin is not section:
            raise ConfigError(
                f"{where}: channels {twin.name} and {name} are the same account {section.account!r} of {section.kind}"
            )
    return tuple(found.values())


def node_name(host: str) -> str:
    """A host's name as the name of a store: what the journal's folders cannot carry is replaced."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip(".-")[:64]
    return name or "local"


# Values


def checked(setting: Setting, raw: object, where: str, folder: Path) -> Plain:
    """What was written for a setting of somebody else's table, such as a channel's; ConfigError if it cannot be."""
    return _checked(setting, raw, where, folder)


def _checked(setting: Setting, raw: object, where: str, folder: Path) -> Plain:
    """The raw value as the setting's kind, or ConfigError. Text is read the same from every source."""

    def wrong(expected: str) -> ConfigError:
        shown = "(hidden)" if setting.secret else _shown(raw)
        return ConfigError(f"{where}: {setting.name} must be {expected}: {shown}")

    if setting.kind is Kind.SWITCH:
        found = raw if isinstance(raw, bool) else _SWITCHES.get(raw.lower()) if isinstance(raw, str) else None
        if found is None:
            raise wrong("true or false")
        return found
    if setting.kind in _NUMBERS:
        expected, read = _NUMBERS[setting.kind]
        number = read(raw)
        if number is None:
            raise wrong(expected)
        if not setting.least <= number <= setting.most:
            raise wrong(f"between {setting.least:g} and {setting.most:g}")
        return number
    if not isinstance(raw, str):
        raise wrong("text")
    if not raw or "\0" in raw:
        raise wrong("text that is not empty")
    if setting.kind is Kind.CHOICE and raw not in setting.choices:
        near = difflib.get_close_matches(raw, setting.choices, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise wrong(f"one of {', '.join(setting.choices)}{hint}")
    if setting.pattern and not re.fullmatch(setting.pattern, raw):
        raise wrong(f"of the form {setting.pattern}")
    if setting.kind is Kind.PATH or (setting.kind is Kind.PLACE and "://" not in raw):
        return str(folder / Path(raw).expanduser())
    return raw


_SWITCHES = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


def _whole(raw: object) -> int | None:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"[+-]?\d{1,18}", raw):
        return int(raw)
    return None


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def duration_s(text: str) -> float | None:
    """Seconds from "90", "5m", "1h30m", "250ms"; None if it is no duration."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        return None
    return float(sum(float(n) * _UNITS_S[u] for n, u in parts))


def _seconds(raw: object) -> float | None:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    return duration_s(raw) if isinstance(raw, str) else None


def _number(raw: object) -> float | None:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    return float(raw) if isinstance(raw, str) and re.fullmatch(r"\d{1,18}(\.\d{1,18})?", raw) else None


_NUMBERS: Mapping[Kind, tuple[str, Callable[[object], float | None]]] = {
    Kind.WHOLE: ("a whole number", _whole),
    Kind.NUMBER: ("a number", _number),
    Kind.SECONDS: ("a duration such as 30, '5m' or '1h30m'", _seconds),
}


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "…"


# Desks


def _split_desk_variable(variable: str) -> tuple[str, str]:
    """POSTHOUSE_DESK_RELAY_TTL_S is desk "relay", field "ttl_s"."""
    rest = variable.removeprefix(VARIABLE_PREFIX + "DESK_").lower()
    for field in sorted([*POLICY_HELP, "preset"], key=len, reverse=True):
        desk = rest.removesuffix("_" + field)
        if desk != rest and desk:
            return desk, field
    known = [f"{VARIABLE_PREFIX}DESK_{desk}_{field}".upper() for desk in PRESETS for field in POLICY_HELP]
    raise _unknown("environment", variable, known, "variable")


def _from_text(text: str) -> object:
    """A desk's value from a flag or a variable: "5", "none", "park", "1s,5s", or a TOML table or list."""
    if text[:1] in "{[":
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    if "," in text:
        return [part.strip() for part in text.split(",")]
    return text


def _check_desk_name(desk: str, where: str) -> None:
    if not _DESK_PATTERN.fullmatch(desk):
        raise ConfigError(f"{where}: a desk's name is lower-case letters, digits, - and _: {_shown(desk)}")


def _set_desk(desk: str, field: str, raw: object, source: Source, where: str, desk_values: dict[str, Value]) -> None:
    _check_desk_name(desk, where)
    if field == "preset":
        if raw not in PRESETS:
            near = difflib.get_close_matches(str(raw), list(PRESETS), n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"{where}: preset must be one of {', '.join(PRESETS)}{hint}: {_shown(raw)}")
        value: object = raw
    elif field not in POLICY_HELP:
        raise _unknown(where, f"desk.{desk}.{field}", [f"desk.{desk}.{f}" for f in (*POLICY_HELP, "preset")], "key")
    else:
        value = _field_value(desk, field, raw, where)
    desk_values[f"desk.{desk}.{field}"] = Value(value, source, where)


def _field_value(desk: str, field: str, raw: object, where: str) -> object:
    """A policy's field from what was written; what is left to check, the policy itself checks."""
    name = f"desk.{desk}.{field}"
    if raw == "none" and field in _OPTIONAL_FIELDS:
        return None
    if field in _CHOICE_FIELDS:
        allowed = list(_CHOICE_FIELDS[field])
        if raw not in allowed:
            raise ConfigError(f"{where}: {name} must be one of {', '.join(allowed)}: {_shown(raw)}")
        return raw
    if field == "retry":
        return _retry_value(name, raw, where)
    none = " or 'none'" if field in _OPTIONAL_FIELDS else ""
    if field in _WHOLE_FIELDS:
        if (whole := _whole(raw)) is None:
            raise ConfigError(f"{where}: {name} must be a whole number{none}: {_shown(raw)}")
        return whole
    if (seconds := _seconds(raw)) is None:
        raise ConfigError(f"{where}: {name} must be a duration such as 30, '5m' or '7d'{none}: {_shown(raw)}")
    return seconds


def _retry_value(name: str, raw: object, where: str) -> list[float] | dict[str, float]:
    expected = f"{where}: {name} must be a list of durations or {{first_s, factor, cap_s}}: {_shown(raw)}"
    if isinstance(raw, str):
        raw = [raw]
    if isinstance(raw, list):
        steps = [_seconds(step) for step in raw]
        if not steps or None in steps:
            raise ConfigError(expected)
        return [s for s in steps if s is not None]
    if isinstance(raw, dict) and "first_s" in raw and set(raw) <= {"first_s", "factor", "cap_s"}:
        numbers = {key: _seconds(value) for key, value in raw.items()}
        if None not in numbers.values():
            return {key: n for key, n in numbers.items() if n is not None}
    raise ConfigError(expected)


def _policies(desk_values: Mapping[str, Value]) -> dict[str, Policy]:
    by_desk: dict[str, dict[str, Value]] = {}
    for name, value in desk_values.items():
        _, desk, field = name.split(".", 2)
        by_desk.setdefault(desk, {})[field] = value
    policies = dict(PRESETS)
    for desk, fields in by_desk.items():
        preset = fields.get("preset")
        if preset is None and desk not in PRESETS:
            near = difflib.get_close_matches(desk, list(PRESETS), n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"{next(iter(fields.values())).where}: {desk!r} is no preset{hint}; "
                f'a desk of your own says what it starts from, as in preset = "inbound"'
            )
        start = PRESETS[str(preset.value) if preset else desk]
        changes = {field: v.value for field, v in fields.items() if field not in ("preset", "")}
        try:
            policies[desk] = policy_from(desk, changes, start)
        except InvalidInput as error:
            # The policy names the field; the value remembers the line.
            guilty = [v.where for field, v in fields.items() if field and re.search(rf"\b{field}\b", str(error))]
            raise ConfigError(f"{(guilty or [next(iter(fields.values())).where])[0]}: {error}") from error
    return policies


# Errors


def _unknown(where: str, name: str, known: Sequence[str], what: str) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(sorted(known))
    return ConfigError(f"{where}: unknown {what} {name!r}; {hint}")


_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_WORD = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY = re.compile(rf"\s*({_WORD}(?:\s*\.\s*{_WORD})*)\s*=")


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """Where each section and key stands. A hint for error messages: tomllib does not tell."""
    lines: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()

    def parts(dotted: str) -> tuple[str, ...]:
        return tuple(part.strip("\"'") for part in re.findall(_WORD, dotted))

    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = parts(header[1])
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            lines.setdefault(section + parts(key[1]), number)
        for length in range(1, len(section)):
            lines.setdefault(section[:length], number)
    return lines
