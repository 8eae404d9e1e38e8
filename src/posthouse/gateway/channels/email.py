"""The channel ``email``: a mailbox over IMAP, and answers over SMTP.

In: unread mails, each marked as seen when the message is durable. Out: one mail for each part.
A server that was given a whole mail and did not answer may have sent it: that is unclear, and is looked up in the
mailbox of sent mails, where there is one. Passwords cross the network only inside of TLS, or on the loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time

import aiosmtplib

from ...errors import InvalidInput
from ...settings import Kind, Setting
from ..channel import Offline, Permanent, Reconciled, Sending, Sent, Setup, Transient, Unclear
from .account import Account, Backoff, Lost
from .imap import Imap, ImapError
from .mail import Place, address_of, inbound_of, mail_of, message_id_of

log = logging.getLogger("posthouse.gateway")

_SECURITY = ("tls", "starttls", "none")
OPTIONS: tuple[Setting, ...] = (
    Setting("address", Kind.TEXT, None, "The account's mail address.", derived="must be given"),
    Setting("name", Kind.TEXT, None, "The name beside it in mails that are sent.", derived="none"),
    Setting("username", Kind.TEXT, None, "The user at both servers.", derived="the address"),
    Setting("password", Kind.TEXT, None, "The password at both servers.", derived="none", secret=True),
    Setting("imap_host", Kind.TEXT, None, "The server with the mailbox.", derived="none: nothing is received"),
    Setting("imap_port", Kind.WHOLE, 993, "Its port.", least=1, most=65_535),
    Setting(
        "imap_security", Kind.CHOICE, "tls", "How the connection is secured; `none` only on the loopback.",
        choices=_SECURITY,
    ),
    Setting("mailbox", Kind.TEXT, "INBOX", "The mailbox whose unread mails are taken.", pattern=r"[ -~]{1,200}"),
    Setting(
        "sent_mailbox", Kind.TEXT, None,
        "The mailbox in which the server keeps what was sent: there an unclear send is looked up.",
        derived="none: it stays unclear", pattern=r"[ -~]{1,200}",
    ),
    Setting("smtp_host", Kind.TEXT, None, "The server that sends.", derived="none: nothing is sent"),
    Setting("smtp_port", Kind.WHOLE, 465, "Its port.", least=1, most=65_535),
    Setting(
        "smtp_security", Kind.CHOICE, "tls", "How the connection is secured; `none` only on the loopback.",
        choices=_SECURITY,
    ),
    Setting(
        "ca_file", Kind.PATH, None, "Certificates (PEM) that the servers' own are checked with.",
        derived="those of the system",
    ),
    Setting("subject", Kind.TEXT, "Message", "The subject of mails that answer none."),
    Setting(
        "automatic", Kind.SWITCH, False,
        "Whether mails are handed over that no person wrote: lists, notices of absence, bounces.",
    ),
    Setting(
        "size_bytes_max", Kind.WHOLE, 10_485_760,
        "Of a mail that is larger, only the header is fetched; the rest stays in the mailbox.",
        least=1_024, most=1 << 30,
    ),
    Setting(
        "poll_s", Kind.SECONDS, 300.0, "How often the mailbox is looked into without news.", least=0.05, most=1_740
    ),
    Setting("timeout_s", Kind.SECONDS, 30.0, "How long an answer of a server may take.", least=0.1, most=600),
)  # fmt: skip
AWAY_S = 30.0
"""When a send is tried again after a server could not be reached."""
FIRST_WAIT_S = 0.5
"""The first wait for news after a mail came; each that brings none is followed by one of twice the length."""
HEADER_BYTES_MAX = 1_048_576


def make(setup: Setup) -> Email:
    """The factory."""
    return Email(setup)


class Email(Account):
    """One mail address."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, OPTIONS)
        options = self.options
        address = address_of(options.text("address"))
        if address is None:
            raise options.wrong("address", "must be a mail address such as bot@example.org")
        self._address = address
        self._user = options.text_or_none("username") or address
        self._password = options.secret_or_none("password")
        self._imap, self._smtp = options.text_or_none("imap_host"), options.text_or_none("smtp_host")
        if self._imap is None and self._smtp is None:
            raise options.wrong("imap_host or smtp_host", "is needed")
        if self._imap is not None and self._password is None:
            raise options.wrong("password_file or password_env", "is needed to receive")
        for host, name in ((self._imap, "imap_security"), (self._smtp, "smtp_security")):
            if host is not None and options.text(name) == "none" and not _is_loopback(host):
                raise options.wrong(name, "may be none on the loopback only: a password would be seen")
        self._context = ssl.create_default_context()
        if options.text_or_none("ca_file") is not None:
            try:
                self._context = ssl.create_default_context(cafile=options.text("ca_file"))
            except OSError as error:
                raise options.wrong("ca_file", f"cannot be read: {error.strerror or 'no certificates'}") from None

    def connection(self) -> Email | None:
        """Itself: each mail makes its own connection."""
        return self if self.is_up and self._smtp is not None else None

    async def open(self) -> None:
        """There is no connection to wait for when sending: it is up at once. Receiving connects by itself."""
        if self._imap is not None:
            self.spawn(self._watch())
        self.came_up("smtp" if self._smtp is not None else "imap")

    # In.

    async def _watch(self) -> None:
        pauses = Backoff(self.options.seconds("reconnect_s"))
        while True:
            try:
                await self._read_mailbox(pauses)
            except (Lost, ImapError) as error:
                log.warning("%r: the mailbox cannot be read: %s", self, self.scrub(error))
            except Exception as error:
                log.error("%r: reading the mailbox failed: %s: %s", self, type(error).__name__, self.scrub(error))
            await asyncio.sleep(pauses.next_s())

    async def _read_mailbox(self, pauses: Backoff) -> None:
        """One connection from its beginning to its end."""
        mailbox = self.options.text("mailbox")
        imap = await self._connected()
        try:
            validity = await imap.select(mailbox)
            pauses.worked()
            most_s = self.options.seconds("poll_s")
            wait_s = min(FIRST_WAIT_S, most_s)
            while True:
                found = await imap.search("UNSEEN")
                for uid in found:
                    await self._take(imap, Place(self._imap or "", mailbox, validity, uid))
                # Not every server tells of what came just before it was asked to: at first it is asked more often.
                wait_s = min(FIRST_WAIT_S if found else 2 * wait_s, most_s)
                await imap.wait(wait_s)
        finally:
            imap.abort()

    async def _connected(self) -> Imap:
        assert self._imap is not None
        assert self._password is not None
        options = self.options
        imap = await Imap.connect(
            self._imap,
            options.whole("imap_port"),
            options.text("imap_security"),
            self._context,
            options.seconds("timeout_s"),
            options.whole("size_bytes_max") + HEADER_BYTES_MAX,
        )
        try:
            await imap.login(self._user, self._password.reveal())
        except BaseException:
            imap.abort()
            raise
        return imap

    async def _take(self, imap: Imap, place: Place) -> None:
        """Hand a mail over, and mark it; one that nobody can read is marked for people."""
        size_bytes = await imap.size_bytes(place.uid)
        if size_bytes is None:
            return
        whole = size_bytes <= self.options.whole("size_bytes_max")
        raw = await imap.fetch(place.uid, "" if whole else "HEADER")
        if raw is None:
            return
        flags = ["\\Seen"]
        try:
            automatic = self.options.switch("automatic")
            # In a thread: a mail may be made so that reading it takes long.
            inbound = await asyncio.to_thread(
                inbound_of, raw, place, self.kind, self.account, self.tenant, whole=whole, automatic=automatic
            )
        except Exception as error:
            # Mails are written by everybody: whatever is wrong with one, the next is read.
            told = self.scrub(error) if isinstance(error, InvalidInput) else type(error).__name__
            log.warning("%r: the mail %d cannot be read and is flagged: %s", self, place.uid, told)
            await imap.mark(place.uid, "\\Seen", "\\Flagged")
            return
        if inbound is None:
            log.info("%r: the mail %d is an automatic one and is not taken", self, place.uid)
        elif await self.keep(inbound) is None:
            flags.append("\\Flagged")
        await imap.mark(place.uid, *flags)

    # Out.

    async def send(self, sending: Sending) -> Sent:
        """One mail."""
        if not self.is_up or self._smtp is None:
            raise Offline("nothing is sent from here")
        options = self.options
        mail = mail_of(sending, self._address, options.text_or_none("name") or "", options.text("subject"), time.time())
        client = aiosmtplib.SMTP(
            hostname=self._smtp,
            port=options.whole("smtp_port"),
            use_tls=options.text("smtp_security") == "tls",
            start_tls=options.text("smtp_security") == "starttls",
            tls_context=None if options.text("smtp_security") == "none" else self._context,
            local_hostname=self._address.partition("@")[2],
            timeout=options.seconds("timeout_s"),
        )
        try:
            await self._opened(client)
            await self._written(client, str(mail["To"]), mail.as_bytes())
        finally:
            client.close()
        return Sent(str(mail["Message-ID"]))

    async def _opened(self, client: aiosmtplib.SMTP) -> None:
        try:
            await client.connect()
            if self._password is not None:
                await client.login(self._user, self._password.reveal())
        except aiosmtplib.SMTPAuthenticationError as error:
            # The account's trouble, not the mail's: it waits until somebody sees to it.
            log.error("%r: the server does not accept user and password (%d)", self, error.code)
            raise Offline(f"the server does not accept user and password ({error.code})", AWAY_S) from None
        except aiosmtplib.SMTPResponseException as error:
            raise Offline(f"the server answered {error.code}", AWAY_S) from None
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            raise Offline(f"cannot connect: {type(error).__name__}", AWAY_S) from None

    async def _written(self, client: aiosmtplib.SMTP, to: str, data: bytes) -> None:
        started = False
        try:
            await client.mail(self._address)
            await client.rcpt(to)
            started = True
            await client.data(data)
        except aiosmtplib.SMTPResponseException as error:
            told = self.scrub(f"the server answered {error.code} {error.message}", 300)
            raise (Permanent(told) if 500 <= error.code < 600 else Transient(told)) from None
        except (aiosmtplib.SMTPException, OSError) as error:
            told = f"the connection ended before the answer came: {type(error).__name__}"
            raise (Unclear(told) if started else Transient(told)) from None

    async def reconcile(self, sending: Sending) -> Reconciled:
        """Look for it among what was sent. That it is not there proves nothing."""
        mailbox = self.options.text_or_none("sent_mailbox")
        if self._imap is None or mailbox is None:
            return Reconciled.UNKNOWN
        id = message_id_of(sending.key, self._address.partition("@")[2])
        imap = await self._connected()
        try:
            await imap.select(mailbox, read_only=True)
            found = await imap.search(f'HEADER Message-ID "{id}"')
        finally:
            await imap.close()
        return Reconciled.SENT if found else Reconciled.UNKNOWN


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
