"""What a visitor may cost, and where the console may listen."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import aiohttp
import pytest
from tests.console.desk import Desk, desk, tell

from posthouse.config import Given, load
from posthouse.console import setup
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.errors import ConfigError


def test_large_bodies_and_slow_ones_are_refused(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        session = await c.session("operator")
        async with session.post(f"{c.url}/do/mailbox.pause", data={"csrf": "x" * 5_000}) as answer:
            assert answer.status == 413
        status, problem = await c.api("POST", "/api/v1/mailbox/pause", {"mailbox": "x" * 5_000})
        assert (status, problem["code"]) == (413, "too_large")
        head = f"Host: localhost\r\nAuthorization: Bearer {c.tokens['admin']}\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", c.console.port)
        writer.write(f"POST /api/v1/mailbox/pause HTTP/1.1\r\n{head}Content-Length: 100\r\n\r\n{{".encode())
        async with asyncio.timeout(30):
            answer = (await reader.read()).decode()
        assert " 408 " in answer
        writer.close()
        # One whose head never ends is cut off without a word.
        reader, writer = await asyncio.open_connection("127.0.0.1", c.console.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        begun = time.monotonic()
        async with asyncio.timeout(30):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
        assert time.monotonic() - begun < 8
        writer.close()
        # A head that is too large is no request.
        async with aiohttp.ClientSession() as other:
            async with other.get(f"{c.url}/login", headers={"X-Large": "x" * 20_000}) as large:
                assert large.status == 400

    tell(story, tmp_path, console__body_bytes_max="1024", console__body_s="1", console__head_s="2")


def test_connections_beyond_the_limit_are_cut(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        held = [await asyncio.open_connection("127.0.0.1", c.console.port) for _ in range(6)]
        async with asyncio.timeout(30):
            ended = await asyncio.wait(
                [asyncio.create_task(_ended(reader)) for reader, _ in held], return_when="FIRST_COMPLETED"
            )
        assert ended[0]
        for task in ended[1]:
            task.cancel()
        for _, writer in held:
            writer.close()

    async def _ended(reader: asyncio.StreamReader) -> None:
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass

    tell(story, tmp_path, console__connections_max="4")


def certificate(folder: Path) -> tuple[Path, Path]:
    from tests.relay.test_tls import make_certificate

    return make_certificate(folder, "console")


def served(port: int) -> str:
    """The certificate that a new handshake gets."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def refused(folder: Path, **settings: str) -> str:
    given = {name.replace("__", "."): Given(value, "test") for name, value in settings.items()}
    config = load({}, folder, given)
    with Engine(open_store(config, create=True)) as engine:
        with pytest.raises(ConfigError) as caught:
            setup.make(config, engine)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_can_reach_needs_a_certificate_and_a_token_of_ones_own(
    tmp_path: Path, host: str
) -> None:
    assert "needs console.tls_cert and console.tls_key" in refused(tmp_path, console__host=host)


def test_a_listener_on_every_address_needs_a_token_of_ones_own(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    both = {"console__tls_cert": str(cert), "console__tls_key": str(key)}
    assert "go together" in refused(tmp_path, console__tls_cert=str(cert))
    assert "cannot be read" in refused(tmp_path, console__tls_cert="no.pem", console__tls_key=str(key))
    assert "posthouse token add NAME --role admin" in refused(tmp_path, console__host="*", **both)

    async def story() -> None:
        async with desk(tmp_path, **both) as c:
            trusting = ssl.create_default_context(cafile=str(cert))
            trusting.check_hostname = False
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{c.url}/login", ssl=trusting) as answer:
                    assert c.url.startswith("https://")
                    assert answer.status == 200
                    assert "Strict-Transport-Security" in answer.headers
                    assert "Secure" in answer.headers["Set-Cookie"]
            first = await asyncio.to_thread(served, c.console.port)
            # A broken certificate changes nothing; a new one is used from the next handshake on.
            good = cert.read_bytes(), key.read_bytes()
            cert.write_text("nothing")
            c.console.reload()
            assert await asyncio.to_thread(served, c.console.port) == first
            certificate(tmp_path)
            c.console.reload()
            assert await asyncio.to_thread(served, c.console.port) != first
            cert.write_bytes(good[0])
            key.write_bytes(good[1])
        # Now there are tokens with a role, so every address may be listened on, without a one-time token.
        config = load(
            {},
            tmp_path,
            {
                name: Given(value, "test")
                for name, value in {
                    "console.host": "*",
                    "console.port": "0",
                    "console.tls_cert": str(cert),
                    "console.tls_key": str(key),
                }.items()
            },
        )
        async with Engine(open_store(config)) as engine:
            console = setup.make(config, engine)
            await console.start()
            assert setup.log_in_url(console, config).endswith("/login")
            await console.close()

    asyncio.run(story())


def test_a_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        other = setup.make(load({}, tmp_path, {"console.port": Given(str(c.console.port), "test")}), c.engine)
        with pytest.raises(ConfigError) as caught:
            await other.start()
        assert str(caught.value).endswith("(console.host, console.port)")
        assert "\n" not in str(caught.value)
        await other.close()

    tell(story, tmp_path)
