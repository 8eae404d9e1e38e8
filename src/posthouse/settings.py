"""The table of settings: what can be configured, within which bounds, and what it means.

The command line, the reference and the check of every value are made from these rows. It reads nothing.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

VARIABLE_PREFIX = "POSTHOUSE_"


class Kind(enum.StrEnum):
    """What a setting holds; the words stand in the reference."""

    PATH = "path"
    PLACE = "path or URL"
    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    SECONDS = "duration"
    CHOICE = "choice"
    SWITCH = "true or false"


Plain = str | int | float | bool
"""What a setting's value may be; a path is text until it is asked for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: everything that is known of a setting."""

    name: str
    kind: Kind
    default: Plain | None
    """None: derived, as ``derived`` says."""
    help: str
    derived: str = ""
    least: float = 0
    most: float = math.inf
    choices: tuple[str, ...] = ()
    pattern: str = ""
    short_for: str = ""
    """A desk's field that this is another name of."""
    secret: bool = False
    """Never shown."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return VARIABLE_PREFIX + self.name.replace(".", "_").upper()


NODE_PATTERN = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"

SETTINGS: tuple[Setting, ...] = (
    Setting("store.path", Kind.PATH, ".posthouse/posthouse.db", "The database file that holds every message."),
    Setting(
        "store.node",
        Kind.TEXT,
        None,
        "The store's name in its journal. A store keeps the name that it was created with.",
        derived="the host's name",
        pattern=NODE_PATTERN,
    ),
    Setting(
        "control.path",
        Kind.PATH,
        None,
        "The Unix socket through which commands reach a running server (mode 0600).",
        derived="the store's path with .sock behind it",
    ),
    Setting("journal.dir", Kind.PATH, ".posthouse/journal", "The folder of the journal's Parquet segments."),
    Setting(
        "journal.export_s",
        Kind.SECONDS,
        60.0,
        "How often a running server exports the journal; 0 leaves it to `posthouse journal export`.",
        most=86_400,
    ),
    Setting(
        "journal.wait_s",
        Kind.SECONDS,
        600.0,
        "How long events may wait for a full segment (50 000 of them) before a small one is written.",
        most=86_400,
    ),
    Setting(
        "books.enabled",
        Kind.SWITCH,
        True,
        "Whether `posthouse up` keeps the books, in a process of its own; where it cannot, it says in one line what is "
        "missing.",
    ),
    Setting("books.lake", Kind.PLACE, ".posthouse/lake", "The folder or URL of the books' tables."),
    Setting(
        "books.every_s",
        Kind.SECONDS,
        300.0,
        "How often a running server brings the books up to date; 0: only when an operator asks for it.",
        most=86_400,
    ),
    Setting(
        "books.memory_mb",
        Kind.WHOLE,
        1_024,
        "The heap of that process's Java, in MiB; about 300 MiB more are used beside it.",
        least=512,
        most=1_048_576,
    ),
    Setting(
        "books.stand_back",
        Kind.SWITCH,
        True,
        "Whether that process takes the processor only when nobody else wants it.",
    ),
    Setting(
        "books.master",
        Kind.TEXT,
        None,
        "Where the books are computed: `local[N]` for N cores here, or a cluster's URL (`spark://…`, `k8s://…`, "
        "`sc://…`), whose executors must find `journal.dir` at the same path.",
        derived="one core beside a server, every core for `posthouse books run`",
        pattern=r"[\x21-\x7e]{1,500}",
    ),
    Setting(
        "engine.sweep_s",
        Kind.SECONDS,
        300.0,
        "How often expired messages are looked for. Retries and lease ends do not wait for it.",
        least=1,
        most=86_400,
    ),
    Setting(
        "engine.queue_max",
        Kind.WHOLE,
        10_000,
        "Commands that may wait for the writer; past it callers wait their turn.",
        least=1,
        most=10_000_000,
    ),
    Setting(
        "engine.group_max",
        Kind.WHOLE,
        1_000,
        "Commands that are committed together at most.",
        least=1,
        most=100_000,
    ),
    Setting(
        "engine.linger_s",
        Kind.SECONDS,
        0.0015,
        "How long a commit waits for more commands where another began just before; 0: never.",
        most=1,
    ),
    Setting("relay.enabled", Kind.SWITCH, True, "Whether `posthouse up` starts the relay."),
    Setting(
        "relay.host",
        Kind.TEXT,
        "127.0.0.1",
        "The address to listen on; `*` is every address that the machine has.",
        pattern=r"\*|[A-Za-z0-9._:%-]{1,255}",
    ),
    Setting("relay.port", Kind.WHOLE, 8080, "The port for WebSocket and HTTP; 0 takes any free one.", most=65_535),
    Setting(
        "relay.public_host",
        Kind.TEXT,
        "localhost",
        "The host's name in agents' addresses and in what they sign. Agents are configured with the same name; "
        "it must not change once there are any.",
        pattern=r"[A-Za-z0-9._:\[\]-]{1,253}",
    ),
    Setting(
        "relay.tls_cert",
        Kind.PATH,
        None,
        "The certificate chain (PEM). With it and `relay.tls_key` the relay speaks TLS; both are read again on SIGHUP.",
        derived="none",
    ),
    Setting("relay.tls_key", Kind.PATH, None, "The certificate's private key (PEM).", derived="none"),
    Setting(
        "relay.allowed_origins",
        Kind.TEXT,
        "",
        "Web pages that may connect, by their Origin, parted by commas; `*` is all. "
        "What sends no Origin (anything but a browser) is always allowed.",
    ),
    Setting(
        "relay.queue_max",
        Kind.WHOLE,
        None,
        "Messages that are kept for one recipient, over all senders. Short for `desk.relay.capacity`.",
        derived="`desk.relay.capacity`: 1 000",
        least=1,
        most=1_000_000_000,
        short_for="desk.relay.capacity",
    ),
    Setting(
        "relay.queue_ttl_s",
        Kind.SECONDS,
        None,
        "How long a message waits for its recipient. Short for `desk.relay.ttl_s`.",
        derived="`desk.relay.ttl_s`: 7 days",
        least=1,
        most=31_536_000_000,
        short_for="desk.relay.ttl_s",
    ),
    Setting(
        "relay.rate_limit",
        Kind.NUMBER,
        1.0,
        "Frames a second that an agent may send in the long run; confirmations of relayed messages do not count. "
        "0: no limit.",
        most=1_000_000,
    ),
    Setting("relay.rate_burst", Kind.WHOLE, 10, "Frames that an agent may send at once.", least=1, most=1_000_000_000),
    Setting(
        "relay.start_pause_s",
        Kind.SECONDS,
        0.05,
        "The pause between an agent's admission and the first queued message: some clients drop what comes sooner.",
        most=5,
    ),
    Setting("relay.batch_size", Kind.WHOLE, 50, "Queued messages that are sent in one go.", least=1, most=1_000),
    Setting("relay.batch_pause_s", Kind.SECONDS, 0.003, "The pause between two such batches.", most=5),
    Setting(
        "relay.heartbeat_s",
        Kind.SECONDS,
        25.0,
        "How long a connection may be silent before it is pinged.",
        least=1,
        most=3_600,
    ),
    Setting(
        "relay.heartbeat_wait_s", Kind.SECONDS, 7.0, "How long the answer to that ping may take.", least=1, most=3_600
    ),
    Setting(
        "relay.connections_max",
        Kind.WHOLE,
        100_000,
        "Connections at once; more are refused with 503.",
        least=1,
        most=10_000_000,
    ),
    Setting(
        "relay.unauthenticated_max",
        Kind.WHOLE,
        1_000,
        "Connections that have not authenticated yet; each has 10 s to do so.",
        least=1,
        most=1_000_000,
    ),
    Setting(
        "relay.locked",
        Kind.SWITCH,
        False,
        "Whether only approved keys may connect: those that were claimed or that `posthouse relay keys approve` named.",
    ),
    Setting(
        "relay.secret",
        Kind.TEXT,
        None,
        "What a claim must present in locked mode to have its key approved.",
        derived="none: only an operator can approve",
        secret=True,
    ),
    Setting("agent.dir", Kind.PATH, ".posthouse/agents", "The folder of agents: each has a folder of its name in it."),
    Setting(
        "agent.name",
        Kind.TEXT,
        "me",
        "Which agent `posthouse agent` is: the name of its folder, with its key and its store.",
        pattern=r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}",
    ),
    Setting(
        "agent.relay",
        Kind.TEXT,
        None,
        "The relay's URL, ws:// or wss://.",
        derived="the relay on this machine, at `relay.port`",
    ),
    Setting(
        "agent.relay_host",
        Kind.TEXT,
        None,
        "The name that the relay must have; it is the last part of the agent's address.",
        derived="the one it had before, else that of the URL",
    ),
    Setting("gateway.enabled", Kind.SWITCH, True, "Whether `posthouse up` starts the gateway."),
    Setting(
        "gateway.handler",
        Kind.TEXT,
        None,
        "Who answers what comes in: `python:MODULE:FUNCTION`, `http://…` or `https://…`, `command:PROGRAM ARGUMENTS`, "
        "or `echo` for trying things.",
        derived="none: what comes in is kept and waits",
        pattern=r"(python:[\w.]+:\w+|https?://\S+|command:.+|echo)",
    ),
    Setting(
        "gateway.handler_key",
        Kind.TEXT,
        None,
        "The key (`whsec_…`) with which requests to a handler over HTTP are signed.",
        derived="none: they are not signed",
        secret=True,
    ),
    Setting(
        "gateway.handler_timeout_s",
        Kind.SECONDS,
        120.0,
        "How long a handler may work without a word; progress that it tells begins the time anew.",
        least=0.1,
        most=86_400,
    ),
    Setting(
        "gateway.handler_max_s",
        Kind.SECONDS,
        3_600.0,
        "How long a handler may work on one message at all.",
        least=0.1,
        most=604_800,
    ),
    Setting(
        "gateway.workers",
        Kind.WHOLE,
        32,
        "Sessions of one tenant that are worked on side by side at most.",
        least=1,
        most=10_000,
    ),
    Setting(
        "gateway.workers_spare",
        Kind.WHOLE,
        8,
        "Places beyond `gateway.workers` for other tenants, while one has taken all of those: whoever has a long queue "
        "and a slow handler holds up nobody else.",
        least=0,
        most=10_000,
    ),
    Setting(
        "gateway.debounce_s",
        Kind.SECONDS,
        0.0,
        "How long a session must be quiet before what came is handed over together; a message waits five times that at "
        "most. Sets `desk.inbound.quiet_s` and `desk.inbound.quiet_max_s` where they are not given.",
        most=3_600,
    ),
    Setting(
        "gateway.sends",
        Kind.WHOLE,
        16,
        "Targets that one account of a channel sends to side by side at most.",
        least=1,
        most=1_000,
    ),
    Setting(
        "gateway.send_timeout_s",
        Kind.SECONDS,
        30.0,
        "How long the sending of one part may take; past it, whether it was sent is unknown.",
        least=0.1,
        most=3_600,
    ),
    Setting(
        "gateway.drain_per_s",
        Kind.NUMBER,
        20.0,
        "Messages a second that an account sends of those that waited for its channel to come up. 0: no limit.",
        most=100_000,
    ),
    Setting(
        "gateway.breaker_failures",
        Kind.WHOLE,
        5,
        "Failed sends to one target in a row after which it is left alone for a while; 0: never.",
        most=1_000_000,
    ),
    Setting(
        "gateway.breaker_s",
        Kind.SECONDS,
        60.0,
        "How long such a target is left alone before one message is tried; nothing that waits loses an attempt.",
        least=0.1,
        most=86_400,
    ),
    Setting(
        "gateway.reconcile_s",
        Kind.SECONDS,
        60.0,
        "How often a channel is asked again what became of a send whose outcome is unknown.",
        least=0.1,
        most=86_400,
    ),
    Setting(
        "gateway.alert",
        Kind.TEXT,
        None,
        "Who is told of dead letters, and by alert rules: `http://…`, `https://…` or `command:PROGRAM ARGUMENTS`. Each "
        "alert is a durable message of its own.",
        derived="nobody; they are logged",
        pattern=r"(https?://\S+|command:.+)",
    ),
    Setting(
        "gateway.alert_key",
        Kind.TEXT,
        None,
        "The key (`whsec_…`) with which alerts over HTTP are signed.",
        derived="none: they are not signed",
        secret=True,
    ),
    Setting(
        "gateway.alert_every_s",
        Kind.SECONDS,
        15.0,
        "How often alert rules are judged; those of the books once a minute at most.",
        least=0.05,
        most=3_600,
    ),
    Setting(
        "gateway.outbound_backend",
        Kind.CHOICE,
        "sqlite",
        "Whether what is to be sent is kept in the store alone, or as files in OpenClaw's layout too "
        "(`gateway.files_dir`).",
        choices=("sqlite", "files"),
    ),
    Setting(
        "gateway.files_dir",
        Kind.PATH,
        ".posthouse/openclaw",
        "The state folder whose `delivery-queue` holds those files.",
    ),
    Setting(
        "gateway.files_every_s",
        Kind.SECONDS,
        1.0,
        "How often that folder is looked at for what other programs have put there.",
        least=0.05,
        most=3_600,
    ),
    Setting(
        "gateway.api_port",
        Kind.WHOLE,
        None,
        "The port of the HTTP API; 0 takes any free one. Who may use it, `posthouse token` says.",
        derived="none: there is no API",
        most=65_535,
    ),
    Setting(
        "gateway.api_host",
        Kind.TEXT,
        "127.0.0.1",
        "The address of the HTTP API; `*` is every address that the machine has. It speaks no TLS: put something that "
        "does before it where tokens would cross a network.",
        pattern=r"\*|[A-Za-z0-9._:%-]{1,255}",
    ),
    Setting(
        "gateway.api_body_bytes_max",
        Kind.WHOLE,
        1_048_576,
        "The largest body of a request to the API.",
        least=1_024,
        most=67_108_864,
    ),
    Setting(
        "gateway.api_head_s",
        Kind.SECONDS,
        10.0,
        "How long a connection to the API may take until its request has come up to the body.",
        least=0.1,
        most=600,
    ),
    Setting("gateway.api_body_s", Kind.SECONDS, 10.0, "How long the body of a request may take.", least=0.1, most=600),
    Setting(
        "gateway.api_connections_max",
        Kind.WHOLE,
        1_000,
        "Connections to the API at once; more are cut.",
        least=1,
        most=100_000,
    ),
    Setting(
        "gateway.api_waiting_max",
        Kind.WHOLE,
        200,
        "Requests that may wait for a message, and streams of events, all together.",
        least=1,
        most=100_000,
    ),
    Setting(
        "gateway.api_wait_s",
        Kind.SECONDS,
        60.0,
        "How long a request may wait for a message at most, whatever it asks for.",
        most=60,
    ),
    Setting(
        "gateway.results",
        Kind.TEXT,
        None,
        "Who is told what became of messages that were posted over the API: `http://…`, `https://…` or "
        "`command:PROGRAM ARGUMENTS`. Each result is a durable message of its own.",
        derived="nobody; the API can be asked",
        pattern=r"(https?://\S+|command:.+)",
    ),
    Setting(
        "gateway.results_key",
        Kind.TEXT,
        None,
        "The key (`whsec_…`) with which results over HTTP are signed.",
        derived="none: they are not signed",
        secret=True,
    ),
    Setting("peer.enabled", Kind.SWITCH, False, "Whether `posthouse up` starts the peer."),
    Setting(
        "peer.key", Kind.PATH, ".posthouse/node.key", "The file of the peer's key (mode 0600); made the first time."
    ),
    Setting(
        "peer.listen",
        Kind.TEXT,
        "/ip4/127.0.0.1/tcp/4001",
        "The addresses to take connections at, parted by commas; `/ip4/0.0.0.0/tcp/4001` is all that we have.",
    ),
    Setting(
        "peer.peers",
        Kind.TEXT,
        None,
        "Addresses of peers to stay connected with (`/ip4/…/tcp/…/p2p/12D3…`), parted by commas.",
        derived="none",
    ),
    Setting(
        "peer.bootstrap",
        Kind.TEXT,
        None,
        "Addresses of peers that are dialled while few others are connected.",
        derived="none",
    ),
    Setting(
        "peer.mdns",
        Kind.TEXT,
        None,
        "The name under which peers on the same network look for each other, as `klingon-mainnet`.",
        derived="none: nobody is looked for",
        pattern=r"[A-Za-z0-9._-]{1,60}",
    ),
    Setting(
        "peer.handler",
        Kind.TEXT,
        None,
        "Who processes what comes: `python:MODULE:FUNCTION`, `command:PROGRAM ARGUMENTS`, or `accept`, which keeps and "
        "acknowledges everything.",
        derived="none: what comes is kept, and acknowledged when somebody has processed it",
        pattern=r"(python:[\w.]+:\w+|command:.+|accept)",
    ),
    Setting("peer.orders", Kind.SWITCH, True, "Whether the peer takes part in the gossip of public orders."),
    Setting("peer.handler_timeout_s", Kind.SECONDS, 60.0, "How long a handler may work.", least=0.1, most=86_400),
    Setting("peer.workers", Kind.WHOLE, 32, "Trades that are worked on side by side at most.", least=1, most=10_000),
    Setting("peer.sends", Kind.WHOLE, 32, "Messages that are sent to one peer side by side at most.", least=1, most=60),
    Setting("peer.ack_s", Kind.SECONDS, 30.0, "How long an acknowledgement is waited for.", least=0.1, most=600),
    Setting(
        "peer.timeout_s",
        Kind.SECONDS,
        86_400.0,
        "How long a trade lasts where nobody says; messages are tried until `peer.stop_s` before its end.",
        least=1,
        most=31_536_000,
    ),
    Setting(
        "peer.stop_s",
        Kind.SECONDS,
        3_600.0,
        "How long before the end of a trade sending is given up, so that both sides can act in time.",
        most=31_536_000,
    ),
    Setting(
        "peer.strangers",
        Kind.SWITCH,
        True,
        "Whether the first message of an unknown trade opens it, with its sender as the other party.",
    ),
    Setting(
        "peer.direct",
        Kind.CHOICE,
        "prefer",
        "How private messages travel: `prefer` uses direct streams, and gossip (sealed) for nodes that take none; "
        "`require` uses streams only, for good in every trade that begins so; `off` uses gossip.",
        choices=("off", "prefer", "require"),
    ),
    Setting(
        "peer.relay",
        Kind.TEXT,
        None,
        "The URL of a relay (`ws://…` or `wss://…`) where messages are left, sealed, for peers that cannot be reached, "
        "and where ours are picked up.",
        derived="none: nothing is left anywhere",
    ),
    Setting(
        "peer.relay_host",
        Kind.TEXT,
        None,
        "The name that this relay must have.",
        derived="the one it had before, else that of the URL",
    ),
    Setting(
        "peer.relay_folder",
        Kind.PATH,
        ".posthouse/agents/peer",
        "Where the way through the relay keeps what it carries; the peer's own key is its identity there.",
    ),
    Setting("peer.signed_only", Kind.SWITCH, False, "Whether unsigned messages are refused in every trade."),
    Setting(
        "peer.rate_per_s",
        Kind.NUMBER,
        1_000.0,
        "Messages of one peer that are taken in a second; 0: as many as come.",
        most=1_000_000,
    ),
    Setting("peer.burst", Kind.WHOLE, 2_000, "Messages of one peer that are taken at once.", least=1, most=1_000_000),
    Setting(
        "peer.gap_s",
        Kind.SECONDS,
        600.0,
        "How long a missing message is waited for where its sender cannot say what became of it.",
        most=86_400,
    ),
    Setting(
        "audit.keep_s",
        Kind.SECONDS,
        400 * 86_400.0,
        "How long it is kept what operators did, and who.",
        least=60,
        most=10 * 366 * 86_400,
    ),
    Setting("console.enabled", Kind.SWITCH, True, "Whether `posthouse up` starts the web console and its API."),
    Setting(
        "console.host",
        Kind.TEXT,
        "127.0.0.1",
        "The address that the console listens on; any but a loopback one needs a certificate, and a token with a role.",
        pattern=r"[A-Za-z0-9.:*-]{1,253}",
    ),
    Setting("console.port", Kind.WHOLE, 8090, "The console's port; 0 takes any free one.", most=65_535),
    Setting(
        "console.public_host",
        Kind.TEXT,
        None,
        "The name by which browsers reach the console, where that is neither localhost nor an address.",
        derived="none",
        pattern=r"[A-Za-z0-9.-]{1,253}",
    ),
    Setting("console.tls_cert", Kind.PATH, None, "The console's certificate chain (PEM).", derived="none"),
    Setting("console.tls_key", Kind.PATH, None, "The certificate's private key (PEM).", derived="none"),
    Setting(
        "console.session_s",
        Kind.SECONDS,
        43_200.0,
        "How long a log-in lasts.",
        least=60,
        most=30 * 86_400,
    ),
    Setting(
        "console.logins_per_min",
        Kind.WHOLE,
        10,
        "Wrong tokens that one address may try in a minute.",
        least=1,
        most=10_000,
    ),
    Setting(
        "console.bodies",
        Kind.CHOICE,
        "admin",
        "The least role that may read messages' bodies in the console.",
        choices=("viewer", "operator", "admin", "nobody"),
    ),
    Setting(
        "console.body_bytes_max",
        Kind.WHOLE,
        262_144,
        "The largest request that the console takes.",
        least=1_024,
        most=16 * 1_048_576,
    ),
    Setting("console.body_s", Kind.SECONDS, 10.0, "How long the body of a request may take.", least=0.1, most=600),
    Setting("console.head_s", Kind.SECONDS, 10.0, "How long the head of a request may take.", least=0.1, most=600),
    Setting("console.connections_max", Kind.WHOLE, 500, "Connections to the console at a time.", least=1, most=100_000),
    Setting(
        "console.viewers_max", Kind.WHOLE, 200, "Connections at a time that follow live numbers.", least=1, most=100_000
    ),
    Setting(
        "metrics.enabled",
        Kind.SWITCH,
        True,
        "Whether a server offers /metrics and /health over HTTP.",
    ),
    Setting(
        "metrics.host",
        Kind.TEXT,
        "127.0.0.1",
        "The address to listen on. Nobody is asked for a password there, so keep it on the loopback "
        "or behind something that asks.",
        pattern=r"[A-Za-z0-9._:%-]{1,255}",
    ),
    Setting("metrics.port", Kind.WHOLE, 9464, "The port to listen on; 0 takes any free one.", most=65_535),
    Setting(
        "traces.endpoint",
        Kind.TEXT,
        None,
        "Where traces of messages go: the OTLP/HTTP URL of a collector, as `http://127.0.0.1:4318/v1/traces`.",
        derived="none: there are no traces",
        pattern=r"https?://\S+",
    ),
    Setting(
        "traces.headers",
        Kind.TEXT,
        None,
        "Headers for the collector: `NAME=VALUE`, parted by commas.",
        derived="none",
        secret=True,
    ),
    Setting(
        "traces.sample",
        Kind.NUMBER,
        1.0,
        "The share of traces that are told; a message and what it causes are told together or not at all.",
        most=1,
    ),
    Setting(
        "traces.queue_max",
        Kind.WHOLE,
        20_000,
        "Spans that may wait for the collector; more are dropped and counted.",
        least=1,
        most=1_000_000,
    ),
    Setting(
        "log.format",
        Kind.CHOICE,
        "auto",
        "How a server logs: text, one JSON object a line, or (auto) text on a terminal and JSON otherwise.",
        choices=("auto", "text", "json"),
    ),
    Setting(
        "log.level",
        Kind.CHOICE,
        "info",
        "The least important messages that a server logs.",
        choices=("debug", "info", "warning", "error"),
    ),
)
