"""What only mail does, on real servers: flags, waiting for news, TLS, and answers that belong to their questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.channels.email_bench import ANN, PASSWORD, USER, EmailBench
from tests.gateway.channels.setups import setup
from tests.relay.test_tls import make_certificate

from posthouse.errors import ConfigError
from posthouse.gateway.channel import Offline, Reconciled, Reconciles, Sent, Transient
from posthouse.gateway.channels.bench import Trial, trial
from posthouse.gateway.channels.email import Email
from posthouse.gateway.channels.imap import Imap, ImapError
from posthouse.gateway.letter import Outbound, Part, Reply

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")


def run(
    story: Callable[[EmailBench, Trial], Awaitable[None]], tls: tuple[str, str] | None = None, **values: Any
) -> None:
    async def made() -> None:
        bench = EmailBench(values, tls)
        async with trial(bench) as found:
            await found.start()
            await story(bench, found)

    asyncio.run(made())


async def flagged(bench: EmailBench) -> list[str]:
    return await asyncio.to_thread(bench.mailman.uids, "SEEN FLAGGED")


def test_an_answer_belongs_to_the_mail_that_it_answers():
    async def story(bench: EmailBench, trial: Trial) -> None:
        await bench.put(bench.mail("what is the time?", Subject="Re: time"))
        await trial.until_kept(1)
        (asked,) = trial.desk.kept()
        answer = Reply.of("half past").answering(asked, 0, 0)
        assert isinstance(await trial.send(trial.part(answer, 0)), Sent)
        (mail,) = bench.smtp.mails
        assert (mail["To"], mail["Subject"], mail["In-Reply-To"]) == (ANN, "Re: time", "<m1@example.net>")

    run(story)


def test_both_servers_over_tls(tmp_path: Path):
    cert, key = certificate(tmp_path)

    async def story(bench: EmailBench, trial: Trial) -> None:
        await bench.bring("in secret")
        await trial.until_kept(1)
        assert isinstance(await trial.send(trial.sending("so am I")), Sent)
        await trial.until_arrived("so am I")

    run(story, (str(cert), str(key)), ca_file=str(cert))


def test_a_certificate_that_nobody_vouches_for_is_not_taken(tmp_path: Path):
    cert, key = certificate(tmp_path)

    async def story(bench: EmailBench, trial: Trial) -> None:
        await trial.until_said("the mailbox cannot be read: no TLS")
        assert isinstance(await trial.send(trial.sending("to whom?")), Offline)
        assert bench.smtp.mails == []

    run(story, (str(cert), str(key)))


def certificate(folder: Path) -> tuple[Path, Path]:
    return make_certificate(folder, "mail", "IP:127.0.0.1")


def test_a_broken_connection_to_the_mailbox_is_made_again():
    async def story(bench: EmailBench, trial: Trial) -> None:
        await bench.bring("before")
        await trial.until_kept(1)
        bench.imap.cut()
        await trial.until_said("the mailbox cannot be read: the connection ended")
        bench.mailman = await asyncio.to_thread(type(bench.mailman), bench.imap.port)
        await bench.bring("after")
        await trial.until_kept(2)
        assert trial.desk.downs == []

    run(story)


def test_mails_that_cannot_be_read_are_flagged_and_the_next_is_taken():
    async def story(bench: EmailBench, trial: Trial) -> None:
        await bench.put(bench.mail("from nobody", From=""))
        await bench.bring("from ann")
        await trial.until_kept(1)
        assert [i.text for i in trial.desk.kept()] == ["from ann"]
        assert len(await flagged(bench)) == 1

    run(story)


def test_automatic_mails_are_seen_and_not_answered():
    async def story(bench: EmailBench, trial: Trial) -> None:
        await bench.put(bench.mail("I am away", **{"Auto-Submitted": "auto-replied"}))
        await bench.bring("I am not")
        await trial.until_kept(1)
        assert [i.text for i in trial.desk.kept()] == ["I am not"]
        assert await flagged(bench) == []

    run(story)


def test_of_a_mail_that_is_too_large_the_header_is_taken():
    async def story(bench: EmailBench, trial: Trial) -> None:
        await bench.put(bench.mail("x" * 5_000))
        await trial.until_kept(1)
        (kept,) = trial.desk.kept()
        assert (kept.text, kept.thread, kept.metadata["oversize"]) == ("", "question", True)

    run(story, size_bytes_max=2_000)


def test_an_unclear_send_is_looked_up_among_what_was_sent():
    async def story(bench: EmailBench, trial: Trial) -> None:
        assert isinstance(trial.channel, Reconciles)
        sending, other = trial.sending("kept"), trial.sending("not kept")
        assert isinstance(await trial.send(sending), Sent)
        await bench.put(bench.smtp.mails[0].as_bytes(), "Sent")
        assert await trial.channel.reconcile(sending) is Reconciled.SENT
        assert await trial.channel.reconcile(other) is Reconciled.UNKNOWN

    run(story, sent_mailbox="Sent")


def test_a_server_that_is_full_is_tried_later_and_one_that_is_away_costs_nothing():
    async def story(bench: EmailBench, trial: Trial) -> None:
        bench.answer("full")
        assert isinstance(await trial.send(trial.sending("a")), Transient)
        await asyncio.to_thread(bench.smtp.stop)
        assert isinstance(await trial.send(trial.sending("b")), Offline)

    run(story)


def test_a_wrong_password_is_told_without_it_and_no_mail_dies_of_it():
    async def story() -> None:
        bench = EmailBench()
        async with trial(bench) as found:
            values = {"address": USER, "password_env": "P", "imap_host": "127.0.0.1", "imap_port": bench.imap.port,
                      "imap_security": "none", "smtp_host": "localhost", "smtp_port": bench.smtp.port,
                      "smtp_security": "none"}  # fmt: skip
            found.channel = Email(setup("email", values, P="wr0ng-pässword"))
            await found.start()
            await found.until_said("the server does not accept user and password")
            refused = await found.send(found.sending("a"))
            assert isinstance(refused, Offline)
            assert refused.after_s
            assert not any("wr0ng" in said for said in found.said)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not greet"),
        (b"", "the connection ended"),
        (b"* OK hi\r\n* {999999999}\r\n", "at most"),
        (b"* OK hi\r\np1 BAD what?\r\n", "refused"),
        (b"* OK hi\r\n" + b"* LIST x\r\n" * 100_001, "says too much"),
        (b"* OK hi\r\n" + (b"* {50000}\r\n" + b"x" * 50_000 + b"\r\n") * 400, "says too much"),
        (b"x" * 17_000_000, "too long"),
    ],
)
def test_a_server_that_does_not_speak_imap_is_left(said: bytes, error: str):
    async def story() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            writer.write_eof()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        context: Any = None
        with pytest.raises(ImapError, match=error):
            await Imap.connect("127.0.0.1", port, "none", context, 60, 100_000)
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_a_server_that_is_silent_is_left():
    async def story() -> None:
        server = await asyncio.start_server(lambda r, w: asyncio.sleep(60), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        context: Any = None
        with pytest.raises(ImapError, match="does not answer"):
            await Imap.connect("127.0.0.1", port, "none", context, 0.2, 100_000)
        server.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "address is needed"),
        ({"address": "bot"}, "must be a mail address"),
        ({"address": USER}, "imap_host or smtp_host is needed"),
        ({"address": USER, "imap_host": "imap.example.org"}, "password_file or password_env is needed"),
        ({"address": USER, "password": PASSWORD}, "password is a secret and is not written here"),
        ({"address": USER, "smtp_host": "smtp.example.org", "smtp_security": "none"}, "on the loopback only"),
        ({"address": USER, "smtp_host": "smtp.example.org", "smtp_security": "ssl"}, "must be one of"),
        ({"address": USER, "smtp_host": "smtp.example.org", "ca_file": "/nowhere"}, "cannot be read"),
    ],
)
def test_a_section_that_cannot_be_used_is_told_at_once(values: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        Email(setup("email", values))
    assert said in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_nothing_can_be_sent_where_nothing_sends():
    async def story(bench: EmailBench, trial: Trial) -> None:
        values = {"address": USER, "password_env": "P", "imap_host": "127.0.0.1", "imap_port": bench.imap.port}
        channel = Email(setup("email", values | {"imap_security": "none"}, P=PASSWORD))
        await channel.start(trial.desk)
        assert channel.connection() is None
        found = await trial.send_over(channel, trial.part(Outbound("o", "email", ANN, (Part("x"),)), 0))
        assert isinstance(found, Offline)
        await channel.close()

    run(story)
