"""The demo's people: they talk to the gateway through the town, and programs talk to it over its HTTP API.

In: the town, the API's address and a token. Out: messages, some of which no handler can handle; a town whose post is
on strike or shut for a while.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import aiohttp

from . import town as network
from .handler import CUSTOMER, LEDGER, TEAPOT
from .rhythm import Rhythm
from .town import Town

log = logging.getLogger("posthouse.demo")

NAMES = ("ann", "ben", "cleo", "dov", "eva", "finn")
TALKS_S = 3.0
ORDERS_S = 4.0
STRIKES_S = 40.0
SHUT_S = 8.0
SENTENCES = ("good day", "where is my order?", "what is the weather?", "book a table for two", "tell me a story")
REQUEST_S = 10.0


class People:
    """Everybody who talks to the gateway."""

    def __init__(self, town: Town, api: str, token: str, rhythm: Rhythm) -> None:
        self._town = town
        self._api = api
        self._token = token
        self._rhythm = rhythm

    def names(self) -> Iterator[str]:
        """Who talks in the town."""
        yield from NAMES

    async def talk(self, name: str) -> None:
        """Say something now and then."""
        rhythm = self._rhythm.of(name)
        while True:
            await rhythm.pause(TALKS_S)
            await self._town.say(name, _sentence(rhythm))

    async def order(self) -> None:
        """A shop hands its customers' messages over, and has notices sent, over HTTP."""
        rhythm = self._rhythm.of("shop")
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"}, timeout=aiohttp.ClientTimeout(total=REQUEST_S)
        ) as client:
            while True:
                await rhythm.pause(ORDERS_S)
                whom = f"customer-{rhythm.number(4)}"
                common = {"id": uuid.uuid4().hex, "channel": "websocket", "account": "town", "tenant": "shop"}
                if rhythm.happens(4):
                    value = {**common, "to": whom, "text": "Your parcel is on its way."}
                    await self._post(client, "outbound", value)
                else:
                    value = {**common, "conversation": whom, "from": whom, "text": _sentence(rhythm)}
                    await self._post(client, "inbound", value)

    async def disturb(self) -> None:
        """The town's post is on strike, or its connection breaks, in turn."""
        rhythm = self._rhythm.of("town")
        while True:
            await rhythm.pause(STRIKES_S / 2)
            log.info("the town's post is on strike: a few answers are refused")
            self._town.refuse(3)
            await rhythm.pause(STRIKES_S / 2)
            log.info("the town is cut off for a while")
            await network.breaks(self._town, rhythm.about_s(SHUT_S))
            log.info("the town can be reached again")

    async def _post(self, client: aiohttp.ClientSession, what: str, value: dict[str, str]) -> None:
        async with client.post(f"{self._api}/v1/{what}", json=value) as response:
            if response.status not in (200, 201):
                log.warning("the API answered %d: %s", response.status, (await response.text())[:300])


def _sentence(rhythm: Rhythm) -> str:
    if rhythm.happens(25):
        return f"put the {TEAPOT} into my basket"
    if rhythm.happens(15):
        return f"show me {CUSTOMER} {rhythm.number(9_000)}"
    if rhythm.happens(10):
        return f"add it to my {LEDGER}"
    return rhythm.choose(SENTENCES)
