"""Viewers of the live overview, in a process of their own, as browsers are.

Run as a script: `_viewers.py ADDRESS COUNT`, with the token in TOKEN. It prints a line when all look, and, when its
input ends, how many snapshots the least lucky of them saw.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiohttp


async def look(session: aiohttp.ClientSession, url: str, seen: list[int], number: int, all_look: asyncio.Event) -> None:
    """One viewer, until he is cancelled."""
    async with session.get(url) as stream:
        assert stream.status == 200, await stream.text()
        async for line in stream.content:
            seen[number] += line.startswith(b"data: ")
            if all(seen):
                all_look.set()


async def main(url: str, count: int) -> None:
    seen = [0] * count
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        all_look = asyncio.Event()
        tasks = [asyncio.create_task(look(session, url, seen, number, all_look)) for number in range(count)]
        await all_look.wait()
        print("all look", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(min(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
