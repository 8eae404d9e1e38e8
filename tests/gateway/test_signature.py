"""Signatures of webhooks, beside another implementation of the same specification."""

from __future__ import annotations

import base64
import datetime
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from posthouse.errors import BadSignature, ConfigError
from posthouse.gateway.signature import ID, SIGNATURE, TIMESTAMP, Key, signed, verified

TEXT = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(range(32, 64))).decode()
IDS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(id=IDS, body=st.text(max_size=200))
def test_what_we_sign_another_implementation_verifies(id: str, body: str):
    now_s = int(time.time())
    headers = signed([Key(TEXT)], id, now_s, body.encode())
    Webhook(TEXT).verify(body.encode(), headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(body.encode(), headers, json_parse=False)


@given(id=IDS, body=st.text(max_size=200))
def test_what_another_implementation_signs_we_verify(id: str, body: str):
    now = datetime.datetime.now(datetime.UTC)
    headers = {
        "Webhook-Id": id,
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": Webhook(TEXT).sign(id, now, body),
    }
    assert verified([Key(OTHER), Key(TEXT)], headers, body.encode(), now.timestamp()) == id
    with pytest.raises(BadSignature, match="no signature"):
        verified([Key(OTHER)], headers, body.encode(), now.timestamp())


def test_any_change_and_any_age_is_refused():
    now_s = 1_800_000_000
    keys, body = [Key(TEXT)], b'{"text":"hello"}'
    headers = signed(keys, "msg_1", now_s, body)
    assert verified(keys, headers, body, now_s) == "msg_1"
    assert verified(keys, headers, body, now_s + 299) == "msg_1"
    for name, value in ((ID, "msg_2"), (TIMESTAMP, str(now_s + 1)), (SIGNATURE, "v1,AAAA")):
        with pytest.raises(BadSignature):
            verified(keys, headers | {name: value}, body, now_s)
        with pytest.raises(BadSignature, match="must all be there"):
            verified(keys, {n: v for n, v in headers.items() if n != name}, body, now_s)
    with pytest.raises(BadSignature, match="no signature"):
        verified(keys, headers, body + b" ", now_s)
    for late_s in (301, -301):
        with pytest.raises(BadSignature, match="clock"):
            verified(keys, headers, body, now_s + late_s)


@pytest.mark.parametrize(
    "signature", ["v1", "v1,", "v1,!!!!", "v1a,AAAA", "v2,AAAA v1,=", ",", "v1,\x00", "v1,Ä", "v1,AAAA " * 5_000]
)
def test_signatures_that_are_none_are_refused(signature: str):
    headers = {ID: "msg_1", TIMESTAMP: "1800000000", SIGNATURE: signature}
    with pytest.raises(BadSignature):
        verified([Key(TEXT)], headers, b"", 1_800_000_000)


@pytest.mark.parametrize("stamp", ["nan", "inf", "1e9", "-1", "٣", "9" * 5_000, "1800000000.5"])
def test_times_that_are_none_are_refused(stamp: str):
    headers = signed([Key(TEXT)], "msg_1", 1_800_000_000, b"") | {TIMESTAMP: stamp}
    with pytest.raises(BadSignature):
        verified([Key(TEXT)], headers, b"", 1_800_000_000)


def test_while_a_key_is_changed_both_are_taken():
    headers = signed([Key(TEXT), Key(OTHER)], "msg_1", 1_800_000_000, b"x")
    assert headers[SIGNATURE].count("v1,") == 2
    for key in (TEXT, OTHER):
        assert verified([Key(key)], headers, b"x", 1_800_000_000) == "msg_1"


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", "secret", "whsec_" + "A" * 400, "whsec_ÄÄ"])
def test_a_key_that_is_none_is_refused_and_not_shown(text: str):
    with pytest.raises(ConfigError) as caught:
        Key(text)
    assert text in ("", "whsec_") or text not in str(caught.value)
    assert base64.b64encode(bytes(range(32))).decode() not in repr(Key(TEXT))
