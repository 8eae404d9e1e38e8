"""Agents: end-to-end encrypted messages through a relay, kept until they are confirmed.

async with Agent("alice", relay="ws://127.0.0.1:8080") as alice:
    await alice.send(bob, "hello")
    async for item in alice.receive():
        print(item.peer, item.text)
        await item.done()
"""

from .client import Agent, Item
from .identity import Identity

__all__ = ["Agent", "Identity", "Item"]
