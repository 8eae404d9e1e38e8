"""One system with a no-op handler, worked off by its own workers: each run is a process of its own.

`_jobs.py SYSTEM FOLDER COUNT` prints one JSON object: how long it took from the first post to the last job done, and
how many were done. Each is used in the way that serves it best on one machine, with callers that post side by side.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CALLERS = 50
SESSIONS = 500
BODY = "x" * 200


def gateway(folder: Path, count: int, replies: bool) -> tuple[float, int]:
    """The gateway: posts are durable before their callers go on; sessions in order; the settle (and reply) durable."""
    import uvloop

    from posthouse.engine.engine import Engine
    from posthouse.engine.tuning import tune_interpreter
    from posthouse.gateway.answer import Work
    from posthouse.gateway.channel import Port, Sending, Sent
    from posthouse.gateway.courier import SendLimits
    from posthouse.gateway.handlers.function import FunctionHandler
    from posthouse.gateway.letter import Inbound
    from posthouse.gateway.service import Gateway, Parts
    from posthouse.gateway.worker import Limits
    from posthouse.mailbox.policy import INBOUND, OUTBOUND
    from posthouse.stores.sqlite import SqliteStore

    class Sink:
        """A channel that has sent whatever it is given."""

        kind, account, idempotent = "sink", "default", True

        def __init__(self) -> None:
            self.sent = 0

        async def start(self, port: Port) -> None:
            port.up()

        async def close(self) -> None:
            pass

        def connection(self) -> Sink:
            return self

        async def send(self, sending: Sending) -> Sent:
            self.sent += 1
            if self.sent == count:
                done.set()
            return Sent()

    handled = 0

    async def handle(work: Work) -> str | None:
        nonlocal handled
        handled += 1
        return "ok" if replies else None

    async def run() -> tuple[float, int]:
        global done
        done = asyncio.Event()
        policies = {policy.name: policy.replace(capacity=None) for policy in (INBOUND, OUTBOUND)}
        async with Engine(SqliteStore.open(folder / "gateway.db", policies, node="bench")) as engine:
            sink = Sink()
            parts = Parts([sink], FunctionHandler(handle), None, Limits(slots=200), SendLimits(200, drain_per_s=0))
            served = Gateway(engine, parts)
            await served.start()
            assert served.worker is not None
            begun = time.perf_counter()
            numbers = itertools.count()

            async def caller() -> None:
                for number in iter(lambda: next(numbers), None):
                    if number >= count:
                        return
                    chat = f"chat{number % SESSIONS}"
                    await engine.do(Inbound(f"m{number}", "sink", chat, "ann", BODY).post())

            await asyncio.gather(*[caller() for _ in range(CALLERS)])
            if replies:
                await done.wait()
            while served.worker.stats.handled < count:  # noqa: ASYNC110 (what is measured does not tell us)
                await asyncio.sleep(0.002)
            took_s = time.perf_counter() - begun
            await served.close()
            return took_s, sink.sent if replies else served.worker.stats.handled

    tune_interpreter()
    return uvloop.run(run())


done: asyncio.Event


def in_threads(count: int, post: Callable[[int], None]) -> None:
    """Post from as many threads as there are callers."""
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(post, range(count), chunksize=max(1, count // CALLERS)))


def huey(folder: Path, count: int, fsync: bool) -> tuple[float, int]:
    """SqliteHuey with its own consumer on threads."""
    import logging

    from huey import SqliteHuey

    logging.getLogger("huey").setLevel(logging.ERROR)
    queue = SqliteHuey(filename=str(folder / "huey.db"), fsync=fsync, results=False)
    finished = threading.Event()
    numbers = itertools.count(1)
    total = [0]

    @queue.task()  # type: ignore[untyped-decorator]
    def job(chat: str, body: str) -> None:
        total[0] = next(numbers)
        if total[0] >= count:
            finished.set()

    consumer: Any = queue.create_consumer(workers=4, worker_type="thread", periodic=False, initial_delay=0.001)
    consumer.start()
    begun = time.perf_counter()
    in_threads(count, lambda number: job(f"chat{number % SESSIONS}", BODY))
    finished.wait()
    took_s = time.perf_counter() - begun
    consumer.stop()
    return took_s, total[0]


def celery(folder: Path, count: int) -> tuple[float, int]:
    """Celery with its worker on threads, its broker a SQLite file through SQLAlchemy, acknowledged late."""
    import logging

    from celery import Celery
    from celery.contrib.testing.worker import start_worker
    from kombu.transport.sqlalchemy import Transport

    logging.disable(logging.CRITICAL)
    app = Celery("bench", broker=f"sqla+sqlite:///{folder / 'celery.db'}", backend=None)
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=16)
    Transport.polling_interval = 0.01  # a second as it comes, which would be all that is measured
    app.conf.broker_connection_retry_on_startup = True
    finished = threading.Event()
    numbers = itertools.count(1)
    total = [0]

    @app.task  # type: ignore[untyped-decorator]
    def job(chat: str, body: str) -> None:
        total[0] = next(numbers)
        if total[0] >= count:
            finished.set()

    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=30):
        begun = time.perf_counter()
        for number in range(count):
            job.delay(f"chat{number % SESSIONS}", BODY)
        finished.wait()
        took_s = time.perf_counter() - begun
    return took_s, total[0]


SYSTEMS: dict[str, Callable[[Path, int], tuple[float, int]]] = {
    "gateway": lambda folder, count: gateway(folder, count, replies=False),
    "gateway, replies sent": lambda folder, count: gateway(folder, count, replies=True),
    "huey": lambda folder, count: huey(folder, count, fsync=False),
    "huey, fsync": lambda folder, count: huey(folder, count, fsync=True),
    "celery": celery,
}


if __name__ == "__main__":
    took, did = SYSTEMS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"seconds": took, "done": did}))
