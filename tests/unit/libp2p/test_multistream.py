"""multistream-select: agreement, refusal, and bytes that are no negotiation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.libp2p.errors import MultistreamError, NotSupported
from posthouse.libp2p.multistream import GREETING, LINE_BYTES_MAX, PROPOSALS_MAX, Dialler, Listener, line

HELLO = line(GREETING)


def talk(dialler: Dialler, listener: Listener, size: int = 1_000) -> None:
    """Carry bytes both ways, in pieces of a size, until both have agreed."""
    while dialler.protocol is None or listener.protocol is None:
        for sender, taker in ((dialler, listener), (listener, dialler)):
            data = sender.take()
            for at in range(0, len(data), size):
                taker.receive(data[at : at + size])


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_the_first_protocol_that_both_speak_is_taken(size: int) -> None:
    dialler, listener = Dialler(["/a/2", "/a/1"]), Listener({"/a/1", "/b"}.__contains__)
    talk(dialler, listener, size)
    assert dialler.protocol == listener.protocol == "/a/1"


def test_the_lines_are_those_of_the_protocol() -> None:
    assert HELLO == b"\x13/multistream/1.0.0\n"
    assert Dialler(["/noise"]).take() == HELLO + b"\x07/noise\n"


def test_what_follows_the_negotiation_belongs_to_the_protocol() -> None:
    listener = Listener("/x".__eq__)
    assert listener.receive(HELLO + line("/x") + b"\xff\xffdata")
    assert listener.rest == b"\xff\xffdata"
    assert listener.take() == HELLO + line("/x")
    dialler = Dialler(["/x"])
    assert dialler.receive(HELLO + line("/x") + b"more")
    assert dialler.rest == b"more"


def test_a_dialler_that_gets_only_refusals_gives_up() -> None:
    dialler = Dialler(["/x", "/y"])
    dialler.take()
    assert not dialler.receive(HELLO + line("na"))
    assert dialler.take() == line("/y")
    with pytest.raises(NotSupported, match="/x, /y"):
        dialler.receive(line("na"))


def test_a_listener_does_not_answer_proposals_for_ever() -> None:
    listener = Listener("/x".__eq__)
    listener.receive(HELLO)
    for _ in range(PROPOSALS_MAX - 1):
        listener.receive(line("/y"))
    with pytest.raises(MultistreamError, match="proposals"):
        listener.receive(line("/y"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x80\x80\x80\x10",  # A line of four gigabytes.
        b"\xff" * 10,
        b"\x00",
        b"\x05/abcd",
        b"\x02\xff\n",
        line("/multistream/2.0.0"),
        line("ls"),
        HELLO + HELLO,
        HELLO + line("/other"),
    ],
)
def test_what_is_no_answer_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(MultistreamError):
        Dialler(["/x"]).receive(data)


@pytest.mark.parametrize("name", ["x" * LINE_BYTES_MAX, "a\nb"])
def test_names_that_cannot_be_sent_are_refused(name: str) -> None:
    with pytest.raises(MultistreamError):
        Dialler([name])


def test_no_protocol_is_no_negotiation() -> None:
    with pytest.raises(MultistreamError):
        Dialler([])


lines = st.sampled_from([HELLO, line("na"), line("/x"), line("/y"), line("ls"), b"\x00", b"\x80"]) | st.binary(
    max_size=9
)


@given(st.booleans(), st.lists(lines, max_size=80))
def test_any_bytes_end_in_agreement_or_a_named_error(dials: bool, pieces: list[bytes]) -> None:
    end = Dialler(["/x", "/z"]) if dials else Listener("/x".__eq__)
    sent = 0
    for piece in pieces:
        try:
            done = end.receive(piece)
        except (MultistreamError, NotSupported):
            return
        sent += len(end.take())
        if done:
            assert end.protocol == "/x" or (dials and end.protocol == "/z")
            return
        assert len(end.rest) <= LINE_BYTES_MAX + 2
    assert sent <= 2_048
