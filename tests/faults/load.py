"""A process that works a store as hard as it can and says what was acknowledged, until it is killed.

In: the path of a store. Out: one line of JSON for each acknowledgement, written straight to the pipe
(what is in the pipe outlives the process). ``aftermath.py`` holds the store against these lines.
Lines: ``["P", [desk, mailbox, sender, id], lane, seq]`` a post was acknowledged; ``["s", ref]`` a
settlement is asked for; ``["S", ref, state]`` it was acknowledged; ``["F", code]`` the engine failed.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from random import Random

from tests.faults.traffic import POLICIES
from tests.faults.vfs import Act, Call, Disk, Fault

from posthouse.engine.engine import Engine
from posthouse.errors import StoreError
from posthouse.mailbox.command import Command, Lease, Post, Settle, Together, Verdict
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Done, Leased, Outcome, Posted, Settled
from posthouse.stores.sqlite import SqliteStore

BACKLOG_MAX = 400


def say(*line: object) -> None:
    # One write each, shorter than a pipe's atom: lines of two threads never mix.
    os.write(1, json.dumps(line).encode() + b"\n")


def told(command: Command, outcome: Outcome) -> None:
    if isinstance(command, Together) and isinstance(outcome, Done):
        for inner, its in zip(command.commands, outcome.outcomes, strict=True):
            told(inner, its)
    elif isinstance(command, Post) and isinstance(outcome, Posted):
        say("P", command.message.ref, command.message.lane, outcome.seq)
    elif isinstance(command, Settle) and isinstance(outcome, Settled):
        say("S", command.ref, outcome.state)


class Load:
    """Callers in threads: some post, some lease and settle; a settlement may post an answer with it."""

    def __init__(self, engine: Engine, run: str) -> None:
        self.engine = engine
        self.run = run
        self.room = threading.Semaphore(BACKLOG_MAX)

    def message(self, rng: Random, id: str) -> Message:
        desk = rng.choice(list(POLICIES))
        lane = "" if desk == "relay" else f"l{rng.randrange(5)}"
        body = rng.randbytes(rng.choice((0, 100, 1000, 4000)))
        return Message(desk, f"m{rng.randrange(5)}", f"{self.run}-{id}", body, "load", lane)

    def post(self, number: int) -> None:
        rng = Random(f"{self.run}/post/{number}")
        count = 0
        while True:
            posts = []
            for _ in range(rng.choice((1, 1, 1, 5))):
                self.room.acquire()
                count += 1
                posts.append(Post(self.message(rng, f"{number}-{count}")))
            for command, outcome in zip(posts, self.engine.call(*posts), strict=True):
                told(command, outcome)

    def work(self, number: int) -> None:
        rng = Random(f"{self.run}/work/{number}")
        count = 0
        while True:
            count += 1
            token = f"{self.run}-{number}-{count}"
            (leased,) = self.engine.call(Lease(rng.choice(list(POLICIES)), None, token, limit=10))
            assert isinstance(leased, Leased)
            commands: list[Command] = []
            for d in leased.deliveries:
                settle = Settle(d.message.ref, token, Verdict.RETRY if rng.random() < 0.05 else Verdict.DELIVERED)
                say("s", settle.ref)
                if rng.random() < 0.1:
                    answer = Post(self.message(rng, f"a{number}-{count}-{d.seq}"))
                    commands.append(Together((settle, answer)))
                else:
                    commands.append(settle)
            if commands:
                for command, outcome in zip(commands, self.engine.call(*commands), strict=True):
                    told(command, outcome)
                self.room.release(len(commands))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("run", help="a name that no earlier run on this store had")
    parser.add_argument("--fault", help="act:call:n, e.g. kill:sync:7, by the VFS")
    chosen = parser.parse_args()
    disk = Disk() if chosen.fault else None
    if disk is not None:
        act, call, n = chosen.fault.split(":")
        disk.add(Fault(Act(act), int(n), calls=frozenset({Call(call)})))
    store = SqliteStore.open(chosen.path, POLICIES, node="load", vfs=disk.name if disk else None)
    engine = Engine(store)
    engine.start()
    load = Load(engine, chosen.run)

    def guarded(target: object, number: int) -> None:
        try:
            target(number)  # type: ignore[operator]
        except StoreError as error:
            say("F", error.code)

    threads = [
        threading.Thread(target=guarded, args=(target, number), daemon=True)
        for target in (load.post, load.work)
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        engine.close()
    except StoreError as error:
        say("F", error.code)


if __name__ == "__main__":
    main()
