"""Options: the keys of a section ``[channel.NAME]``, checked against the table of its kind.

In: the section as it was written. Out: checked values, or ConfigError with the key that is wrong and what to write.
A secret is never written into the section itself: ``token_file`` names a file that holds it, ``token_env`` a variable
of the environment. A URL may be written (``url``), or be a secret like others, since some hold one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...config import checked
from ...errors import ConfigError
from ...settings import Kind, Plain, Setting
from ..channel import Setup
from ..secret import Scrubber, Secret

SECRET_BYTES_MAX = 65_536

COMMON: tuple[Setting, ...] = (
    Setting("tenant", Kind.TEXT, "default", "The tenant to whom what comes in belongs: tenants get equal shares."),
    Setting(
        "reconnect_s",
        Kind.SECONDS,
        30.0,
        "The longest pause between two attempts to connect; the first are shorter.",
        least=0.01,
        most=3_600,
    ),
)
"""What every kind of channel has."""


class Options:
    """The checked values of one section."""

    def __init__(self, setup: Setup, table: Sequence[Setting]) -> None:
        self._where = f"[channel.{setup.name}]"
        self._values: dict[str, Plain | None] = {}
        self._secrets: dict[str, Secret] = {}
        self._settings = settings = {setting.name: setting for setting in (*COMMON, *table)}
        keys = [key for setting in settings.values() for key in keys_of(setting)]
        for key in setup.values:
            if key not in keys:
                raise ConfigError(f"{self._where}: {self._unknown(key, keys, settings)}")
        for name, setting in settings.items():
            if setting.secret:
                found = self._read_secret(name, setup)
                if found is not None:
                    self._secrets[name] = found
            else:
                raw = setup.values.get(name, setting.default)
                self._values[name] = None if raw is None else checked(setting, _joined(raw), self._where, setup.folder)

    @property
    def scrubber(self) -> Scrubber:
        """Takes the secrets of this section out of texts."""
        return Scrubber(self._secrets.values())

    def text(self, name: str) -> str:
        """A text or a choice; ConfigError if it must be given and is not."""
        return str(self._needed(name))

    def text_or_none(self, name: str) -> str | None:
        """A text that may be left out."""
        value = self._values[name]
        return None if value is None else str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list, or a text with commas."""
        return tuple(part.strip() for part in str(self._values[name] or "").split(",") if part.strip())

    def whole(self, name: str) -> int:
        """A whole number."""
        return int(self._needed(name))

    def whole_or_none(self, name: str) -> int | None:
        """A whole number that may be left out."""
        return None if self._values[name] is None else self.whole(name)

    def seconds(self, name: str) -> float:
        """A duration in seconds."""
        return float(self._needed(name))

    def switch(self, name: str) -> bool:
        """On or off."""
        return bool(self._needed(name))

    def path(self, name: str) -> Path:
        """A path, absolute."""
        return Path(self.text(name))

    def secret(self, name: str) -> Secret:
        """A secret; ConfigError if it is not given."""
        found = self._secrets.get(name)
        if found is None:
            *others, last = keys_of(self._settings[name])
            raise ConfigError(f"{self._where}: {', '.join(others)} or {last} is needed")
        return found

    def secret_or_none(self, name: str) -> Secret | None:
        """A secret that may be left out."""
        return self._secrets.get(name)

    def wrong(self, name: str, what: str) -> ConfigError:
        """The error for a value that only the channel can judge."""
        return ConfigError(f"{self._where}: {name} {what}")

    def _needed(self, name: str) -> Plain:
        value = self._values[name]
        if value is None:
            raise ConfigError(f"{self._where}: {name} is needed")
        return value

    def _unknown(self, key: str, keys: Sequence[str], settings: Mapping[str, Setting]) -> str:
        if key in settings:
            return f"{key} is a secret and is not written here: {key}_file names its file, {key}_env its variable"
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(sorted(keys))
        return f"unknown key {key!r}; {hint}"

    def _read_secret(self, name: str, setup: Setup) -> Secret | None:
        """From its file or its variable; what is wrong with it is said without it."""
        given = [key for key in (name, f"{name}_file", f"{name}_env") if key in setup.values]
        if not given:
            return None
        if len(given) > 1:
            raise ConfigError(f"{self._where}: {' and '.join(given)} exclude each other")
        key, said = given[0], setup.values[given[0]]
        if not isinstance(said, str) or not said or "\0" in said:
            raise ConfigError(f"{self._where}: {key} must be text that is not empty")
        if key == name:
            text = said
        elif key == f"{name}_file":
            text = self._read_file(key, setup.folder / Path(said).expanduser())
        else:
            text = setup.environ.get(said, "")
            if not text:
                raise ConfigError(f"{self._where}: the variable {said} that {key} names is not set")
        text = text.strip()
        if not text:
            raise ConfigError(f"{self._where}: what {key} names is empty")
        if not text.isprintable():
            raise ConfigError(f"{self._where}: what {key} names holds more than one line, or no text")
        return Secret(text)

    def _read_file(self, key: str, path: Path) -> str:
        try:
            with path.open("rb") as file:
                raw = file.read(SECRET_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"{self._where}: {key}: cannot read {path}: {error.strerror}") from None
        try:
            return raw.decode() if len(raw) <= SECRET_BYTES_MAX else "\n"
        except UnicodeDecodeError:
            return "\n"


def keys_of(setting: Setting) -> tuple[str, ...]:
    """How a setting is written in a section."""
    if not setting.secret:
        return (setting.name,)
    hidden = (f"{setting.name}_file", f"{setting.name}_env")
    return (setting.name, *hidden) if setting.kind is Kind.PLACE else hidden


def _joined(raw: object) -> object:
    """A list of texts as one text with commas."""
    if isinstance(raw, list) and all(isinstance(part, str) for part in raw):
        return ",".join(raw)
    return raw
