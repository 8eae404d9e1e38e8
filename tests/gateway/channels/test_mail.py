"""Mails as messages and back, without a server: what people and their programs write."""

from __future__ import annotations

import email
import time
from email import policy
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.errors import InvalidInput
from posthouse.gateway.channel import Permanent, Sending
from posthouse.gateway.channels.mail import (
    TEXT_CHARACTERS_MAX,
    Place,
    address_of,
    inbound_of,
    mail_of,
    plain_of,
    topic_of,
)
from posthouse.gateway.letter import Inbound, Media, Outbound, Part

PLACE = Place("imap.example.org", "INBOX/Ännderung", 17, 42)


def read(raw: bytes, *, whole: bool = True, automatic: bool = False) -> Inbound | None:
    return inbound_of(raw, PLACE, "email", "default", "default", whole=whole, automatic=automatic)


def taken(raw: bytes, **options: bool) -> Inbound:
    found = read(raw, **options)
    assert found is not None
    found.post()
    return found


def mail(text: str = "hello", **headers: str) -> EmailMessage:
    made = EmailMessage()
    given = {"From": "Ann <Ann@Example.net>", "Subject": "question", "Message-ID": "<m1@example.net>"}
    for name, value in (given | {key.replace("_", "-"): value for key, value in headers.items()}).items():
        if value:
            made[name] = value
    made.set_content(text)
    return made


def test_a_mail_has_all_that_an_answer_needs():
    found = taken(bytes(mail("grüß dich\n", Subject="AW: Re[2]: Frage", In_Reply_To="<m0@x.org>")))
    assert (found.id, found.sender, found.conversation) == ("<m1@example.net>", "ann@example.net", "ann@example.net")
    assert (found.text, found.thread, found.reply_to) == ("grüß dich", "Frage", "<m0@x.org>")
    assert found.metadata["name"] == "Ann"


def test_an_answer_goes_where_the_mail_asks_for():
    found = taken(bytes(mail(Reply_To="desk@example.com")))
    assert (found.sender, found.conversation) == ("ann@example.net", "desk@example.com")


def test_a_mail_without_a_usable_id_has_that_of_its_place():
    for id in (b"", b"no id", b"<>", b"<a b@c>", b"<\xff@x>", b"<@"):
        raw = b"From: ann@example.net\r\nMessage-ID: " + id + b"\r\n\r\nhello"
        assert taken(raw).id == "default:INBOX/Ännderung:17:42"


def test_attachments_are_named_by_where_they_are():
    made = mail("see")
    made.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="a.png")
    found = taken(bytes(made))
    url = "imap://imap.example.org/INBOX/%C3%84nnderung;UIDVALIDITY=17/;UID=42/;SECTION=2"
    assert found.media == (Media(url, "image/png", "a.png"),)
    assert found.text == "see"


def test_a_mail_that_is_only_html_is_read_as_text():
    made = EmailMessage()
    made["From"] = "ann@example.net"
    page = "<head><title>x</title></head><style>p{}</style><p>one <b>two</b></p><p>three&nbsp;&amp; four<br>five</p>"
    made.set_content(page, subtype="html")
    assert taken(bytes(made)).text == "one two\n\nthree & four\nfive"
    assert plain_of("<script>alert(1)</script>safe") == "safe"


@pytest.mark.parametrize(
    "headers",
    [
        {"Auto_Submitted": "auto-replied"},
        {"Auto_Submitted": "auto-generated; owner=x"},
        {"Precedence": "bulk"},
        {"List_Id": "<list.example.org>"},
        {"Return_Path": "<>"},
    ],
)
def test_what_no_person_wrote_is_not_answered(headers: dict[str, str]):
    assert read(bytes(mail(**headers))) is None
    assert read(bytes(mail(**headers)), automatic=True) is not None


def test_a_mail_that_nobody_could_answer_is_no_message():
    for sender in ("", "undisclosed", "<@>", "a@b@c d"):
        with pytest.raises(InvalidInput):
            read(bytes(mail(From=sender)))


def test_a_mail_that_is_too_large_is_handed_over_by_its_header():
    found = taken(bytes(mail("x" * 100)).partition(b"\n\n")[0] + b"\n\n", whole=False)
    assert found.text == ""
    assert found.metadata["oversize"] is True
    long = taken(bytes(mail("x" * (TEXT_CHARACTERS_MAX + 1))))
    assert len(long.text) == TEXT_CHARACTERS_MAX
    assert long.metadata["cut"] is True


