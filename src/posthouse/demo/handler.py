"""The demo's handlers: what answers people, and what looks at messages of trades.

In: work of the gateway, messages of the peer. Out: answers and refusals. What a text says decides what happens to it,
so that a message fails in the same way at every attempt:

    … teapot …      the handler breaks on it each time, until it is a dead letter
    … ledger …      the model is busy at first, and answers at the second attempt
    … customer N    there is no such customer: rejected at once
"""

from __future__ import annotations

import asyncio

from ..gateway.answer import Reject, RetryLater, Work
from ..peer.inbox import Incoming
from ..peer.inbox import Reject as RejectTrade

THINKS_S = 0.05
TEAPOT, LEDGER, CUSTOMER = "teapot", "ledger", "customer"


async def answer(work: Work) -> str:
    """Answer a person."""
    text = work.text
    if TEAPOT in text:
        raise ValueError(f"cannot parse {text!r}: no tool takes a teapot")
    if LEDGER in text and work.attempt == 1:
        raise RetryLater(1.0, "the model is busy")
    if CUSTOMER in text:
        raise Reject(f"no {text[text.index(CUSTOMER) :]}")
    await asyncio.sleep(THINKS_S)
    return f"You said: {text}"


async def trade(message: Incoming) -> None:
    """Take what a trader sends; some of what he sends is never right."""
    payload = message.payload
    if isinstance(payload, dict) and payload.get("amount") == 0:
        raise RejectTrade("an amount of nothing")
