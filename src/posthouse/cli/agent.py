"""posthouse agent: identity, whoami, connect, accept, reject, contacts, block, unblock, send, listen, inbox, history.

Each works whether or not another process (a `listen` in another window) has the agent open.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadAddress, InvalidInput, MissingExtra, RelayRefused, StoreHeld
from . import option
from .option import pass_session
from .root import Group, version
from .session import REFUSED, USAGE, Failure, Json, Session
from .text import inert, short_instant

if TYPE_CHECKING:
    from ..agent.client import Agent, Item
    from ..agent.happening import Happening
    from ..config import Config
    from ..control.operator import Operator

_POLL_S = 0.1
_TRIES = 2
"""Connections that a command which does not stay tries to make."""


def _take(setting: str, flag: str) -> Any:
    def take(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.find_root().ensure_object(Session).set(setting, value, flag)

    return take


def _own(function: option.F) -> option.F:
    """The options of every agent's command."""
    for flag, setting, metavar, what in (
        ("--relay", "agent.relay", "URL", "The relay: ws://host:port or wss://host:port; short for --set agent.relay."),
        ("--as", "agent.name", "NAME", "Which agent to be; short for --set agent.name."),
    ):
        function = click.option(
            flag,
            setting.replace(".", "_"),
            metavar=metavar,
            help=what,
            expose_value=False,
            callback=_take(setting, flag),
        )(function)
    return function


@click.group(cls=Group)
def agent() -> None:
    """An agent: send and receive encrypted messages through a relay.

    An agent is a key and a store in a folder of its own; both are made when they are first needed.
    """


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What can go wrong with an agent, as exit codes."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("picows", "nacl", "google"):
            raise MissingExtra(f"agents need {error.name}: pip install posthouse[relay]") from error
        raise
    except BadAddress as error:
        raise Failure(error.code, str(error), USAGE) from error
    except RelayRefused as error:
        raise Failure(error.code, str(error), REFUSED) from error


def _ensure(session: Session, config: Config) -> None:
    """Make the identity if there is none."""
    from ..agent.identity import FILE_NAME, Identity
    from ..agent.operation import folder_of

    path = folder_of(config) / FILE_NAME
    if not path.exists():
        Identity.generate().save(path, datetime.datetime.now(datetime.UTC).isoformat())
        if not session.json:
            click.echo(f"posthouse: made a new identity: {path}", err=True)
    Identity.load(path)


@contextlib.contextmanager
def _operator(session: Session) -> Iterator[Operator]:
    with _told():
        from ..agent.operation import config_of
        from ..control.operator import Operator

        config = session.config()
        os.umask(0o077)
        _ensure(session, config)
        with contextlib.closing(Operator.connect(config_of(config), create=True)) as operator:
            yield operator


def _ask(session: Session, name: str, **parameters: Any) -> Json:
    with _operator(session) as operator:
        return session.ask(operator, name, **parameters)


# Who we are.


@agent.group("identity", cls=Group)
def identity() -> None:
    """The key of an agent."""


@identity.command("create")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), help="Take the key of this file, as Pinch clients keep it."
)
@_own
@pass_session
def create(session: Session, source: Path | None) -> None:
    """Make a new key, or take one over; it never replaces one that is there."""
    with _told():
        from ..agent.identity import FILE_NAME, Identity
        from ..agent.operation import folder_of

        path = folder_of(session.config()) / FILE_NAME
        made = Identity.generate() if source is None else Identity.load(source)
        made.save(path, datetime.datetime.now(datetime.UTC).isoformat())
        public_key = base64.b64encode(made.public_key).decode()
        if session.json:
            session.emit({"file": str(path), "public_key": public_key})
        else:
            session.facts([("Identity", path), ("Public key", public_key)])


