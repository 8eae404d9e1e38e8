"""A real IMAP server (pymap) and a real SMTP server (aiosmtpd), each in a thread of its own."""

from __future__ import annotations

import argparse
import asyncio
import imaplib
import logging
import ssl
import threading
from contextlib import AsyncExitStack
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from proxyprotocol.reader import ProxyProtocolReader
from pymap.backend.dict import DictBackend
from pymap.imap import IMAPServer
from pysasl.hashing import BuiltinHash
from tests.gateway.channels.setups import setup
from tests.port import free_port

from posthouse.gateway.channels.bench import Bench
from posthouse.gateway.channels.email import Email

USER, PASSWORD = "bot@example.org", "h0rse-battery-staple"
ANN = "ann@example.net"


class ImapServer:
    """pymap with an empty mailbox."""

    def __init__(self, tls: tuple[str, str] | None = None) -> None:
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = free_port()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> ImapServer:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        cert, key = self._tls or (None, None)
        args = argparse.Namespace(
            host="127.0.0.1", port=self.port, debug=False, cert=cert, key=key, tls=self._tls is not None,
            passlib_cfg=None, proxy_protocol=None, demo_data=False, demo_user=USER, demo_password=PASSWORD,
            inherited_sockets=None,
        )  # fmt: skip
        backend, config = await DictBackend.init(args, invalid_user_sleep=0.0, hash_context=BuiltinHash(rounds=1))
        config.apply_context()
        self._stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            await backend.start(stack)
            serve = ProxyProtocolReader(config.proxy_protocol).get_callback(IMAPServer(backend.login, config))
            self._clients: set[asyncio.StreamWriter] = set()

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self._clients.add(writer)
                await serve(reader, writer)

            server = await asyncio.start_server(connected, "127.0.0.1", self.port)
            self._ready.set()
            await self._stop.wait()
            server.close()
            self._abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _abort(self) -> None:
        while self._clients:
            self._clients.pop().transport.abort()

    def cut(self) -> None:
        """Break all connections."""
        self._loop.call_soon_threadsafe(self._abort)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


class Mailman:
    """Whoever looks into the mailbox with another program."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._imap = imaplib.IMAP4("127.0.0.1", port, timeout=30)
        if context is not None:
            self._imap.starttls(context)
        self._imap.login(USER, PASSWORD)

    def put(self, raw: bytes, mailbox: str = "INBOX") -> None:
        if mailbox != "INBOX":
            self._imap.create(mailbox)
        status, _ = self._imap.append(mailbox, "", "", raw)
        assert status == "OK"

    def uids(self, criteria: str) -> list[str]:
        self._imap.select("INBOX", readonly=False)
        _, data = self._imap.uid("SEARCH", criteria)
        return [word.decode() for line in data if line for word in line.split()]

    def unsee(self, uid: str) -> None:
        self._imap.select("INBOX", readonly=False)
        self._imap.uid("STORE", uid, "-FLAGS", "(\\Seen)")

    def leave(self) -> None:
        self._imap.shutdown()


class SmtpServer:
    """aiosmtpd; ``how`` says how it answers."""

    def __init__(self, bench: EmailBench, context: ssl.SSLContext | None = None) -> None:
        self._bench = bench
        self._loop = asyncio.get_running_loop()
        self.how = "ok"
        self.mails: list[EmailMessage] = []
        self.port = free_port()
        self._controller = Controller(
            self, hostname="127.0.0.1", port=self.port, authenticator=self._authenticate, auth_required=True,
            auth_require_tls=context is not None, tls_context=context, require_starttls=context is not None,
            ready_timeout=30,
        )  # fmt: skip
        self._controller.start()

    def stop(self) -> None:
        """Stop, if it runs."""
        if not self._controller.loop.is_closed():
            self._controller.stop()

    def _authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        good = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=good, handled=False)

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if self.how == "permanent":
            return f"550 5.1.1 no such user, and your password is {PASSWORD}"
        if self.how == "transient":
            return "451 4.7.1 greylisted, try again"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.how == "full":
            return "452 4.2.2 mailbox full"
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self._loop.call_soon_threadsafe(self._bench.changes.ring)
        if self.how == "silent":
            server.transport.abort()
        return "250 OK"


class EmailBench(Bench):
    """Ann writes to the bot, and reads what it answers."""

    secrets = (PASSWORD,)
    lacks = frozenset({"rate_limited", "cut"})
    to = ANN

    def __init__(self, values: dict[str, Any] | None = None, tls: tuple[str, str] | None = None) -> None:
        super().__init__()
        self._values = values or {}
        self._tls = tls
        self._count = 0

    async def open(self) -> None:
        for server in ("mail.log", "pymap"):
            # What the servers log of what they were told is not the channel's doing.
            logging.getLogger(server).propagate = False
        serving = trusting = None
        if self._tls is not None:
            serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            serving.load_cert_chain(*self._tls)
            trusting = ssl._create_unverified_context()
        self.imap = await asyncio.to_thread(ImapServer(self._tls).start)
        self.smtp = SmtpServer(self, serving)
        self.mailman = await asyncio.to_thread(Mailman, self.imap.port, trusting)

    async def close(self) -> None:
        self.mailman.leave()
        await asyncio.to_thread(self.imap.stop)
        await asyncio.to_thread(self.smtp.stop)

    def channel(self) -> Email:
        security = "none" if self._tls is None else "starttls"
        values = {
            "address": USER, "password_env": "PASSWORD", "imap_host": "127.0.0.1", "imap_port": self.imap.port,
            "smtp_host": "127.0.0.1", "smtp_port": self.smtp.port, "imap_security": security,
            "smtp_security": security, "reconnect_s": 0.05, "timeout_s": 20, **self._values,
        }  # fmt: skip
        return Email(setup("email", values, PASSWORD=PASSWORD))

    def mail(self, text: str, **headers: str) -> EmailMessage:
        """A mail of Ann's."""
        self._count += 1
        mail = EmailMessage()
        given = {
            "From": f"Ann Other <{ANN}>", "To": USER, "Subject": "Re: question",
            "Message-ID": f"<m{self._count}@example.net>", "X-Number": str(self._count), **headers,
        }  # fmt: skip
        for name, value in given.items():
            if value:
                mail[name] = value
        mail.set_content(text)
        return mail

    async def put(self, mail: EmailMessage | bytes, mailbox: str = "INBOX") -> None:
        """A mail arrives."""
        await asyncio.to_thread(self.mailman.put, bytes(mail), mailbox)

    async def bring(self, text: str) -> None:
        await self.put(self.mail(text))

    async def bring_again(self) -> None:
        for uid in await asyncio.to_thread(self.mailman.uids, f"HEADER X-Number {self._count}"):
            await asyncio.to_thread(self.mailman.unsee, uid)

    def told(self, text: str) -> bool:
        return bool(self.mailman.uids(f"SEEN HEADER X-Number {self._count}"))

    def arrived(self) -> list[str]:
        return [str(mail.get_content()).strip() for mail in self.smtp.mails]

    def answer(self, how: str) -> None:
        self.smtp.how = how
