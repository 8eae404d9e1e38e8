"""A relay from the configuration.

In: settings that are checked one by one. Out: a server that is ready to start, or ConfigError where they do not fit
together.
"""

from __future__ import annotations

import ipaddress
import logging

from ..config import Config
from ..engine.engine import Engine
from ..errors import ConfigError
from .registration import SharedSecret
from .server import Listen, RelayServer
from .settings import Settings
from .tls import Certificate

_log = logging.getLogger("posthouse.relay")


def make(config: Config, engine: Engine) -> RelayServer:
    """The relay that the configuration describes; in the event loop that it will run in."""
    if not config.is_given("relay.public_host") and not _is_loopback(config.text("relay.host")):
        _log.warning(
            "agents' addresses end in @%s, though the relay listens on %s: set relay.public_host to its public name",
            config.text("relay.public_host"),
            config.text("relay.host"),
        )
    return RelayServer(engine, settings(config), listen(config))


def settings(config: Config) -> Settings:
    """What sessions go by."""
    return Settings(
        host=config.text("relay.public_host"),
        unauthenticated_max=config.whole("relay.unauthenticated_max"),
        connections_max=config.whole("relay.connections_max"),
        start_pause_s=config.seconds("relay.start_pause_s"),
        batch=config.whole("relay.batch_size"),
        batch_pause_s=config.seconds("relay.batch_pause_s"),
        heartbeat_s=config.seconds("relay.heartbeat_s"),
        heartbeat_wait_s=config.seconds("relay.heartbeat_wait_s"),
        rate_per_s=config.number("relay.rate_limit"),
        rate_burst=config.whole("relay.rate_burst"),
    )


def listen(config: Config) -> Listen:
    """Where it listens, and for whom."""
    cert, key = config.path_or_none("relay.tls_cert"), config.path_or_none("relay.tls_key")
    if (cert is None) != (key is None):
        missing = "relay.tls_key" if key is None else "relay.tls_cert"
        raise ConfigError(f"TLS needs a certificate and its key: {missing} is not set")
    secret = config.text_or_none("relay.secret")
    if secret is not None and not config.switch("relay.locked"):
        _log.warning("relay.secret is set and relay.locked is not: nothing asks for the secret")
    origins = {origin.strip().rstrip("/") for origin in config.text("relay.allowed_origins").split(",")}
    return Listen(
        host=config.text("relay.host"),
        port=config.whole("relay.port"),
        origins=frozenset(origins - {""}),
        locked=config.switch("relay.locked"),
        challenge=None if secret is None else SharedSecret(secret),
        certificate=Certificate(cert, key) if cert and key else None,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
