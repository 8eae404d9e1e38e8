"""A server's certificate: read at start, read again when told to; a broken one changes nothing.

In: the paths of a certificate chain and its key. Out: the context for the listening socket. A handshake takes the
certificate that was read last; connections that are open keep theirs.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from ..errors import ConfigError


class Certificate:
    """A certificate that can be replaced while its context listens."""

    def __init__(self, cert: Path, key: Path, part: str = "relay") -> None:
        """ConfigError, which names the settings of this part, if they cannot be used."""
        self._names = (f"{part}.tls_cert", f"{part}.tls_key")
        self._cert = cert
        self._key = key
        self._current = self._read()
        self.context = self._read()
        # Asked in every handshake, also where the client names no server.
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again for new handshakes; ConfigError, and the old ones stay, if they cannot be used."""
        self._current = self._read()

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        for path, name in zip((self._cert, self._key), self._names, strict=True):
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigError(f"{name}: {path} cannot be read: {error.strerror}") from error
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, ValueError, OSError) as error:
            detail = getattr(error, "reason", None) or str(error)
            raise ConfigError(f"{', '.join(self._names)}: {self._cert} and {self._key}: {detail}") from error
        return context


def _no_password() -> str:
    # Without it OpenSSL would ask on the terminal.
    raise ValueError("the key is encrypted")
