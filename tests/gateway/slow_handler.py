"""A handler that thinks for a while, for gateways in processes of their own."""

from __future__ import annotations

import asyncio
import random

from posthouse.gateway.answer import Work

SLOW_S = (0.1, 2.0)


async def handle(work: Work) -> str:
    await asyncio.sleep(random.uniform(*SLOW_S))
    return f"re {work.text}"
