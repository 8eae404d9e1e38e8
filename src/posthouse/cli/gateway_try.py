"""posthouse gateway try: the terminal's side of a gateway that may be killed at any time.

In: texts, typed or given. Out: what happens to each, line by line. It starts the gateway as a process of its own on a
temporary store, starts it again when it was killed, brings again what was not received, and shows an answer once,
however often it is sent: so a network does that knows keys.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator

import click

from .session import REFUSED, USAGE, Failure, Json, Session

STAGES = ("received", "handling", "sending")
_ENDS = ("delivered", "died", "expired", "cancelled")
_WAIT_S = 60.0


class Trial:
    """One conversation, over as many processes as it takes."""

    def __init__(self, session: Session, handler: str) -> None:
        self._session = session
        self._handler = handler
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._unreceived: dict[str, Json] = {}
        self._shown: set[str] = set()
        self._open: set[str] = set()
        """Messages, and answers to them, that are not finished."""
        self._offset = 0
        self._happened: list[Json] = []
        self._restarts = 0
        self._over = threading.Event()
        self._failed = ""

    def run(self, texts: list[str], crash: str | None) -> None:
        """Say these, or what is typed, and show what comes of it."""
        if not texts and self._session.json:
            raise Failure("usage", "--json needs TEXT: there is nobody to talk to", USAGE)
        with tempfile.TemporaryDirectory(prefix="posthouse-try-") as folder:
            reader = threading.Thread(target=self._serve, args=(folder,), daemon=True)
            reader.start()
            try:
                for number, (text, stage) in enumerate(self._messages(texts, crash), 1):
                    self._say(f"m{number}", text, stage)
                    answered = self._wait()
                    if self._failed:
                        raise Failure("config", self._failed, USAGE)
                    if not answered:
                        raise Failure("no_answer", f"no answer came within {_WAIT_S:.0f} s", REFUSED)
            finally:
                self._end()
                reader.join()
        if self._session.json:
            self._session.emit({"restarts": self._restarts, "steps": self._happened})

    def _messages(self, texts: list[str], crash: str | None) -> Iterator[tuple[str, str | None]]:
        if texts:
            yield from ((text, crash if number == 0 else None) for number, text in enumerate(texts))
            return
        self._session.say('Say something; "/crash handling hello" kills the gateway while it works on it. Ctrl-D ends.')
        for number, line in enumerate(_lines()):
            text, stage = line, crash if number == 0 else None
            words = line.split(" ", 2)
            if words[0] == "/crash" and len(words) == 3 and words[1] in STAGES:
                text, stage = words[2], words[1]
            if text.strip():
                yield text, stage

    def _say(self, id: str, text: str, crash: str | None) -> None:
        with self._lock:
            frame = {"id": id, "text": text, "crash": crash}
            self._unreceived[id] = frame
            self._open.add(id)
            self._write(frame)

    def _wait(self) -> bool:
        """Until all that was said is answered and nothing of it is under way."""
        with self._answered:
            return self._answered.wait_for(lambda: not self._open or bool(self._failed), _WAIT_S)

    def _end(self) -> None:
        with self._lock:
            self._over.set()
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()

    # The gateway's process, in a thread of its own.

    def _serve(self, folder: str) -> None:
        while not self._over.is_set():
            with self._lock:
                self._process = process = subprocess.Popen(
                    [sys.executable, "-m", "posthouse.gateway.trial", folder, self._handler, str(self._offset)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    # Ctrl-C is for us: it ends when its input does.
                    start_new_session=True,
                )
                for frame in self._unreceived.values():
                    self._write(frame)
            said: list[str] = []
            listener = threading.Thread(target=lambda p=process, s=said: s.extend(p.stderr or ()), daemon=True)
            listener.start()
            assert process.stdout is not None
            for line in process.stdout:
                with self._lock:
                    self._heard(json.loads(line))
            code = process.wait()
            listener.join()
            with self._answered:
                if self._over.is_set():
                    return
                if code != -signal.SIGKILL:
                    self._failed = said[-1].strip() if said else f"the gateway ended with {code}"
                    self._answered.notify_all()
                    return
                self._restarts += 1
                self._tell({"step": "killed", "code": code}, f"the gateway was killed ({code}) and is started again")

    def _write(self, frame: Json) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(json.dumps(frame) + "\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError):
                pass  # it was killed: what it did not receive, the next one is told

    def _heard(self, frame: Json) -> None:
        if "received" in frame:
            self._unreceived.pop(frame["received"], None)
        elif "reply" in frame:
            if frame["key"] in self._shown:
                self._tell({"step": "repeated", **frame}, "outbound  sent again with the same key: shown once")
            else:
                self._shown.add(frame["key"])
                self._tell({"step": "answer", **frame}, f"    {frame['reply']}")
            self._write({"shown": frame["key"]})
        elif "event" in frame:
            self._offset = frame["offset"]
            reason = f" ({frame['reason']})" if frame["reason"] else ""
            self._tell({"step": frame["event"], **frame}, f"{frame['desk']:<9} {frame['event']}{reason}  {frame['id']}")
            if frame["event"] == "posted":
                self._open.add(frame["id"])
            elif frame["event"] in _ENDS:
                self._open.discard(frame["id"])
                self._answered.notify_all()

    def _tell(self, step: Json, line: str) -> None:
        self._happened.append(step)
        if not self._session.json:
            self._session.say(line)


def _lines() -> Iterable[str]:
    """What is typed, line by line."""
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")
