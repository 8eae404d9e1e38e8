"""Direct messages on the wire, and what is refused there."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.errors import BadFrame, InvalidInput
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId
from posthouse.peer import frame
from posthouse.peer.frame import Direct
from posthouse.peer.signature import canonical, is_signed_by, sign, write

KEY = PrivateKey(b"k" * 32)
ME = str(PeerId.of(KEY.public))
WHOLE = Direct("funding_info", "t1", "o1", ME, {"txid": "ab", "vout": 1}, 1_700_000_000, "m1", 7, True, 1_700_086_400)


def body(message: Direct) -> bytes:
    data = frame.encode(message)
    assert frame.body_bytes(data[:4]) == len(data) - 4
    return data[4:]


def test_a_message_stands_on_the_wire_as_other_nodes_write_it() -> None:
    assert json.loads(body(WHOLE)) == {
        "type": "funding_info", "trade_id": "t1", "order_id": "o1", "from_peer": ME,
        "payload": {"txid": "ab", "vout": 1}, "timestamp": 1_700_000_000, "message_id": "m1", "sequence_num": 7,
        "requires_ack": True, "swap_timeout": 1_700_086_400,
    }  # fmt: skip
    assert set(json.loads(body(Direct("abort")))) == {
        "type", "trade_id", "order_id", "from_peer", "payload", "timestamp",
    }  # fmt: skip


def test_what_is_encoded_is_decoded_to_the_same() -> None:
    assert frame.decode(body(WHOLE)) == WHOLE


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(json_values.filter(lambda v: "\ud800" not in str(v)))
def test_any_payload_comes_through(payload: Any) -> None:
    try:
        data = body(WHOLE._replace(payload=payload))
    except InvalidInput:
        return
    assert frame.decode(data).payload == payload


@given(json_values, st.booleans())
def test_what_is_read_quickly_is_what_is_read_slowly(payload: Any, spaces: bool) -> None:
    text = json.dumps(payload, ensure_ascii=spaces, separators=(", ", ": ") if spaces else (",", ":"))
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    assert frame.loads(data) == json.loads(text)
    # A key twice, and a number that others would cut off, are found whichever way it is read.
    for wrong in (b'{"a":' + data + b',"a":1}', b"[" + data + b",9223372036854775808]"):
        with pytest.raises(BadFrame):
            frame.loads(wrong)


@pytest.mark.parametrize("text", ["0" * 40, "1,2345678901234567890", "[12345678901234567890]", "-9" * 30])
def test_texts_may_hold_what_numbers_may_not(text: str) -> None:
    assert frame.loads(json.dumps([text]).encode()) == [text]


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775808", "18446744073709551615"])
@pytest.mark.parametrize("around", ["{}", "[{}]", "[1,{}]", '{{"a":{}}}', '{{"a": {}}}', "[\n{}]"])
def test_a_number_of_more_than_63_bits_is_refused_wherever_it_stands(number: str, around: str) -> None:
    with pytest.raises(BadFrame, match="too large"):
        frame.loads(around.format(number).encode())


@given(json_values)
def test_the_canonical_form_is_the_one_that_is_described(payload: Any) -> None:
    message = WHOLE._replace(payload=payload)
    plain = frame.fields(message)
    plain.pop("signature", None)
    try:
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    except UnicodeEncodeError:
        return
    assert canonical(message) == b"posthouse-direct-v1\0" + text


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    try:
        frame.decode(data)
    except BadFrame:
        pass


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b'{"type":1}', b'{"type":"a","type":"b"}', b'{"payload":NaN}', b'{"payload":1e999}',
        b'{"payload":' + b"9" * 30 + b"}", b'{"payload":9223372036854775808}', b'{"sequence_num":-1}',
        b'{"sequence_num":1.0}', b'{"sequence_num":true}', b'{"requires_ack":1}', b'{"timestamp":"1"}',
        b'{"swap_timeout":9999999999999}', b'{"message_id":"' + b"x" * 129 + b'"}', b'{"trade_id":"a\\nb"}',
        b'{"trade_id":"\\u001b[31m"}', b'{"payload":"\\ud800"}', b'{"payload":"\xff"}',
        b'{"payload":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b'{"type":"a"} x',
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(BadFrame):
        frame.decode(text)


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert frame.decode(b'{"type":"abort","version":9,"payload":{"why":["a"]}}') == Direct(
        "abort", payload={"why": ["a"]}
    )


@pytest.mark.parametrize("size", [0, frame.BODY_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_is_too_large_is_refused_before_anything_is_read(size: int) -> None:
    with pytest.raises(BadFrame, match="frame of"):
        frame.body_bytes(size.to_bytes(4, "big"))


def test_a_megabyte_fits_and_one_byte_more_does_not() -> None:
    room = frame.BODY_BYTES_MAX - len(body(WHOLE._replace(payload="")))
    assert len(body(WHOLE._replace(payload="x" * room))) == frame.BODY_BYTES_MAX
    with pytest.raises(InvalidInput, match="at most"):
        frame.encode(WHOLE._replace(payload="x" * (room + 1)))


def test_an_acknowledgement_says_what_it_is_for() -> None:
    answer = frame.decode(body(frame.acknowledge(WHOLE, "other", False, "no such order", 5, "a1")))
    assert answer.type == "ack"
    assert (answer.message_id, answer.sequence_num, answer.requires_ack) == ("a1", 7, False)
    assert frame.acknowledged(answer) == frame.Ack("m1", False, "no such order")
    with pytest.raises(BadFrame, match="expected"):
        frame.acknowledged(WHOLE)
    with pytest.raises(BadFrame, match="neither"):
        frame.acknowledged(answer._replace(payload={"message_id": "m1", "success": "yes"}))


def test_ids_are_random_uuids() -> None:
    ids = [frame.new_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(str(uuid.UUID(id)) == id and uuid.UUID(id).version == 4 for id in ids)
    assert {uuid.UUID(id).variant for id in ids} == {uuid.RFC_4122}


# Signatures.


def test_a_signature_holds_through_the_wire_and_for_its_sender_only() -> None:
    signed = frame.decode(body(sign(WHOLE, KEY)))
    assert is_signed_by(signed, ME)
    other = str(PeerId.of(PrivateKey(b"o" * 32).public))
    assert not is_signed_by(signed, other)


@given(json_values, st.booleans())
def test_what_is_signed_is_written_once_and_read_as_it_was_meant(payload: Any, able: bool) -> None:
    message = WHOLE._replace(payload=payload, capabilities=("direct",) if able else ())
    signed, data = write(message, KEY)
    assert frame.decode(data) == signed == sign(message, KEY)
    assert signed._replace(signature="") == message
    assert is_signed_by(signed, ME)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "abort"}, {"trade_id": "t2"}, {"order_id": ""}, {"from_peer": "x"}, {"payload": {"txid": "ac"}},
        {"timestamp": 1}, {"message_id": "m2"}, {"sequence_num": 8}, {"requires_ack": False}, {"swap_timeout": 0},
    ],
)  # fmt: skip
def test_no_field_can_be_changed_under_a_signature(change: dict[str, Any]) -> None:
    assert not is_signed_by(sign(WHOLE, KEY)._replace(**change), ME)


@pytest.mark.parametrize("signature", ["", "x", "AAAA", "ä" * 88])
def test_what_is_no_signature_verifies_nothing(signature: str) -> None:
    assert not is_signed_by(WHOLE._replace(signature=signature), ME)


def test_the_canonical_form_is_sorted_and_has_no_spaces() -> None:
    message = Direct("abort", "t", payload={"b": "ü", "a": [1, None, True]}, timestamp=3)
    assert canonical(message) == (
        b"posthouse-direct-v1\0"
        + '{"from_peer":"","order_id":"","payload":{"a":[1,null,true],"b":"ü"},"timestamp":3,"trade_id":"t",'
        '"type":"abort"}'.encode()
    )


def test_a_fraction_cannot_be_signed() -> None:
    with pytest.raises(InvalidInput, match="fraction"):
        sign(WHOLE._replace(payload={"amount": [0.5]}), KEY)
