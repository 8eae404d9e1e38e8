"""The API, and who is told of results, from the configuration."""

from __future__ import annotations

from ...config import Config
from ...engine.engine import Engine
from ...errors import ConfigError
from .results import Results
from .server import Api, Limits


class Outside:
    """What the gateway offers to other programs; from ``start`` to ``close``."""

    def __init__(self, config: Config, engine: Engine) -> None:
        port = config.values["gateway.api_port"].value
        self._host = config.text("gateway.api_host")
        self.api = None if port is None else Api(engine, self._host, int(port), limits(config))
        wanted = config.text_or_none("gateway.results") is not None
        if wanted and self.api is None:
            raise ConfigError("gateway.results is set and gateway.api_port is not: nothing could be told of")
        self._results = Results(engine) if wanted else None

    @property
    def address(self) -> str | None:
        """Where the API is, if there is one."""
        if self.api is None:
            return None
        host = "127.0.0.1" if self._host == "*" else f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.api.port}"

    async def start(self) -> None:
        """Begin; ConfigError if the port cannot be had."""
        if self._results is not None:
            self._results.start()
        if self.api is not None:
            await self.api.start()

    async def close(self) -> None:
        """End cleanly. Idempotent."""
        if self.api is not None:
            await self.api.close()
        if self._results is not None:
            await self._results.close()


def limits(config: Config) -> Limits:
    """What requests may cost."""
    return Limits(
        body_bytes_max=config.whole("gateway.api_body_bytes_max"),
        body_s=config.seconds("gateway.api_body_s"),
        head_s=config.seconds("gateway.api_head_s"),
        connections_max=config.whole("gateway.api_connections_max"),
        wait_s_max=config.seconds("gateway.api_wait_s"),
        waiting_max=config.whole("gateway.api_waiting_max"),
    )
