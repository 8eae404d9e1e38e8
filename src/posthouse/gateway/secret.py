"""Secrets: values that are used and never shown.

In: the text of a token, a password or a key. Out: the same to whoever asks for it by name, and a scrubber that takes
it out of any text before that is logged, journalled or sent back. Neither has a text form that tells it.
"""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Iterable

SHOWN = "(hidden)"
SCRUBBED_MIN = 4
"""Shorter secrets are not looked for in texts: they would be found in every other word."""


class Secret:
    """One value that must not be shown."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return SHOWN


class Scrubber:
    """Takes secrets out of texts, also where they stand as URLs and base64 write them."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            value = secret.reveal()
            if len(value) >= SCRUBBED_MIN:
                encoded = base64.b64encode(value.encode()).decode()
                forms |= {value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value), repr(value)[1:-1]}
                forms |= {encoded, encoded.rstrip("=")}
        # The longest first: one may stand inside of another.
        self._forms = sorted(forms, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Scrubber of {len(self._forms)} forms>"

    def scrub(self, text: object, characters_max: int = 500) -> str:
        """The text without secrets, cut to a length that a log can bear."""
        found = str(text)
        for form in self._forms:
            found = found.replace(form, SHOWN)
        return found if len(found) <= characters_max else found[: characters_max - 1] + "…"
