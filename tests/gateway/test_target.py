"""Where a target named by somebody else may be: public addresses, by name, by number and behind redirects."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver

from posthouse.errors import ConfigError, InvalidInput
from posthouse.gateway.target import Guard, is_refusal, networks

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1",
    "::1", "::", "fe80::1", "fc00::1", "fd12:3456::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "2001:db8::1",
]  # fmt: skip


def url_of(address: str) -> str:
    return f"http://[{address}]/" if ":" in address else f"http://{address}/"


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_are_refused(address: str):
    with pytest.raises(InvalidInput, match="not a public address"):
        Guard().check_url(url_of(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111"])
def test_public_addresses_are_not(address: str):
    assert Guard().check_url(url_of(address)) == url_of(address)


def test_what_is_allowed_is_allowed_and_nothing_beside_it():
    guard = Guard(networks(["127.0.0.1", "10.1.0.0/16", "fd00::/8"]))
    for address in ("127.0.0.1", "10.1.2.3", "fd00::1", "::ffff:10.1.2.3"):
        guard.check_url(url_of(address))
    for address in ("127.0.0.2", "10.2.0.1", "fe80::1", "169.254.169.254"):
        with pytest.raises(InvalidInput):
            guard.check_url(url_of(address))


@pytest.mark.parametrize(
    "url",
    ["", "ftp://example.org/", "//example.org", "http://", "http://user:pw@example.org/", "http://a:99999/", "http://[1/",
     "file:///etc/passwd", "http://ex ample.org/", "http://example.org/\n", "http://example.org/" + "a" * 3_000],
)  # fmt: skip
def test_what_is_no_target_is_refused_and_its_text_is_not_repeated(url: str):
    with pytest.raises(InvalidInput) as caught:
        Guard().check_url(url)
    assert "pw" not in str(caught.value)


def test_a_network_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"10\.1\.0\.1/16"):
        networks(["10.1.0.1/16"])


class Names(AbstractResolver):
    """Resolves every name to what the test says, and another address each time where it says several."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        address = self._addresses.pop(0)
        return [
            {"hostname": host, "host": address, "port": port, "family": socket.AF_INET, "proto": 6, "flags": 0},
        ]

    async def close(self) -> None:
        pass


class Server:
    """Counts requests; answers with a redirect where it has one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.redirect = ""

    async def __aenter__(self) -> Server:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.path)
        if self.redirect:
            return web.Response(status=307, headers={"Location": self.redirect})
        return web.Response(text="here")


async def refused(guard: Guard, url: str, *addresses: str) -> bool:
    options = {"resolver": Names(*addresses), "use_dns_cache": False} if addresses else {}
    async with aiohttp.ClientSession(connector=guard.connector(**options)) as client:
        try:
            async with client.get(url, allow_redirects=False):
                return False
        except aiohttp.ClientError as error:
            return is_refusal(error) or isinstance(error, aiohttp.InvalidURL)


def test_a_name_that_leads_to_the_loopback_is_refused_when_it_is_connected_to():
    async def story() -> None:
        async with Server() as server:
            url = f"http://hooks.example.org:{server.port}/"
            assert await refused(Guard(), url, "127.0.0.1")
            # Other forms of it.
            for host in ("localhost", "2130706433", "0x7f.1", "127.1"):
                assert await refused(Guard(), f"http://{host}:{server.port}/")
            assert server.seen == []
            # The control: where it is allowed, the very same request arrives.
            assert not await refused(Guard(networks(["127.0.0.0/8"])), url, "127.0.0.1")
            assert server.seen == ["/"]

    asyncio.run(story())


def test_a_name_that_leads_elsewhere_the_second_time_is_refused_then():
    async def story() -> None:
        async with Server() as server:
            guard = Guard(networks(["127.0.0.1"]))
            resolver = Names("127.0.0.1", "127.0.0.2")
            connector = guard.connector(resolver=resolver, use_dns_cache=False, force_close=True)
            async with aiohttp.ClientSession(connector=connector) as client:
                async with client.get(f"http://hooks.example.org:{server.port}/"):
                    pass
                with pytest.raises(aiohttp.ClientConnectorError) as caught:
                    await client.get(f"http://hooks.example.org:{server.port}/")
            assert is_refusal(caught.value)
            assert server.seen == ["/"]

    asyncio.run(story())