@agent.command("whoami")
@_own
@pass_session
def whoami(session: Session) -> None:
    """Show the agent's address and where it is kept.

    The address ends with the name of the relay, which is known after the first connection (or from
    agent.relay_host): where it is not known yet, the relay is asked.
    """
    found = _ask(session, "agent.whoami")
    if found["address"] is None:
        config = session.config()
        if config.is_given("agent.relay_host"):
            from ..wire.address import address_of

            host = config.text("agent.relay_host")
            with _told():
                found["relay_host"] = host
                found["address"] = address_of(base64.b64decode(found["public_key"]), host)
        else:
            # A relay that does not admit us, or not yet, does not keep us from showing the key to be approved.
            with _told(), contextlib.suppress(RelayRefused, StoreHeld):
                _connected(session, 5.0)
            found = _ask(session, "agent.whoami")
    found["relay"] = session.config().text("agent.relay")
    if session.json:
        session.emit(found)
        return
    session.facts(
        [
            ("Address", found["address"] or "(not known before the first connection)"),
            ("Public key", found["public_key"]),
            ("Relay", found["relay"]),
            ("Folder", found["folder"]),
        ]
    )


# Contacts.


@agent.command("connect")
@click.argument("address")
@click.option(
    "--message", "greeting", default="", metavar="TEXT", help="What to say when asking; at most 280 characters."
)
@click.option("--name", default="", metavar="NAME", help="What to call this contact from now on.")
@_own
@pass_session
def connect(session: Session, address: str, greeting: str, name: str) -> None:
    """Ask an agent whether you may write to each other."""
    _tell_peer(session, "agent.connect", "asked", to=address, greeting=greeting, called=name)


@agent.command("accept")
@click.argument("contact")
@click.option("--name", default="", metavar="NAME", help="What to call this contact from now on.")
@_own
@pass_session
def accept(session: Session, contact: str, name: str) -> None:
    """Say yes to an agent that asked."""
    _tell_peer(session, "agent.accept", "accepted", who=contact, called=name)


@agent.command("reject")
@click.argument("contact")
@_own
@pass_session
def reject(session: Session, contact: str) -> None:
    """Say no to an agent that asked. It is not told."""
    done = _ask(session, "agent.reject", who=contact)
    if session.json:
        session.emit(done)
    else:
        session.say(f"rejected {done['to']}")


@agent.command("block")
@click.argument("contact")
@_own
@pass_session
def block(session: Session, contact: str) -> None:
    """Take nothing more from an agent; the relay carries nothing from it either."""
    _tell_peer(session, "agent.block", "blocked", who=contact)


@agent.command("unblock")
@click.argument("contact")
@_own
@pass_session
def unblock(session: Session, contact: str) -> None:
    """Undo a block. What was sent meanwhile does not come."""
    _tell_peer(session, "agent.unblock", "unblocked", who=contact)


@agent.command("contacts")
@_own
@pass_session
def contacts(session: Session) -> None:
    """List everybody that you asked, that asks you, or that you know."""
    found = _ask(session, "agent.contacts")
    if session.json:
        session.emit(found)
        return
    session.table(
        ("NAME", "STANDING", "ADDRESS", "MESSAGE"),
        [(c["name"] or "–", c["standing"], c["address"], c["greeting"]) for c in found["contacts"]],
        "no contacts",
    )


def _tell_peer(session: Session, operation: str, done: str, **parameters: Any) -> None:
    """Put something into the outbox and send it now, if that is possible."""
    with _operator(session) as operator:
        draft = session.ask(operator, operation, **parameters)
        through = operator.through
    [state] = _carry(session, through, [draft], 5.0, 0.0)
    if session.json:
        session.emit({**draft, "state": state["state"]})
    else:
        later = " (it is sent when the relay is there)" if state["state"] == "queued" else ""
        session.say(f"{done} {draft['to']}{later}")


# Messages.


