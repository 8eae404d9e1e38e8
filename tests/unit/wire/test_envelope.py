"""Envelopes: what is built parses, what is no envelope is refused, ids and confirmations keep their meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

import posthouse.wire
from posthouse.errors import BadEnvelope, WireError
from posthouse.mailbox.message import check_name
from posthouse.wire import envelope
from posthouse.wire._pb import pinch_pb2
from posthouse.wire.auth import confirm_bytes, is_signed
from posthouse.wire.envelope import (
    RELAY_ONLY,
    Envelope,
    MessageType,
    id_text,
    is_disguised,
    kind_of,
    parse,
    with_was_stored,
)

ROOT = Path(__file__).parents[3]
UUID = b"01890a5d-ac96-774b-bcce-b302099a8057"


def test_the_generated_code_is_made_from_the_protocol_as_it_is(tmp_path: Path):
    made = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protocol")]
    made += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(ROOT / "protocol" / "pinch.proto")]
    subprocess.run(made, check=True, timeout=60)
    committed = Path(posthouse.wire.__file__).parent / "_pb"
    for name in ("pinch_pb2.py", "pinch_pb2.pyi"):
        assert (tmp_path / name).read_text() == (committed / name).read_text(), f"make {name} again"


def test_the_types_are_those_of_the_protocol():
    listed = {f"MESSAGE_TYPE_{member.name}": int(member) for member in MessageType}
    assert listed == dict(pinch_pb2.MessageType.items())


def test_every_frame_that_is_built_parses_to_what_it_was_built_from():
    frames = [
        envelope.auth_challenge("host", bytes(32), 5, 10_005),
        envelope.auth_response(b"k" * 32, b"s" * 64, b"n" * 32),
        envelope.auth_result(True, assigned_address="a"),
        envelope.queue_status(3),
        envelope.queue_full("b", "the queue is full", UUID),
        envelope.rate_limited(1_000, "too fast"),
        envelope.encrypted_message("a", "b", UUID, 7, b"n" * 24, b"c", b"k" * 32),
        envelope.delivery_confirm("b", "a", UUID, 8, b"s" * 64),
        envelope.connection_request("a", "b", UUID, 9, "hello", b"k" * 32, 10),
        envelope.connection_response("b", "a", UUID, 9, True, b"k" * 32),
        envelope.block_notification("a", "b", 1),
        envelope.unblock_notification("a", "b", 1),
    ]
    parsed = [parse(frame) for frame in frames]
    assert all(p.version == 1 for p in parsed)
    # The payload is the one that the type promises.
    promised = {MessageType.MESSAGE: "encrypted"}
    assert [p.WhichOneof("payload") for p in parsed] == [promised.get(p.type, kind_of(p.type)) for p in parsed]
    assert parsed[0].auth_challenge.expires_at_ms == 10_005
    assert parsed[0].timestamp == 5
    assert parsed[4].message_id == UUID
    assert parsed[4].queue_full.recipient_address == "b"
    assert parsed[7].message_id == b""
    assert parsed[7].delivery_confirm.message_id == UUID
    assert parsed[7].delivery_confirm.state == "delivered"
    assert not parsed[7].delivery_confirm.was_stored


@given(st.binary(max_size=400))
def test_any_bytes_are_an_envelope_or_a_wire_error(data: bytes):
    try:
        parsed = parse(data)
    except WireError:
        return
    assert isinstance(parsed, Envelope)
    check_name("kind", kind_of(parsed.type))


@given(st.data())
def test_a_damaged_envelope_is_an_envelope_or_a_wire_error(data: st.DataObject):
    frame = bytearray(envelope.encrypted_message("a" * 60, "b" * 60, UUID, 7, b"n" * 24, b"c" * 40, b"k" * 32))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    try:
        parsed = parse(bytes(frame[:cut]))
    except WireError:
        return
    assert isinstance(parsed.from_address, str)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x12\x02\xff\xfe",  # a string that is no UTF-8
        b"\x12\xff\xff\xff\xff\x0f",  # announces 4 GiB
        b"\x0b" * 10_000,  # groups in groups
        b"\x00",
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes):
    with pytest.raises(BadEnvelope):
        parse(data)


def test_an_unknown_type_and_unknown_fields_pass_through():
    data = Envelope(version=1, type=99, to_address="b").SerializeToString() + b"\xfa\x07\x03abc"  # type: ignore[arg-type]
    parsed = parse(data)
    assert parsed.type == 99
    assert parsed.type not in RELAY_ONLY
    assert parsed.SerializeToString() == data


def test_only_the_relay_says_what_would_be_forged():
    assert {kind_of(t) for t in RELAY_ONLY} == {
        "auth_challenge",
        "auth_response",
        "auth_result",
        "queue_status",
        "queue_full",
        "rate_limited",
    }


def test_kinds_are_words_and_unknown_ones_numbers():
    assert kind_of(4) == "message"
    assert kind_of(MessageType.DELIVERY_CONFIRM) == "delivery_confirm"
    assert kind_of(0) == "unspecified"
    assert kind_of(99) == "type_99"
    assert kind_of(-1) == "type_-1"


def test_was_stored_is_set_and_the_signature_still_holds():
    key = SigningKey.generate()
    signature = key.sign(confirm_bytes(UUID, 8)).signature
    data = envelope.delivery_confirm("b", "a", UUID, 8, signature) + b"\xfa\x07\x03abc"
    marked = with_was_stored(data)
    before, after = parse(data), parse(marked)
    assert after.delivery_confirm.was_stored
    confirm = after.delivery_confirm
    assert is_signed(bytes(key.verify_key), confirm.signature, confirm_bytes(confirm.message_id, confirm.timestamp))
    before.delivery_confirm.was_stored = True
    assert before == after
    assert with_was_stored(marked) == marked
    assert marked.endswith(b"\xfa\x07\x03abc")


def test_only_a_confirmation_can_be_marked_as_stored():
    for data in (envelope.queue_status(1), b"\xff", b""):
        with pytest.raises(BadEnvelope):
            with_was_stored(data)


def test_an_id_that_is_text_is_that_text():
    assert id_text(UUID) == UUID.decode()
    assert id_text(b"") == ""
    assert id_text(b"x" * 128) == "x" * 128


def test_an_id_that_is_no_text_is_hex_and_a_long_one_a_hash():
    assert id_text(b"\0\1") == "hex:0001"
    assert id_text(b"a\nb") == "hex:610a62"
    assert id_text("ü".encode()) == "hex:c3bc"
    assert id_text(b"x" * 129).startswith("sha256:")
    assert id_text(b"\0" * 65_000).startswith("sha256:")


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_two_ids_never_have_one_text(one: bytes, two: bytes):
    if one:
        check_name("id", id_text(one))
    assert (id_text(one) == id_text(two)) == (one == two)
    # Nor does an id that spells the text of another.
    for spelt in (id_text(one).encode(),):
        assert (id_text(spelt) == id_text(one)) == (spelt == one)


@pytest.mark.parametrize(
    ("kind", "payload", "disguised"),
    [
        (MessageType.MESSAGE, "encrypted", False),
        (MessageType.MESSAGE, None, False),
        (MessageType.MESSAGE, "heartbeat", False),
        (MessageType.MESSAGE, "queue_full", True),
        (MessageType.MESSAGE, "delivery_confirm", True),
        (MessageType.HEARTBEAT, "block_notification", True),
        (99, "auth_result", True),
        (99, "encrypted", False),
        (MessageType.DELIVERY_CONFIRM, "delivery_confirm", False),
        (MessageType.DELIVERY_CONFIRM, "queue_status", True),
        (MessageType.QUEUE_FULL, "queue_full", False),
    ],
)
def test_a_payload_that_the_relay_acts_upon_under_another_type_is_disguised(
    kind: int, payload: str | None, disguised: bool
) -> None:
    made = Envelope(type=kind)  # type: ignore[arg-type]
    if payload is not None:
        getattr(made, payload).SetInParent()
    assert is_disguised(parse(made.SerializeToString())) is disguised
