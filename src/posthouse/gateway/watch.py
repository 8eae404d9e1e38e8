"""The watch: looks at what alert rules name, and tells when something is wrong and when it is over.

In: rules, and readings of the store and the books. Out: outbound messages of the gateway's own desk, as durable as any
other: to ``alert/default`` (a webhook or a command, ``gateway.alert``) or to an account of a channel. A notice is
posted in the commit that keeps how its rule stands, so a crash neither forgets one nor tells it twice, and a new
process goes on where the one before was. Where nobody is to be told, the log is enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Sequence

from ..control import view
from ..control.alerts import SHELF, encode, standings
from ..control.measure import Reading, readings
from ..control.rule import DEFAULT_ACCOUNT, QUIET, RESOLVED, Measure, Rule, Standing, step
from ..engine.engine import Engine
from ..errors import EngineClosed, StoreError
from ..mailbox.command import Command, Keep, Post
from ..mailbox.message import SECOND, Instant
from .letter import Json, Outbound, Part

log = logging.getLogger("posthouse.gateway")

EVERY_S = 15.0
BOOKS_EVERY_S = 60.0
"""Books change when they are run, and reading them costs more."""
KEPT_S = 7 * 86_400
"""How long a notice may wait for whoever is to be told; by then it was repeated."""
ORIGIN = "alert"


class Watch:
    """Judges rules from ``start`` to ``close``."""

    def __init__(self, engine: Engine, rules: Sequence[Rule], lake: str, told: frozenset[str], every_s: float) -> None:
        """``told`` are the accounts that there are; what is for another is only logged."""
        self._engine = engine
        self._rules = tuple(rules)
        self._lake = lake
        self._told = told
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._books_at: Instant = 0
        self._troubles: dict[str, str] = {}
        self._standings = standings(engine.store)
        self._judging = threading.Lock()

    @property
    def firing(self) -> dict[str, int]:
        """How many of the things that each rule looks at are wrong."""
        found = dict.fromkeys((rule.name for rule in self._rules), 0)
        for key, standing in list(self._standings.items()):
            name = key.partition("/")[0]
            if standing.fired_at and name in found:
                found[name] += 1
        return found

    def start(self) -> None:
        """Begin; on a running event loop."""
        self._task = asyncio.create_task(self._run(), name="alert rules")

    async def close(self) -> None:
        """Stop. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.look)
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("alert rules cannot be judged for now: %s", error)
            await asyncio.sleep(self._every_s)

    def look(self) -> None:
        """Judge every rule once; blocking, from any thread."""
        with self._judging:
            self._look()

    def _look(self) -> None:
        at = self._engine.now()
        commands: list[Command] = []
        books = abs(at - self._books_at) >= BOOKS_EVERY_S * SECOND
        known = {rule.name for rule in self._rules}
        after = {key: standing for key, standing in self._standings.items() if key.partition("/")[0] in known}
        commands += [Keep(SHELF, key, None) for key in self._standings if key not in after]
        for rule in self._rules:
            if rule.of_the_lake and not books:
                continue
            for reading in readings(rule, self._engine.store, at, self._lake):
                commands += self._judged(rule, reading, at, after)
        if books:
            self._books_at = at
        if commands:
            self._engine.call(*commands)
        self._standings = after

    def _judged(self, rule: Rule, reading: Reading, at: Instant, after: dict[str, Standing]) -> list[Command]:
        if reading.value is None:
            # Unknown is neither right nor wrong; whoever set the rule should know, once.
            if self._troubles.get(reading.key) != reading.trouble:
                self._troubles[reading.key] = reading.trouble
                log.warning("alert %s cannot be judged: %s", rule.name, reading.trouble)
            return []
        self._troubles.pop(reading.key, None)
        before = after.get(reading.key, QUIET)
        standing, notice = step(rule, before, reading.value, at)
        if standing == before:
            return []
        commands: list[Command] = []
        if notice is not None:
            told_of = before if notice == RESOLVED else standing
            commands += self._notice(rule, reading, notice, told_of, at)
        if standing == QUIET:
            after.pop(reading.key, None)
            commands.append(Keep(SHELF, reading.key, None))
        else:
            after[reading.key] = standing
            commands.append(Keep(SHELF, reading.key, encode(standing)))
        return commands

    def _notice(self, rule: Rule, reading: Reading, notice: str, standing: Standing, at: Instant) -> list[Command]:
        assert reading.value is not None
        text = sentence(rule, reading.desk, reading.value, notice, standing)
        log.log(
            logging.INFO if notice == RESOLVED else logging.ERROR, "%s", text,
            extra={"alert": rule.name, "state": notice, "desk": reading.desk, "value": reading.value},
        )  # fmt: skip
        if rule.account not in self._told:
            return []
        key = f"{reading.key}\0{standing.fired_at}\0{notice}\0{standing.notices}"
        extra: Json = {
            "type": "alert",
            "state": notice,
            "rule": rule.name,
            "on": str(rule.on),
            "desk": reading.desk,
            "mailbox": rule.mailbox,
            "value": reading.value,
            "above": rule.above,
            "since_us": standing.since,
            "at_us": at,
            "node": self._engine.store.node,
        }
        return [Post(message(rule, key, text, extra, at).message(), exempt=True)]


def message(rule: Rule, key: str, text: str, extra: Json, at: Instant) -> Outbound:
    """A notice as it is sent; a channel for people gets the sentence alone."""
    channel, _, account = rule.account.partition("/")
    return Outbound(
        id=f"alert-{hashlib.sha256(key.encode()).hexdigest()[:32]}",
        channel=channel,
        to=rule.to,
        parts=(Part(text, extra=extra if rule.account == DEFAULT_ACCOUNT else {}),),
        account=account,
        origin=ORIGIN,
        expires_at=at + KEPT_S * SECOND,
    )


def sentence(rule: Rule, desk: str | None, value: float, notice: str, standing: Standing) -> str:
    """What a person reads."""
    of = " ".join(part for part in (desk, rule.mailbox) if part)
    unit = " s" if rule.on is Measure.AGE else ""
    amount, limit = (f"{n:.10g}{unit}" for n in (round(value, 2), rule.above))
    what = f"{rule.on} of {of}" if of else str(rule.on)
    if notice == RESOLVED:
        return f"alert {rule.name} is over: {what} is {amount}, not above {limit} any more"
    again = "still " if standing.notices > 1 else ""
    return f"alert {rule.name}: {what} is {again}{amount}, above {limit}, since {view.instant(standing.since)}"


def missing_accounts(rules: Sequence[Rule], accounts: frozenset[str]) -> list[Rule]:
    """Rules that name an account which no channel has."""
    return [rule for rule in rules if rule.account != DEFAULT_ACCOUNT and rule.account not in accounts]
