"""The console from the configuration. What would be unsafe is refused before it listens, in one line."""

from __future__ import annotations

from ..config import Config
from ..engine.engine import Engine
from ..errors import ConfigError
from ..gateway.api.access import Access
from ..relay.tls import Certificate
from . import guard
from .role import role_of
from .server import Console, Limits


def make(config: Config, engine: Engine) -> Console:
    """A console that is not started yet; ConfigError where it may not be."""
    host = config.text("console.host")
    cert, key = config.path_or_none("console.tls_cert"), config.path_or_none("console.tls_key")
    if (cert is None) != (key is None):
        raise ConfigError("console.tls_cert and console.tls_key go together: give both or neither")
    certificate = None if cert is None or key is None else Certificate(cert, key, "console")
    if not guard.is_loopback(host):
        if certificate is None:
            raise ConfigError(
                f"console.host {host} can be reached from other machines, which needs console.tls_cert and "
                "console.tls_key"
            )
        tokens = Access(engine)
        known = tokens.any_role()
        tokens.close()
        if not known:
            raise ConfigError(
                f"console.host {host} can be reached from other machines, which needs a token of your own: start it "
                "on 127.0.0.1 once and run `posthouse token add NAME --role admin`"
            )
    return Console(
        engine,
        config,
        host,
        config.whole("console.port"),
        limits(config),
        certificate,
        config.text_or_none("console.public_host"),
        role_of(config.text("console.bodies")),
    )


def limits(config: Config) -> Limits:
    """What visitors may cost."""
    return Limits(
        session_s=config.seconds("console.session_s"),
        logins_per_min=config.whole("console.logins_per_min"),
        body_bytes_max=config.whole("console.body_bytes_max"),
        body_s=config.seconds("console.body_s"),
        head_s=config.seconds("console.head_s"),
        connections_max=config.whole("console.connections_max"),
        viewers_max=config.whole("console.viewers_max"),
    )


def log_in_url(console: Console, config: Config) -> str:
    """Where to log in: on the loopback with a token that is good for one time, elsewhere with a token of one's own."""
    if guard.is_loopback(config.text("console.host")):
        return f"{console.address}/login?once={console.access.once()}"
    return f"{console.address}/login"
