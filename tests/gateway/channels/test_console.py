"""The terminal: lines in, lines out, and nothing that could move it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.gateway.channels.console_bench import ConsoleBench

from posthouse.gateway.channel import Permanent, Sent, Unclear
from posthouse.gateway.channels.bench import Trial, trial
from posthouse.gateway.letter import Media, Outbound, Part


def run(story: Callable[[ConsoleBench, Trial], Awaitable[None]], **values: Any) -> None:
    async def made() -> None:
        bench = ConsoleBench(values)
        async with trial(bench) as found:
            await found.start()
            await story(bench, found)

    asyncio.run(made())


def test_lines_are_messages_however_they_are_typed():
    async def story(bench: ConsoleBench, trial: Trial) -> None:
        bench.type("one\r\n\n  \ntw")
        await trial.until_kept(1)
        bench.type("o\n/stop\nthree")
        bench.hang_up()
        await bench.made.ended.wait()
        kept = trial.desk.kept()
        assert [i.text for i in kept] == ["one", "two", "/stop", "three"]
        assert [i.control for i in kept] == [False, False, True, False]
        assert {(i.conversation, i.sender) for i in kept} == {("console", "ann")}
        # What is sent after the last line is printed all the same.
        assert isinstance(await trial.send(trial.sending("bye")), Sent)
        await trial.until_arrived("bye")

    run(story, name="ann")


def test_a_line_that_is_too_long_is_cut_and_bytes_that_are_no_text_are_replaced():
    async def story(bench: ConsoleBench, trial: Trial) -> None:
        bench.type("x" * 6_000 + "\n")
        bench.type(b"\xff\xfe\n")
        bench.hang_up()
        await bench.made.ended.wait()
        *pieces, odd = [i.text for i in trial.desk.kept()]
        assert "".join(pieces) == "x" * 6_000
        assert len(pieces) > 1
        assert odd == "��"

    run(story, line_bytes_max=1_000)


def test_nothing_that_is_printed_moves_the_terminal():
    async def story(bench: ConsoleBench, trial: Trial) -> None:
        part = Part("red \x1b[31m\a\r\x9b2J", (Media("https://example.org/\x1b]0;x\a", "image/png"),))
        assert isinstance(await trial.send(trial.part(Outbound("o", "console", "you", (part,)), 0)), Sent)
        await trial.until_arrived("red \\x1b[31m\\x07\\x0d\\x9b2J", "[image/png] https://example.org/\\x1b]0;x\\x07")
        empty = Outbound("p", "console", "you", (Part(extra={"a": 1}),))
        assert isinstance(await trial.send(trial.part(empty, 0)), Permanent)

    run(story)


def test_a_terminal_that_is_gone_leaves_it_unclear():
    async def story(bench: ConsoleBench, trial: Trial) -> None:
        bench._paper.close()
        assert isinstance(await trial.send(trial.sending("hello?")), Unclear)

    run(story)
