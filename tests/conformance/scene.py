"""A store, a clock that moves only when told, and short words for what the cases do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from posthouse.mailbox.command import Command, Filter, Lease, Post, Settle, Together, Verdict
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import SECOND, Instant, Message, Ref, State
from posthouse.mailbox.outcome import Leased, Outcome, Posted
from posthouse.mailbox.store import MessageView, Store

T0 = 1_700_000_000 * SECOND


class Scene:
    """One store in one test."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.at = T0

    def later(self, seconds: float) -> None:
        """Let time pass (or set the clock back)."""
        self.at += int(seconds * SECOND)

    def in_s(self, seconds: float) -> Instant:
        return self.at + int(seconds * SECOND)

    def stamped(self, command: Any) -> Any:
        if isinstance(command, Together):
            return Together(tuple(self.stamped(c) for c in command.commands), self.at)
        return command._replace(at=self.at) if command.at == 0 else command

    def apply(self, *commands: Command) -> list[Outcome]:
        """One batch, in one commit."""
        return self.store.apply([self.stamped(command) for command in commands])

    def do(self, command: Command) -> Any:
        """One command in a commit of its own."""
        return self.apply(command)[0]

    def post(self, desk: str, *ids: str, quiet: bool = True, exempt: bool = False, **fields: Any) -> None:
        """Post messages that must be accepted."""
        for id in ids:
            outcome = self.do(Post(message(desk, id, **fields), quiet=quiet, exempt=exempt))
            assert isinstance(outcome, Posted), outcome

    def lease(self, desk: str, mailbox: str | None = "m", token: str = "t", limit: int = 100) -> list[str]:
        """Lease and tell the ids, in order."""
        return [d.message.id for d in self.leased(desk, mailbox, token, limit).deliveries]

    def leased(self, desk: str, mailbox: str | None = "m", token: str = "t", limit: int = 100) -> Leased:
        outcome = self.do(Lease(desk, mailbox, token, holder="h-" + token, limit=limit))
        assert isinstance(outcome, Leased)
        assert outcome.token == token
        return outcome

    def settle(self, desk: str, id: str, verdict: Verdict, token: str | None = "t", **fields: Any) -> Any:
        mailbox, sender = fields.pop("mailbox", "m"), fields.pop("sender", "s")
        return self.do(Settle(Ref(desk, mailbox, sender, id), token, verdict, **fields))

    def deliver(self, desk: str, *ids: str, token: str | None = "t") -> None:
        for id in ids:
            assert self.settle(desk, id, Verdict.DELIVERED, token).state is State.DELIVERED

    def view(self, desk: str, id: str, mailbox: str = "m", sender: str = "s") -> MessageView:
        found = self.store.message(Ref(desk, mailbox, sender, id))
        assert found is not None
        return found

    def state(self, desk: str, id: str) -> State:
        return self.view(desk, id).state

    def states(self, desk: str, *ids: str) -> list[str]:
        return [str(self.state(desk, id)) for id in ids]

    def events(self, id: str | None = None, after: int = 0) -> list[Event]:
        """The journal's events (of one id)."""
        return [event for _, _, event in self.store.events(after) if id in (None, event.message_id)]

    def story(self, id: str) -> list[str]:
        """What happened to a message, in words: event, and reason if there is one."""
        return [e.event + (f":{e.reason}" if e.reason else "") for e in self.events(id)]

    def kept(self, desk: str, **fields: Any) -> list[str]:
        return [view.message.id for view in self.store.messages(Filter(desk, **fields), limit=1000)]


def message(desk: str, id: str, **fields: Any) -> Message:
    fields.setdefault("mailbox", "m")
    fields.setdefault("sender", "s")
    fields.setdefault("body", b"body")
    return Message(desk, id=id, **fields)


def ref(desk: str, id: str, mailbox: str = "m", sender: str = "s") -> Ref:
    return Ref(desk, mailbox, sender, id)


def names(events: Iterable[Event]) -> list[str]:
    return [event.event for event in events]