@agent.command("send")
@click.argument("to")
@click.argument("text", required=False)
@click.option(
    "--input",
    "how",
    type=click.Choice(["lines", "json", "whole"]),
    default="lines",
    show_default=True,
    help='How to read messages from standard input: one a line, one JSON object a line ({"text": …} or '
    '{"data": base64}, with "to" and "content_type" if wanted), or all of it as one.',
)
@click.option("--wait", "wait_s", type=click.FloatRange(0, 86_400), default=2.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the recipient's confirmation.")  # fmt: skip
@click.option("--queue", is_flag=True, help="Only put it into the outbox; the next command that connects sends it.")
@_own
@pass_session
def send(session: Session, to: str, text: str | None, how: str, wait_s: float, queue: bool) -> None:
    """Send a message to a contact's name or an address.

    Without TEXT (or with -) messages are read from standard input. A message is safe in the outbox before
    anything is sent; where the relay is away it is sent later, by the next `send` or `listen`.
    """
    drafts: list[Json] = []
    with _operator(session) as operator:
        for message in [{"text": text}] if text not in (None, "-") else _read_messages(how):
            content = message.get("text")
            raw = content.encode() if isinstance(content, str) else _decoded(message.get("data"))
            drafts.append(
                session.ask(
                    operator,
                    "agent.send",
                    to=str(message.get("to") or to),
                    content=base64.b64encode(raw).decode(),
                    content_type=str(message.get("content_type") or "text/plain"),
                )
            )
        through = operator.through
    states = drafts if not drafts else _carry(session, "queue" if queue else through, drafts, 5.0, wait_s)
    if session.json:
        session.emit({"messages": states})
        return
    for state in states:
        session.say(f"{_sent_line(state)}  {state['id']}")


def _read_messages(how: str) -> Iterable[Json]:
    if how == "whole":
        raw = sys.stdin.buffer.read()
        yield {"data": base64.b64encode(raw).decode()} if raw else {"text": ""}
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = line.decode(errors="replace").rstrip("\r\n")
        if not text:
            continue
        if how == "lines":
            yield {"text": text}
            continue
        try:
            message = json.loads(text)
            good = isinstance(message, dict) and (isinstance(message.get("text"), str) or "data" in message)
        except (ValueError, RecursionError):
            good = False
        if not good:
            raise InvalidInput(
                f'line {number} is no JSON object with "text" or "data"; those before it are in the outbox'
            )
        yield message


def _decoded(data: object) -> bytes:
    try:
        return base64.b64decode(str(data), validate=True)
    except ValueError:
        raise InvalidInput('"data" must be base64') from None


def _sent_line(state: Json) -> str:
    words = {
        "delivered": "delivered (it waited at the relay)" if state.get("was_stored") else "delivered",
        "with the relay": "with the relay, until the recipient comes",
        "queued": "in the outbox, to be sent later",
    }
    line = words.get(state["state"], str(state["state"]))
    return f"{line}: {state['reason']}" if state.get("reason") and state["state"] != "delivered" else line


def _carry(session: Session, through: str, drafts: list[Json], hand_over_s: float, wait_s: float) -> list[Json]:
    """See what was put into the outbox on its way, by us or by who has the agent open; what became of each."""
    if through == "store":
        with _told():
            with contextlib.suppress(StoreHeld):
                return _connected(session, hand_over_s, drafts, wait_s)
    # Another process has the agent open and sends it, or nobody shall.
    until = time.monotonic() + (0.0 if through == "queue" else wait_s)
    with _operator(session) as operator:
        while True:
            states = [session.ask(operator, "agent.sent", to=draft["to"], id=draft["id"]) for draft in drafts]
            if time.monotonic() >= until or all(state["state"] == "delivered" for state in states):
                return states
            time.sleep(_POLL_S)


def _connected(
    session: Session, hand_over_s: float, drafts: list[Json] | None = None, wait_s: float = 0.0
) -> list[Json]:
    """Connect for a moment: hand over what is in the outbox, take what the relay kept, wait for confirmations."""
    from ..agent.client import Agent
    from ..agent.operation import folder_of

    config = session.config()
    host = config.text("agent.relay_host") if config.is_given("agent.relay_host") else None
    drafts = drafts or []

    async def run() -> list[Json]:
        async with Agent(folder_of(config), config.text("agent.relay"), host=host, create=False) as agent:
            try:
                await agent.wait_connected(hand_over_s, _TRIES)
            except TimeoutError:
                pass
            else:
                for draft in drafts:
                    # The time counts from the one before: many may take long, where the relay limits the rate.
                    if await agent.wait_state(draft["to"], draft["id"], _GONE, hand_over_s) not in _GONE:
                        break
                loop = asyncio.get_running_loop()
                until = loop.time() + wait_s
                for draft in drafts:
                    await agent.wait_state(draft["to"], draft["id"], _ENDS, max(until - loop.time(), 0))
            return [await _seen(agent, draft) for draft in drafts]

    return asyncio.run(run())


_ENDS = ("delivered", "undelivered", "cancelled")
_GONE = ("with the relay", *_ENDS)


async def _seen(agent: Agent, draft: Json) -> Json:
    """What became of a message; that it was confirmed is known now, so it need not be told again."""
    from ..agent import desk
    from ..mailbox.command import Settle, Verdict

    state = agent.book.sent(draft["to"], draft["id"])
    assert state is not None
    if state["state"] == "delivered":
        receipt = desk.inbound_ref(draft["to"], desk.confirmation_id(draft["id"]))
        await agent.engine.do(Settle(receipt, None, Verdict.DELIVERED))
    return state


@agent.command("inbox")
@click.option("--keep", is_flag=True, help="Leave everything unread.")
@click.option("--fetch/--no-fetch", default=True, help="Ask the relay first for what it keeps.  [default: fetch]")
@option.limit(100, "How many at most.")
@_own
@pass_session
def inbox(session: Session, keep: bool, fetch: bool, limit: int) -> None:
    """Show what came and was not shown yet: messages, requests, answers and confirmations."""
    if fetch:
        with _operator(session) as operator:
            through = operator.through
        if through == "store":
            with _told(), contextlib.suppress(StoreHeld):
                _fetch(session)
    with _operator(session) as operator:
        found = session.ask(operator, "agent.inbox", limit=limit)
        if session.json:
            session.emit(found)
        else:
            for item in found["items"]:
                _print_item(session, item)
            if not found["items"]:
                session.say("nothing new")
        if found["items"] and not keep:
            # Shown first: who is killed in between sees it once more, not never.
            sys.stdout.flush()
            items = found["items"]
            session.ask(operator, "agent.read", peers=[i["peer"] for i in items], ids=[i["id"] for i in items])


def _fetch(session: Session) -> None:
    """Connect until nothing has come from the relay for a moment."""
    from ..agent.client import Agent
    from ..agent.operation import folder_of

    config = session.config()
    host = config.text("agent.relay_host") if config.is_given("agent.relay_host") else None

    async def run() -> None:
        folder, url = folder_of(config), config.text("agent.relay")
        async with Agent(folder, url, host=host, create=False) as agent:
            try:
                await agent.wait_connected(5.0, _TRIES)
            except TimeoutError:
                click.echo("posthouse: the relay cannot be reached; this is what came before", err=True)
                return
            await agent.settle_down(0.5)

    asyncio.run(run())


@agent.command("listen")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0), metavar="SECONDS", help="Stop when nothing came for so long."
)
@_own
@pass_session
def listen(session: Session, count: int | None, wait_s: float | None) -> None:
    """Stay connected and show what comes, until Ctrl-C.

    With --json each is one JSON object on a line of its own. While it runs, the other commands of this agent
    go through it.
    """
    with _told():
        from ..agent.operation import config_of

        config = session.config()
        os.umask(0o077)
        _ensure(session, config)
        try:
            asyncio.run(_Listener(session, config, config_of(config)).run(count, wait_s))
        except StoreHeld as error:
            raise StoreHeld(f"{error}; an agent listens in one process only") from error


