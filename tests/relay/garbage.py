"""What no client should send: requests, frames and envelopes, right, bent and made of nothing.

All chance comes from one ``random.Random``: that of a seed, or one that hypothesis draws and shrinks.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from posthouse.wire.envelope import Envelope, MessageType

LENGTHS = (0, 1, 2, 125, 126, 127, 65_535, 65_536, 65_537, 131_072, 131_073, 2**31, 2**32 + 1, 2**62, 2**63, 2**64 - 1)
CLOSE_CODES = (0, 999, 1000, 1001, 1004, 1005, 1006, 1008, 1011, 1015, 1016, 2_999, 3_000, 4_999, 5_000, 65_535)
TEXTS = (
    "",
    "x",
    "pinch:",
    "pinch:@",
    "pinch:1@relay.test",
    "@",
    "\0",
    "é" * 200,
    "x" * 3_000,
    "\u202e<b>'; --",
    "a b\n",
)
IDS = (b"", b"m", b"hex:00", b"confirm:m", b"relay:1", bytes(64), bytes(65), b"\xff" * 129, b"i" * 128, b"i" * 5_000)
_PAYLOADS = [field.name for field in Envelope.DESCRIPTOR.oneofs_by_name["payload"].fields]


class Garbage:
    """Makes it."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self._made = 0

    def bytes(self, size_max: int) -> bytes:
        return self.random.randbytes(self.random.randint(0, size_max))

    def bend(self, data: bytes) -> bytes:
        """The same with some bytes changed, cut off, doubled or put in."""
        bent = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randint(0, max(len(bent) - 1, 0))
            match self.random.randint(0, 4):
                case 0 if bent:
                    bent[at] = self.random.randint(0, 255)
                case 1:
                    del bent[at:]
                case 2:
                    bent[at:at] = self.bytes(8)
                case 3:
                    bent[at:at] = bent[at : at + 40]
                case _:
                    del bent[at : at + self.random.randint(1, 9)]
        return bytes(bent)

    # Envelopes.

    def envelope(self, sender: str, others: Sequence[str]) -> bytes:
        """An envelope in which anything may be anything, though more often it is nearly right."""
        pick = self.random.choice
        made = Envelope(version=self.random.choice((0, 1, 1, 1, 2**32 - 1)))
        made.from_address = pick((sender, sender, sender, pick(others), pick(TEXTS)))
        made.to_address = pick((sender, pick(others), pick(others), pick(TEXTS), pick(others).replace("1", "2")))
        kind: int = pick((4, 4, 5, 5, self.random.randint(0, 16), 99, -1, 2**31 - 1, -(2**31)))
        made.type = kind  # type: ignore[assignment]
        made.message_id = pick((*IDS, self.unique(), self.unique()))
        made.timestamp = pick((0, 1, -1, 2**63 - 1, -(2**63)))
        usual = {
            MessageType.MESSAGE: "encrypted",
            MessageType.DELIVERY_CONFIRM: "delivery_confirm",
            MessageType.BLOCK_NOTIFICATION: "block_notification",
            MessageType.UNBLOCK_NOTIFICATION: "unblock_notification",
        }.get(kind)  # type: ignore[call-overload]
        name = usual if usual is not None and self.random.random() < 0.7 else pick((*_PAYLOADS, None))
        if name is not None:
            self._fill(getattr(made, name), others)
        data = made.SerializeToString()
        match self.random.randint(0, 9):
            case 0:
                data = self.bend(data)
            case 1:
                # Fields that nobody knows, nested deeper than anybody reads.
                data += b"\x93\x3f" * self.random.randint(1, 200)
            case 2:
                data += data
        return data

    def _fill(self, payload: Any, others: Sequence[str]) -> None:
        payload.SetInParent()
        for field in payload.DESCRIPTOR.fields:
            if self.random.random() < 0.2:
                continue
            if field.type == field.TYPE_BYTES:
                value: Any = self.random.choice((*IDS, self.bytes(64)))
            elif field.type == field.TYPE_STRING:
                value = self.random.choice((*TEXTS, *others))
            elif field.type == field.TYPE_BOOL:
                value = self.random.random() < 0.5
            else:
                value = self.random.choice((0, 1, 2**31 - 1))
            setattr(payload, field.name, value)

    def unique(self) -> bytes:
        """An id that was not there before."""
        self._made += 1
        return f"{self._made}-{self.random.getrandbits(64):x}".encode()

    # Frames.

    def frame(self, payload: bytes) -> bytes:
        """A frame: mostly as it should be, else with something that no client may send."""
        first, bit, form, announced = 0x82, 0x80, -1, len(payload)
        match self.random.randint(0, 19):
            case 0:
                first = self.random.randint(0, 255)
            case 1:
                first = self.random.choice((0x00, 0x01, 0x02, 0x80, 0x81, 0x88, 0x89, 0x8A, 0x08, 0x09, 0x83, 0x8F))
            case 2:
                first |= self.random.choice((0x10, 0x20, 0x40, 0x70))
            case 3:
                bit = 0
            case 4:
                form = self.random.choice((0, 126, 127))
            case 5:
                announced = self.random.choice(LENGTHS)
            case 6:
                return self.fragments(payload)
            case 7:
                return self.close()
            case 8:
                return self._encode(0x89, bit, -1, 5, b"ping!")
            case 9:
                return self._encode(0x8A, bit, -1, 8, self.random.randbytes(8))
        return self._encode(first, bit, form, announced, payload)

    def fragments(self, payload: bytes) -> bytes:
        """A message in parts, with control frames between, and perhaps one part too few or too many."""
        count = self.random.randint(1, 6)
        cuts = sorted(self.random.randint(0, len(payload)) for _ in range(count))
        parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        data = b""
        for n, part in enumerate(parts):
            last = n + 1 == len(parts)
            first = (0 if n else self.random.choice((1, 2))) | (0x80 if last else 0)
            if self.random.random() < 0.05:
                first ^= self.random.choice((0x80, 0x01, 0x02))
            data += self._encode(first, 0x80, -1, len(part), part)
            if self.random.random() < 0.3:
                data += self._encode(0x89, 0x80, -1, 1, b"?")
        return data

    def close(self) -> bytes:
        """A close frame, with any code and any reason."""
        reason = self.random.choice((b"", b"bye", b"\xff\xfe", b"x" * 123, b"x" * 124))
        payload = struct.pack(">H", self.random.choice(CLOSE_CODES)) + reason
        payload = payload[: self.random.choice((0, 1, 2, 125, 126))]
        return self._encode(0x88, 0x80, -1, len(payload), payload)

    def _encode(self, first: int, bit: int, form: int, announced: int, payload: bytes) -> bytes:
        if form < 0:
            form = 0 if announced < 126 else 126 if announced < 65_536 else 127
        if form == 126:
            head = struct.pack(">BBH", first, bit | 126, announced & 0xFFFF)
        elif form == 127:
            head = struct.pack(">BBQ", first, bit | 127, announced)
        else:
            head = struct.pack(">BB", first, bit | min(announced, 125))
        if not bit:
            return head + payload
        mask = self.random.randbytes(4)
        stream = (mask * (len(payload) // 4 + 1))[: len(payload)]
        hidden = (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(payload), "big")
        return head + mask + hidden

    def frames(self, payload: Callable[[], bytes], count_max: int = 8) -> bytes:
        """A few of them, perhaps with bytes between that are none."""
        data = b""
        for _ in range(self.random.randint(1, count_max)):
            data += self.bytes(40) if self.random.random() < 0.1 else self.frame(payload())
        return data

    # Requests.

    def request(self) -> bytes:
        """A request, with whatever may be wrong in it."""
        pick = self.random.choice
        lines = [
            pick((b"GET /ws HTTP/1.1", b"GET /ws HTTP/1.1", b"POST /agents/register HTTP/1.1", b"GET /health HTTP/1.0",
                  b"POST /agents/claim HTTP/1.1", b"HEAD /claim HTTP/1.1", b"GET http://x/ws HTTP/1.1", b"GET  /ws",
                  b"GET /ws?x=" + b"y" * pick((1, 9_000)) + b" HTTP/1.1", b"PRI * HTTP/2.0", self.bytes(40))),
        ]  # fmt: skip
        usual = [
            b"Host: x", b"Upgrade: websocket", b"Connection: keep-alive, Upgrade", b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        ]  # fmt: skip
        odd = [
            b"Sec-WebSocket-Key: " + b"\xe9" * 22 + b"==", b"Sec-WebSocket-Version: 8",
            b"Sec-WebSocket-Extensions: permessage-deflate", b"Origin: http://evil.example",
            b"Content-Length: 3", b"Content-Length: -1", b"Content-Length: " + b"9" * 20, b"Content-Length: 4097",
            b"Transfer-Encoding: chunked", b" folded", b"no colon", b": empty", b"a b: c", b"X: \0",
            b"X: " + b"y" * 9_000,
            b"Content-Type: application/x-www-form-urlencoded", b"Expect: 100-continue", self.bytes(60),
        ]  # fmt: skip
        headers = [line for line in usual if self.random.random() < 0.9]
        headers += [pick(odd) for _ in range(self.random.choice((0, 0, 1, 3, 120)))]
        self.random.shuffle(headers)
        end = pick((b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b""))
        body = pick((b"", b"", b"{}", b'{"public_key": "AA=="}', b'{"public_key": "\\ud800"}', b'{"public_key": 1e999}',
                     b"claim_code=%ff&turnstile_token=%ff", b"[" * 4_000, self.bytes(200)))  # fmt: skip
        return b"\r\n".join(lines + headers) + end + body
