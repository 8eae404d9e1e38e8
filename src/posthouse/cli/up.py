"""posthouse up: the server. It opens the store, runs the engine, and serves until it is told to stop.

In: the configuration and signals. Out: log lines on stderr and, once it serves, one line (or JSON) on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..config import Config, Given
from ..errors import MissingExtra, StoreError, StoreHeld
from . import log, supervisor
from .option import pass_session
from .root import Command, version
from .session import STORE, Failure, Json, Session

if TYPE_CHECKING:
    from ..control.journal import Exporter
    from ..engine.engine import Engine
    from ..gateway.service import Gateway
    from ..metrics import Metrics
    from ..peer.setup import Service
    from ..relay.server import RelayServer

_log = logging.getLogger("posthouse.up")
_SHORT = "Short for --set "
PARTS = ("relay", "gateway", "peer", "books", "console")
"""What a server is made of besides its store."""

F = TypeVar("F", bound=Callable[..., Any])
Beside = Callable[[Json, Callable[[str], None]], contextlib.AbstractAsyncContextManager[None]]
"""What runs beside a server, from when it has started to when it stops: it is given what the server says of itself,
and a way to end it."""


def options(function: F) -> F:
    """The options of every command that starts a server."""
    for added in (
        click.option("--log-level", metavar="LEVEL", help=f"{_SHORT}log.level=LEVEL: debug, info, warning or error."),
        click.option("--log-format", metavar="FORMAT", help=f"{_SHORT}log.format=FORMAT: auto, text or json."),
        click.option("--no-metrics", is_flag=True, help=f"{_SHORT}metrics.enabled=false."),
        click.option("--metrics-port", metavar="PORT", help=f"{_SHORT}metrics.port=PORT; 0 takes any free one."),
        click.option("--relay-port", metavar="PORT", help=f"{_SHORT}relay.port=PORT; 0 takes any free one."),
    ):
        function = added(function)
    return function


@click.command("up", cls=Command)
@options
@click.option("--no-relay", is_flag=True, help=f"{_SHORT}relay.enabled=false.")
@click.option("--no-gateway", is_flag=True, help=f"{_SHORT}gateway.enabled=false.")
@click.option("--no-peer", is_flag=True, help=f"{_SHORT}peer.enabled=false.")
@click.option("--no-books", is_flag=True, help=f"{_SHORT}books.enabled=false.")
@click.option("--console-port", metavar="PORT", help=f"{_SHORT}console.port=PORT; 0 takes any free one.")
@click.option("--no-console", is_flag=True, help=f"{_SHORT}console.enabled=false.")
@pass_session
def up(
    session: Session,
    /,
    no_relay: bool,
    no_gateway: bool,
    no_peer: bool,
    no_books: bool,
    no_console: bool,
    **given: Any,
) -> None:
    """Start the server and keep it running until SIGTERM or Ctrl-C.

    It opens the store (and makes it, the first time), sweeps, exports the journal, runs the relay, the gateway and
    (where that is enabled) the peer, keeps the books, shows the console, and answers the other commands through its
    control socket. It stops cleanly: what was accepted is kept. SIGHUP makes it read its certificates again.
    """
    if no_relay:
        session.set("relay.enabled", "false", "--no-relay")
    if no_gateway:
        session.set("gateway.enabled", "false", "--no-gateway")
    if no_peer:
        session.set("peer.enabled", "false", "--no-peer")
    if no_books:
        session.set("books.enabled", "false", "--no-books")
    if no_console:
        session.set("console.enabled", "false", "--no-console")
    serve(session, **given)


def serve(
    session: Session,
    *,
    relay_port: str | None = None,
    console_port: str | None = None,
    metrics_port: str | None = None,
    no_metrics: bool = False,
    log_format: str | None,
    log_level: str | None,
    beside: Beside | None = None,
) -> None:
    """Run a server with what the flags say, and something beside it if that is wanted."""
    for name, text, flag in (
        ("relay.port", relay_port, "--relay-port"),
        ("console.port", console_port, "--console-port"),
        ("metrics.port", metrics_port, "--metrics-port"),
        ("metrics.enabled", "false" if no_metrics else None, "--no-metrics"),
        ("log.format", log_format, "--log-format"),
        ("log.level", log_level, "--log-level"),
    ):
        if text is not None:
            session.set(name, text, flag)
    # What it makes, the store first of all, is for its owner alone.
    os.umask(0o077)
    from ..engine.tuning import tune_interpreter

    tune_interpreter()
    config = session.config()
    log.set_up(config.text("log.format"), config.text("log.level"))
    _runner()(_Server(session, config, beside).run())


def alone(session: Session, part: str, command: str) -> None:
    """Of the parts of a server, only this one; a flag that names another wins."""
    session.set(f"{part}.enabled", "true", command)
    for other in PARTS:
        if other != part:
            session.flags.setdefault(f"{other}.enabled", Given("false", command))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


class _Server:
    """One run of the server, from opening the store to closing it."""

    def __init__(self, session: Session, config: Config, beside: Beside | None = None) -> None:
        self._session = session
        self._config = config
        self._beside = beside
        self._stop = asyncio.Event()
        self._why = ""
        self._failure: BaseException | None = None
        self._reloads: list[Callable[[], None]] = []
        self._metrics: Metrics | None = None

    async def run(self) -> None:
        """Serve until a signal or a failure."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, signal.Signals(number).name)
        async with contextlib.AsyncExitStack() as stack:
            summary = await self._start(stack, loop)
            self._announce(summary)
            supervisor.tell(os.environ, supervisor.READY, f"serves node {summary['node']}")
            if self._beside is not None:
                await stack.enter_async_context(self._beside(summary, self._end))
            await self._stop.wait()
            if self._metrics is not None:
                self._metrics.stopping = True
            supervisor.tell(os.environ, supervisor.STOPPING, f"stopping ({self._why})")
            _log.info("stopping (%s)", self._why)
        if self._failure is not None:
            raise Failure("store_failed", f"the engine stopped: {self._failure}", STORE)
        _log.info("stopped")

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._stop.set()

    def _fail(self, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        """Called on the writer's thread: nothing can be promised any more, so the process must go."""
        self._failure = error
        loop.call_soon_threadsafe(self._end, "failure")

    async def _start(self, stack: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop) -> Json:
        """Start every part; what started is stopped in reverse order, however this ends."""
        from ..control.journal import Exporter
        from ..control.operator import open_store
        from ..control.server import ControlServer
        from ..engine.engine import Engine
        from ..metrics import Metrics, MetricsServer

        config = self._config
        try:
            store = open_store(config, create=True)
        except StoreHeld as error:
            raise StoreHeld(f"{error}; only one server can have it") from error
        engine = Engine(
            store,
            queue_max=config.whole("engine.queue_max"),
            group_max=config.whole("engine.group_max"),
            linger_s=config.seconds("engine.linger_s"),
            sweep_s=config.seconds("engine.sweep_s"),
            on_failure=lambda error: self._fail(loop, error),
        )
        stack.push_async_callback(engine.aclose)
        await engine.astart()
        self._metrics = metrics = Metrics(engine)
        engine.before_trim.append(metrics.catch_up)
        export_s = config.seconds("journal.export_s")
        if export_s:
            exporter = Exporter(engine, config.path("journal.dir"), config.seconds("journal.wait_s"))
            task = loop.create_task(self._export(exporter, export_s))
            stack.push_async_callback(self._finish, exporter, task)
        self._traces(stack, engine, metrics)
        address = None
        if config.switch("metrics.enabled"):
            server = MetricsServer(metrics, config.text("metrics.host"), config.whole("metrics.port"))
            await server.start()
            stack.push_async_callback(server.close)
            address = server.address
        relay = await self._relay(stack, loop, engine, metrics)
        gateway = await self._gateway(stack, engine, metrics)
        api = await self._api(stack, engine, metrics) if gateway else None
        peer = await self._peer(stack, engine, metrics)
        control = ControlServer(engine, config, version())
        control.start()
        stack.push_async_callback(asyncio.to_thread, control.close)
        console, log_in_url = await self._console(stack, loop, engine, relay, peer)
        return {
            "version": version(),
            "pid": os.getpid(),
            "node": store.node,
            "store": str(config.path("store.path")),
            "control": str(config.path("control.path")),
            "journal": str(config.path("journal.dir")) if export_s else None,
            "metrics": f"{address}/metrics" if address else None,
            "books": self._books(stack, loop, engine, metrics),
            "relay": relay.address if relay else None,
            "relay_host": config.text("relay.public_host") if relay else None,
            "gateway": ", ".join(gateway.couriers) or "no channels" if gateway else None,
            "api": api,
            "peer": peer.peer.id if peer else None,
            "peer_addresses": [str(address) for address in peer.host.addresses] if peer else [],
            "console": console,
            "console_login": log_in_url,
            "desks": sorted(config.policies),
            "config": str(config.file) if config.file else None,
        }

    async def _relay(
        self, stack: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop, engine: Engine, metrics: Metrics
    ) -> RelayServer | None:
        """Start the relay, if it is wanted and installed."""
        config = self._config
        if not config.switch("relay.enabled"):
            return None
        try:
            from ..relay import metrics as relay_metrics
            from ..relay import setup
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("picows", "google", "nacl"):
                raise
            missing = MissingExtra(f"the relay needs {error.name}: pip install posthouse[relay]")
            if config.is_given("relay.enabled"):
                raise missing from error
            _log.warning("the relay is not started: %s", missing)
            return None
        relay = setup.make(config, engine)
        # Before it starts: what it has begun by then is to be ended, too.
        stack.push_async_callback(relay.close)
        await relay.start()
        metrics.registry.register(relay_metrics.RelayCollector(relay.house))
        self._on_hangup(loop, relay.reload)
        return relay

    async def _gateway(self, stack: contextlib.AsyncExitStack, engine: Engine, metrics: Metrics) -> Gateway | None:
        """Start the gateway, if it is wanted and installed."""
        config = self._config
        if not config.switch("gateway.enabled"):
            if config.alerts:
                _log.warning("alert rules are not judged: the gateway does that, and it is off (gateway.enabled)")
            return None
        try:
            from ..gateway import metrics as gateway_metrics
            from ..gateway import setup
            from ..gateway.files.mirror import Mirror
        except ModuleNotFoundError as error:
            if error.name != "aiohttp":
                raise
            missing = MissingExtra(f"the gateway needs {error.name}: pip install posthouse[gateway]")
            if config.is_given("gateway.enabled") or config.channels:
                raise missing from error
            _log.warning("the gateway is not started: %s", missing)
            return None
        gateway = setup.make(config, engine, os.environ)
        mirror = Mirror(config, engine)
        # Closed behind the gateway: it shows how the last messages ended.
        stack.push_async_callback(mirror.close)
        await mirror.start()
        # Before it starts: what it has begun by then is to be ended, too.
        stack.push_async_callback(gateway.close)
        await gateway.start()
        metrics.registry.register(gateway_metrics.GatewayCollector(gateway))
        return gateway

    async def _api(self, stack: contextlib.AsyncExitStack, engine: Engine, metrics: Metrics) -> str | None:
        """Start what the gateway offers to other programs, as far as it is configured; where it is."""
        from ..gateway.api.metrics import ApiCollector
        from ..gateway.api.setup import Outside

        outside = Outside(self._config, engine)
        stack.push_async_callback(outside.close)
        await outside.start()
        if outside.api is not None:
            metrics.registry.register(ApiCollector(outside.api))
        return outside.address

    async def _peer(self, stack: contextlib.AsyncExitStack, engine: Engine, metrics: Metrics) -> Service | None:
        """Start the peer, if it is wanted."""
        config = self._config
        if not config.switch("peer.enabled"):
            return None
        try:
            from ..peer import metrics as peer_metrics
            from ..peer import setup
        except ModuleNotFoundError as error:
            if error.name not in ("cryptography", "zeroconf"):
                raise
            raise MissingExtra(f"the peer needs {error.name}: pip install posthouse[peer]") from error
        service = await setup.make(config, engine)
        # Before it starts: what it has begun by then is to be ended, too.
        stack.push_async_callback(service.close)
        await service.start()
        metrics.registry.register(peer_metrics.PeerCollector(service.peer))
        return service

    async def _console(
        self,
        stack: contextlib.AsyncExitStack,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        relay: RelayServer | None,
        peer: Service | None,
    ) -> tuple[str | None, str | None]:
        """Start the console, if it is wanted and installed: where it is, and where to log in."""
        config = self._config
        if not config.switch("console.enabled"):
            return None, None
        try:
            from ..console import metrics as console_metrics
            from ..console import setup
        except ModuleNotFoundError as error:
            if error.name not in ("aiohttp", "jinja2", "markupsafe"):
                raise
            missing = MissingExtra(f"the console needs {error.name}: pip install posthouse[console]")
            if config.is_given("console.enabled"):
                raise missing from error
            _log.warning("the console is not started: %s", missing)
            return None, None
        console = setup.make(config, engine)
        # Before it starts: what it has begun by then is to be ended, too.
        stack.push_async_callback(console.close)
        if relay is not None:
            house = relay.house
            console.snapshots.online["agents"] = lambda: len(house.online)
        if peer is not None:
            streams = peer.host
            console.snapshots.online["peers"] = lambda: len(streams.peers)
        await console.start()
        if self._metrics is not None:
            self._metrics.registry.register(console_metrics.ConsoleCollector(console))
        self._on_hangup(loop, console.reload)
        return console.address, setup.log_in_url(console, config)

    def _on_hangup(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
        """Have something read its files again when SIGHUP comes."""
        self._reloads.append(reload)

        def all_of_them() -> None:
            for each in self._reloads:
                each()

        loop.add_signal_handler(signal.SIGHUP, all_of_them)

    def _traces(self, stack: contextlib.AsyncExitStack, engine: Engine, metrics: Metrics) -> None:
        """Tell a collector of messages' lives, if that is wanted; closed behind the roles, to tell of their ends."""
        if self._config.text_or_none("traces.endpoint") is None:
            return
        try:
            from ..traces import service as traces
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            raise MissingExtra(f"traces need {error.name}: pip install posthouse[traces]") from error
        running = traces.make(self._config, engine, version())
        stack.push_async_callback(running.close)
        running.start()
        metrics.registry.register(traces.TracesCollector(running))

    def _books(
        self, stack: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop, engine: Engine, metrics: Metrics
    ) -> str | None:
        """Keep the books, if that is wanted and can be; where they are."""
        from ..control import books
        from ..metrics.books import BooksCollector
        from .books_keep import Keeper, missing

        config = self._config
        if not config.switch("books.enabled"):
            return None
        keeper, lacking = Keeper(config, os.environ), missing(os.environ, config.text_or_none("books.master"))
        if not lacking or config.is_given("books.enabled"):
            # Who asked for books that cannot be kept is told that no turn ends well; nobody else is alarmed by that.
            metrics.registry.register(BooksCollector(keeper.standing))
        if lacking:
            _log.warning("the books are not kept: %s", lacking)
            books.not_keeping(engine, lacking)
            return None
        task = loop.create_task(keeper.run(self._stop))
        books.keeping(engine, keeper)

        async def finish() -> None:
            self._stop.set()
            books.keeping(engine, None)
            await task

        stack.push_async_callback(finish)
        return config.text("books.lake")

    def _announce(self, summary: Json) -> None:
        if self._session.json:
            self._session.emit(summary)
        else:
            self._session.say(
                f"Posthouse {summary['version']} serves node {summary['node']} (process {summary['pid']})"
            )
            for name in (
                "store",
                "control",
                "journal",
                "books",
                "metrics",
                "relay",
                "gateway",
                "api",
                "peer",
                "console",
                "config",
            ):
                as_host = f" as {summary['relay_host']}" if name == "relay" and summary["relay"] else ""
                told = summary["console_login"] if name == "console" else summary[name]
                self._session.say(f"  {name:<8} {told or '–'}{as_host}")
            self._session.say(f"  {'desks':<8} {', '.join(summary['desks'])}")
        # A log is read by more people than a terminal: no token belongs there.
        left_out = ("desks", "console_login")
        _log.info("ready", extra={name: value for name, value in summary.items() if name not in left_out})

    async def _export(self, exporter: Exporter, every_s: float) -> None:
        from ..control.operation import Stopped

        while not self._stop.is_set():
            try:
                done = await asyncio.to_thread(exporter.run)
                if done.paths:
                    _log.info("exported %d events to %d segments", done.events, len(done.paths))
            except MissingExtra as error:
                _log.warning("the journal is not exported: %s", error)
                return
            except Stopped:
                return
            except StoreError as error:
                _log.error("the journal was not exported: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), every_s)

    async def _finish(self, exporter: Exporter, task: asyncio.Task[None]) -> None:
        """The engine is closed behind this: no thread may still be exporting from its store."""
        self._stop.set()
        exporter.stop()
        await task