class _Listener:
    def __init__(self, session: Session, config: Config, own: Config) -> None:
        self._session = session
        self._config = config
        self._own = own

    async def run(self, count: int | None, wait_s: float | None) -> None:
        from ..agent.client import Agent
        from ..agent.operation import folder_of
        from ..control.server import ControlServer

        config = self._config
        host = config.text("agent.relay_host") if config.is_given("agent.relay_host") else None
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        folder, url = folder_of(config), config.text("agent.relay")
        async with Agent(folder, url, host=host, create=False, on_happening=self._note) as agent:
            control = ControlServer(agent.engine, self._own, version())
            control.start()
            try:
                async for item in agent.receive(wait_s):
                    self._show(item)
                    await item.done()
                    if count is not None:
                        count -= 1
                        if not count:
                            break
                # What was shown last may not be confirmed yet.
                await agent.settle_down(0.0)
            except asyncio.CancelledError:
                # A signal: that is how listening ends.
                task.uncancel()
            finally:
                await asyncio.to_thread(control.close)

    def _show(self, item: Item) -> None:
        if self._session.json:
            click.echo(json.dumps(item.plain))
        else:
            _print_item(self._session, item.plain)
        sys.stdout.flush()

    def _note(self, happening: Happening) -> None:
        from ..agent import happening as hp

        if self._session.json:
            kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(happening).__name__).lower()
            click.echo(json.dumps({"happening": kind, **happening._asdict()}), err=True)
            return
        match happening:
            case hp.Connected():
                line = f"connected as {happening.address}"
            case hp.Disconnected():
                line = f"not connected ({happening.reason}); trying again in {happening.retry_s:.0f} s"
            case hp.Pending():
                line = f"the relay kept {happening.count} for us"
            case hp.QueueFull():
                line = f"not taken for {happening.recipient}, tried later: {happening.reason}"
            case hp.RateLimited():
                line = f"the relay wants us to wait {happening.retry_after_s:.1f} s: {happening.reason}"
            case hp.Ignored():
                line = f"ignored a {happening.kind} from {happening.sender}: {happening.reason}"
            case _:
                return
        click.echo(f"posthouse: {inert(line)}", err=True)


