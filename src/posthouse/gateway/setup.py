"""A gateway from the configuration.

In: settings that are checked one by one, and the environment that channels may find secrets in. Out: a gateway that is
ready to start, or ConfigError where the settings do not fit together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import callee
from ..config import Config
from ..control.rule import rules_of
from ..engine.engine import Engine
from ..errors import ConfigError
from .alerts import alert_channel
from .answer import Handler
from .api.results import result_channel
from .channels import catalogue
from .courier import SendLimits
from .handlers.command import CommandHandler
from .handlers.function import FunctionHandler, echo
from .handlers.http import HttpHandler
from .service import Gateway, Parts
from .signature import Key
from .worker import Limits


def make(config: Config, engine: Engine, environ: Mapping[str, str]) -> Gateway:
    """The gateway that the configuration describes; in the event loop that it will run in."""
    results = result_channel(config.text_or_none("gateway.results"), config.text_or_none("gateway.results_key"))
    parts = Parts(
        channels=[*catalogue.channels(config, environ), *([] if results is None else [results])],
        handler=handler(config),
        alert=alert_channel(config.text_or_none("gateway.alert"), config.text_or_none("gateway.alert_key")),
        work=work_limits(config),
        send=send_limits(config),
        rules=rules_of(config),
        lake=config.text("books.lake"),
        rules_every_s=config.seconds("gateway.alert_every_s"),
    )
    return Gateway(engine, parts)


def handler(config: Config) -> Handler | None:
    """Who answers, as ``gateway.handler`` says."""
    text, key = config.text_or_none("gateway.handler"), config.text_or_none("gateway.handler_key")
    if key is not None and (text is None or not text.startswith(("http://", "https://"))):
        raise ConfigError("gateway.handler_key is set, and gateway.handler is no URL: nothing would be signed")
    return None if text is None else handler_of(text, config.folder, key, config.whole("gateway.workers"))


def handler_of(text: str, folder: Path, key: str | None = None, threads: int = 32) -> Handler:
    """The handler that a text describes: ``python:MODULE:FUNCTION``, a URL, ``command:…`` or ``echo``.

    A module may stand in ``folder``.
    """
    kind, _, place = text.partition(":")
    if kind in ("http", "https"):
        return HttpHandler(text, [] if key is None else [Key(key)])
    if kind == "command":
        return CommandHandler(callee.words_of("gateway.handler", place))
    return FunctionHandler(echo if text == "echo" else callee.load("gateway.handler", place, folder), threads)


def work_limits(config: Config) -> Limits:
    """What the worker goes by."""
    return Limits(
        slots=config.whole("gateway.workers"),
        spare=config.whole("gateway.workers_spare"),
        timeout_s=config.seconds("gateway.handler_timeout_s"),
        max_s=config.seconds("gateway.handler_max_s"),
    )


def send_limits(config: Config) -> SendLimits:
    """What couriers go by."""
    return SendLimits(
        side_by_side=config.whole("gateway.sends"),
        timeout_s=config.seconds("gateway.send_timeout_s"),
        drain_per_s=config.number("gateway.drain_per_s"),
        breaker_failures=config.whole("gateway.breaker_failures"),
        breaker_s=config.seconds("gateway.breaker_s"),
        reconcile_s=config.seconds("gateway.reconcile_s"),
    )
