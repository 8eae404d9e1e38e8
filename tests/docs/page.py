"""Pages as programs: the fenced blocks of a Markdown page, and running them in order in one folder.

In: a page and an empty folder. Out: nothing, or an AssertionError that names the page and the line.

- ``python``: run as a script; a ``text`` block right behind it is what it prints. A block that begins with a
  comment that is a file name (``# tour.py``) is saved under that name instead; so is ``toml``.
- ``console``: lines that begin with ``$`` are run, those behind them are what they print. A command ends with
  exit code 0 unless it says otherwise (``# exit code 4``). ``posthouse up`` and ``posthouse demo`` run on behind the
  commands; ``cd`` goes elsewhere, and the directive ``back`` to where the page began.
- Other blocks are for people only.

In what is printed, ``…`` stands for anything, a line of it for any lines, and instants, ages, sizes, process
numbers, ports and operators' names are not compared. Every other line must be there, in order.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from posthouse.cli import main

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from posthouse.cli import main; main()"]
FILE_NAME = re.compile(r"# ([\w.-]+\.(?:py|toml))")
EXIT_CODE = re.compile(r"# exit code (\d+)")
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
DIRECTIVE = re.compile(r"<!-- test: (.+) -->")
VARIABLE = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<instant>"),
    (re.compile(r"\d{8}T\d{12}Z"), "<stamp>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|h|d|B|KiB|MiB)\b"), "<amount>"),
    (re.compile(r"process \d+"), "<process>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"operator:\S+"), "<operator>"),
    (re.compile(r"\bPosthouse \d+\.\d+\.\d+\S*"), "<version>"),
]


class Block(NamedTuple):
    """One fenced block, or a directive to the test (language ``test``)."""

    line: int
    language: str
    lines: list[str]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks and directives of a page, in order."""
    found: list[Block] = []
    inside: Block | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if inside is not None and line == "```":
            found.append(inside)
            inside = None
        elif inside is not None:
            inside.lines.append(line)
        elif line.startswith("```"):
            inside = Block(number, line[3:].strip(), [])
        elif directive := DIRECTIVE.fullmatch(line):
            found.append(Block(number, "test", [directive[1]]))
    assert inside is None, f"{page.name}: the block of line {inside.line} has no end"
    return found


class Runner:
    """Runs the blocks of one page in one folder, which must be the working directory."""

    def __init__(self, page: Path, directives: Mapping[str, Callable[[], None]]) -> None:
        self._page = page
        self.directives = dict(directives)
        self._folder = Path.cwd()
        self._announced = ""
        self._server: subprocess.Popen[str] | None = None
        self.commands = 0
        self.scripts = 0

    def run(self) -> None:
        """Run everything; a server that is still up at the end is stopped and must end well."""
        printed: str | None = None
        try:
            for block in blocks(self._page):
                before, printed = printed, None
                if block.language == "text" and before is not None:
                    self._compare(block.line, block.lines, before)
                elif block.language in ("python", "toml") and (name := FILE_NAME.fullmatch(block.lines[0])):
                    Path(name[1]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
                elif block.language == "python":
                    # Padded, so that a traceback tells the line of the page.
                    source = "\n" * block.line + "\n".join(block.lines) + "\n"
                    Path("example.py").write_text(source, encoding="utf-8")
                    printed = self._script(block.line, ["example.py"])
                elif block.language == "console":
                    self._console(block)
                elif block.language == "test":
                    self._obey(block.lines[0])
            self._stop()
        finally:
            if self._server is not None:
                self._server.kill()
                self._server.communicate()

    def _where(self, line: int) -> str:
        return f"{self._page.name}, line {line}"

    def _obey(self, directive: str) -> None:
        if directive == "stop the server":
            self._stop()
        elif directive == "back":
            os.chdir(self._folder)
        else:
            self.directives[directive]()

    def _script(self, line: int, words: list[str]) -> str:
        self.scripts += 1
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                runpy.run_path(words[0], run_name="__main__")
            except Exception as error:
                raise AssertionError(f"{self._where(line)}: {words[0]} raised {error!r}") from error
        return printed.getvalue()

    def _console(self, block: Block) -> None:
        commands: list[tuple[int, str, list[str]]] = []
        for number, line in enumerate(block.lines, block.line + 1):
            if line.startswith("$ "):
                commands.append((number, line[2:], []))
            else:
                assert commands, f"{self._where(number)}: what was printed stands before a command"
                commands[-1][2].append(line)
        for number, command, expected in commands:
            self.commands += 1
            self._compare(number, expected, self._command(number, command))

    def _command(self, line: int, command: str) -> str:
        words = shlex.split(command, comments=True)
        given = {}
        while ASSIGNMENT.fullmatch(words[0]):
            name, _, value = words.pop(0).partition("=")
            given[name] = value
        if words[0] == "python":
            return self._script(line, words[1:])
        if words[0] == "cd":
            os.chdir(words[1])
            return ""
        assert words[0] == "posthouse", f"{self._where(line)}: only posthouse and python are run: {command}"
        if words[1] in ("up", "demo"):
            return self._up(line, words[1:])
        code = int(said[1]) if (said := EXIT_CODE.search(command)) else 0
        result = CliRunner().invoke(main, words[1:], env=given, catch_exceptions=False)
        assert result.exit_code == code, f"{self._where(line)}: exit code {result.exit_code}: {result.output}"
        return result.output

    def _up(self, line: int, words: list[str]) -> str:
        """Start a server; what it says of itself, up to its last line."""
        # Any free ports, since the usual ones may be somebody else's.
        environ = {**os.environ, "POSTHOUSE_METRICS_PORT": "0", "POSTHOUSE_RELAY_PORT": "0"}
        environ["POSTHOUSE_CONSOLE_PORT"] = "0"
        self._server = subprocess.Popen(
            [*PROGRAM, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        said = ""
        for text in self._server.stdout:
            said += text
            if text.startswith("  desks"):
                self._announced = said
                return said
        _, errors = self._server.communicate()
        raise AssertionError(f"{self._where(line)}: the server did not start: {errors}")

    def said(self, name: str) -> str:
        """What the server said of itself under this name."""
        (found,) = re.findall(rf"^  {name} +(\S+)$", self._announced, re.MULTILINE)
        return str(found)

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=30)
            assert server.returncode == 0, errors

    def _compare(self, line: int, expected: list[str], printed: str) -> None:
        """Whether every expected line is among those that were printed, in order."""
        real = iter([plain(text) for text in printed.splitlines()])
        for wanted in expected:
            pattern = plain(wanted)
            if pattern in ("", "…"):
                continue
            regex = ".*".join(re.escape(part) for part in pattern.split("…"))
            found = any(re.fullmatch(regex, text) for text in real)
            assert found, f"{self._where(line)}: this is not printed (there): {wanted}\n{printed}"


def plain(text: str) -> str:
    """A line without what differs from run to run: instants, amounts, the widths of columns."""
    for pattern, word in VARIABLE:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def pages() -> Iterator[Path]:
    """Every page that people write (the reference is written by the program)."""
    yield ROOT / "README.md"
    yield ROOT / "CHANGELOG.md"
    yield ROOT / "SECURITY.md"
    yield ROOT / "protocol" / "relay.md"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.parent.name != "reference":
            yield page