@agent.command("history")
@click.argument("contact", required=False)
@option.limit(50, "How many at most: the last ones.")
@_own
@pass_session
def history(session: Session, contact: str | None, limit: int) -> None:
    """Show the last messages from and to a contact, or from and to all, oldest first."""
    found = _ask(session, "agent.history", who=contact, limit=limit)
    if session.json:
        session.emit(found)
        return
    for item in found["items"]:
        _print_item(session, item)
    if not found["items"]:
        session.say("no messages")


def _print_item(session: Session, item: Json) -> None:
    """One thing that came or went, for people. Text from outside cannot leave its lines."""
    who = item["name"] or item["peer"]
    kind, out = item["kind"], item["direction"] == "out"
    if kind == "message":
        body = item.get("text")
        if body is None:
            body = f"({item['error']})" if "error" in item else f"({item.get('content_type') or 'bytes'}, not text)"
        stranger = "" if out or item["contact"] == "accepted" else " (not a contact)"
        head = f"to {who}, {_sent_line(item)}" if out else f"{who}{stranger}"
    elif kind == "delivery_confirm":
        stored = ", it waited at the relay" if item.get("was_stored") else ""
        head, body = f"{who} has {item.get('confirms')}{stored}", ""
    elif kind == "connection_request":
        asks = f"asked {who}" if out else f"{who} asks to connect"
        head, body = asks, item.get("text") or ""
    elif kind == "connection_response":
        head, body = (f"accepted {who}" if out else f"{who} {'accepted' if item.get('accepted') else 'refused'}"), ""
    else:
        head, body = f"{kind.replace('_', ' ')} {'to' if out else 'from'} {who}", ""
    first, *more = re.split(r"\r?\n", body)
    session.say(f"{short_instant(item['at'])}  {head}{': ' + first if first else ''}")
    for line in more:
        session.say(f"    {line}")
