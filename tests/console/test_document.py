"""The OpenAPI document: made from the table of acts, and what the API does is what it says (schemathesis tries it)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.console.desk import Desk, tell
from tests.document import hold_to_document

from posthouse.console import openapi
from posthouse.console.acts import ACTS
from posthouse.console.problem import KINDS
from posthouse.control import catalogue
from posthouse.control.operation import OPERATIONS

ROOT = Path(__file__).parents[2]


def test_the_document_on_file_is_the_one_that_the_code_makes() -> None:
    page = (ROOT / "protocol" / "console.openapi.yaml").read_text(encoding="utf-8")
    assert page == openapi.page(), "run .venv/bin/python -m posthouse.console.openapi > protocol/console.openapi.yaml"
    assert yaml.safe_load(page) == openapi.document()


def test_the_document_lists_every_route_and_every_problem(tmp_path: Path) -> None:
    paths = openapi.document()["paths"]
    listed = {
        int(status)
        for methods in paths.values()
        for operation in methods.values()
        for status in operation["responses"]
        if int(status) >= 400
    }
    # There is no operation whose method is not allowed.
    assert listed == {kind.status for kind in KINDS.values()} - {405}

    async def story(c: Desk) -> None:
        routes = {(r.method, r.resource.canonical) for r in c.console.app.router.routes() if r.resource}
        ours = {(method, path) for method, path in routes if path.startswith("/api/")}
        assert ours == {(method.upper(), path) for path, methods in paths.items() for method in methods}
        assert (await c.api("GET", "/api/v1/openapi.json", role=""))[1] == openapi.document()

    tell(story, tmp_path)


def test_every_act_is_an_operation_and_takes_what_that_takes() -> None:
    catalogue.load()
    for act in ACTS:
        known = OPERATIONS[act.name].parameters
        times = {"since": "2026-01-01", "until": "2026-01-02"}
        given = {field.name: times.get(field.name, "x") for field in act.fields}
        assert set(act.adapt(dict(given))) <= set(known), act.name
        needed = {name for name, parameter in known.items() if parameter.required}
        assert needed <= {field.name for field in act.fields if field.needed}, act.name


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("phases", "examples"), [("fuzzing", 2), pytest.param("coverage,fuzzing,stateful", 60, marks=pytest.mark.slow)]
)
def test_the_api_does_what_its_document_says(tmp_path: Path, phases: str, examples: int) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1", "m2")
        # A stream never ends, so it is not for a tool that waits for the end of each answer.
        words = [
            *("--exclude-path", "/api/v1/live"),
            # What ends the token that it is tried with, and what starts other programs.
            *("--exclude-path", "/api/v1/token/revoke"),
            *("--exclude-path", "/api/v1/books/run"),
            *("--phases", phases),
        ]
        await hold_to_document(f"{c.url}/api/v1/openapi.json", c.tokens["admin"], examples, tmp_path, *words)

    tell(story, tmp_path, console__logins_per_min="10000")