@pytest.mark.parametrize(
    "content",
    [
        b"Content-Type: text/plain; charset=klingon\r\n\r\nn\xfcq\xeeneH",
        b"Content-Type: text/plain; charset=utf-16\r\n\r\n\x00",
        b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\n!!!!",
        b"Content-Type: multipart/mixed\r\n\r\nno boundary",
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n",
        b"Content-Type: \xff\xfe\r\n\r\nhello",
        b"Subject: =?utf-8?b?/////?=\r\n\r\nhello",
        b"Subject: a\x00b\x1b[31m\r\n\r\nhello",
        b"To: " + b"a@b," * 5_000 + b"\r\n\r\nhello",
        b"\r\n" + b"x" * 10 + b"\xed\xa0\x80",
    ],
)
def test_odd_mails_are_read_as_well_as_can_be(content: bytes):
    assert taken(b"From: ann@example.net\r\n" + content).conversation == "ann@example.net"


def test_no_header_can_be_made_to_take_long():
    many = b", ".join([b"=?utf-8?b?YQ==?= <a@b.org>"] * 30_000)
    for name in (b"To", b"From", b"Subject", b"Message-ID", b"Content-Type", b"Reply-To", b"In-Reply-To"):
        begun_s = time.process_time()
        raw = b"From: ann@example.net\r\n" if name != b"From" else b""
        found = taken(raw + name + b": " + many + b"\r\n\r\nhello")
        assert found.text == "hello"
        assert time.process_time() - begun_s < 2, name


def test_parts_of_parts_are_found_and_attached_mails_are_attachments():
    inner = mail("inner")
    made = mail("outer")
    made.add_alternative("<p>outer</p>", subtype="html")
    made.add_attachment(inner)
    made.add_attachment("a;b", subtype="csv", filename="=?utf-8?q?gr=C3=BC=C3=9Fe?=.csv")
    found = taken(bytes(made))
    assert found.text == "outer"
    assert [(medium.url.rpartition("=")[2], medium.type) for medium in found.media] == [
        ("2", "message/rfc822"), ("3", "text/csv")
    ]  # fmt: skip


@given(st.binary(max_size=400))
def test_whatever_the_bytes_are_they_are_a_mail_or_it_has_no_sender(raw: bytes):
    try:
        found = read(b"From: ann@example.net\r\n" + raw)
    except InvalidInput as error:
        assert str(error) == "a mail without a sender"  # noqa: PT017
        return
    assert found is None or found.post()


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("Re: a", "a"),
        ("re:RE: Fwd: a", "a"),
        ("AW[2]: a", "a"),
        ("Really: a", "Really: a"),
        ("", ""),
        ("a\r\n b", "a b"),
    ],
)
def test_the_topic_is_the_subject_without_what_replies_add(subject: str, topic: str):
    assert topic_of(subject) == topic


def test_only_plain_addresses_are_addresses():
    assert address_of("Ann Other <Ann@Example.NET>") == "ann@example.net"
    for text in (
        "",
        "ann",
        "ann@",
        "@example.net",
        "a@b, c@d",
        "a b@c.d",
        "ann@exämple.net",
        "a@-b",
        "a@b\r\nBcc: x@y",
    ):
        assert address_of(text) is None, text


# Out.


def sent(*parts: Part, index: int = 0, name: str = "", **fields: Any) -> EmailMessage:
    outbound = Outbound("o1", "email", fields.pop("to", "ann@example.net"), parts, **fields)
    made = mail_of(Sending(outbound, index, "key", 1), "bot@example.org", name, "Message", 1_800_000_000)
    again = email.message_from_bytes(made.as_bytes(), policy=policy.default)
    assert isinstance(again, EmailMessage)
    return again


def test_an_answer_belongs_to_what_it_answers():
    found = sent(Part("grüße"), thread="Frage", reply_to="<m1@example.net>", name="The Böt")
    assert found["Subject"] == "Re: Frage"
    assert found["In-Reply-To"] == found["References"] == "<m1@example.net>"
    assert found["Auto-Submitted"] == "auto-replied"
    assert found["From"] == "The Böt <bot@example.org>"
    assert found.get_content().strip() == "grüße"
    assert found["Message-ID"] == sent(Part("grüße"))["Message-ID"]


def test_what_answers_nothing_says_so():
    found = sent(Part("news"), reply_to="default:INBOX:1:2", metadata={"subject": "Weekly\r\nBcc: x@y.z"})
    assert found["Subject"] == "Weekly Bcc: x@y.z"
    assert found["Bcc"] is None
    assert found["In-Reply-To"] is None
    assert found["Auto-Submitted"] == "auto-generated"
    assert sent(Part("news"))["Subject"] == "Message"


def test_media_are_links():
    found = sent(Part("see", (Media("https://example.org/a.png", "image/png", "a.png"),)))
    assert found.get_content().split() == ["see", "a.png:", "https://example.org/a.png"]


@pytest.mark.parametrize("to", ["ann", "a@b, c@d", "ann@exämple.net", "Ann"])
def test_a_target_that_is_no_address_is_told_at_once(to: str):
    with pytest.raises(Permanent, match="no mail address"):
        sent(Part("x"), to=to)
    with pytest.raises(Permanent):
        sent(Part(extra={"a": 1}))
