"""The OpenAPI document: made from the code, and what the API does is what it says (schemathesis tries it)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.document import hold_to_document
from tests.gateway.api.desk import HELLO, SEND, Desk, tell

from posthouse.gateway.api import openapi, problem
from posthouse.gateway.api.server import Limits

ROOT = Path(__file__).parents[3]


def test_the_document_on_file_is_the_one_that_the_code_makes() -> None:
    page = (ROOT / "protocol" / "gateway.openapi.yaml").read_text(encoding="utf-8")
    assert page == openapi.page(), "run python -m posthouse.gateway.api.openapi > protocol/gateway.openapi.yaml"
    assert yaml.safe_load(page) == openapi.document()


def test_the_document_lists_every_route_and_every_problem() -> None:
    paths = openapi.document()["paths"]
    listed = {
        int(status)
        for methods in paths.values()
        for operation in methods.values()
        for status in operation["responses"]
        if int(status) >= 400
    }
    # There is no operation whose method is not allowed.
    assert listed == {kind.status for kind in problem.KINDS.values()} - {405}

    async def story(desk: Desk) -> None:
        routes = {(route.method, route.resource.canonical) for route in desk.api.app.router.routes() if route.resource}
        assert routes == {(method.upper(), path) for path, methods in paths.items() for method in methods}
        _, served = await desk.ask("GET", "/v1/openapi.json", token="")
        assert served == openapi.document()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tell(story, Path(folder))


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_the_api_does_what_its_document_says(tmp_path: Path, examples: int) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/inbound", HELLO)
        await desk.ask("POST", "/v1/outbound", SEND)
        # A stream of events never ends, so it is not for a tool that waits for the end of each answer.
        url = f"{desk.url}/v1/openapi.json"
        await hold_to_document(url, desk.token, examples, tmp_path, "--exclude-path", "/v1/events")

    tell(story, tmp_path, Limits(connections_max=100, wait_s_max=0.02))
