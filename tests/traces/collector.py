"""A collector: an OTLP/HTTP receiver that decodes what it is sent and keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from tests.listener import Listener


class Collector(Listener):
    """Listens on the loopback; answers with statuses that it is told, then with 200."""

    def __init__(self, *statuses: int) -> None:
        super().__init__("/v1/traces", body_bytes_max=64 * 1024 * 1024)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.requests: list[dict[str, str]] = []
        self._statuses = list(statuses)
        self.stuck: asyncio.Event | None = None
        """While it is there and not set, requests are not answered."""
        self._came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(dict(request.headers))
        self._came.set()
        if self.stuck is not None:
            await self.stuck.wait()
        status = self._statuses.pop(0) if self._statuses else 200
        if status != 200:
            return web.Response(status=status)
        asked = ExportTraceServiceRequest.FromString(body)
        for resource in asked.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.resources.append(about)
            for scope in resource.scope_spans:
                assert scope.scope.name == "posthouse"
                self.spans += scope.spans
        self._came.set()
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    async def until(self, what: Callable[[Collector], bool]) -> None:
        async with asyncio.timeout(30):
            while not what(self):
                self._came.clear()
                await self._came.wait()


def attributes(span: Any) -> dict[str, str | int]:
    """A span's attributes as plain values."""
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in span.attributes
    }
