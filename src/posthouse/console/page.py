"""Pages: what one is made of, and what the function behind it may ask.

A page is a path, a title, a place in the menu and a coroutine from ``Ask`` to a response. It only looks: what changes
something is an act, and its form goes to ``/do/…``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aiohttp import hdrs, web

from ..control.operation import Answer, Json, Refused
from ..control.view import instant
from ..errors import InvalidInput
from ..mailbox.message import NAME_BYTES_MAX
from ..mailbox.store import Store
from .access import Visitor
from .acts import BY_NAME
from .field import TEXT_MAX
from .problem import Problem
from .role import VIEWER, Role

if TYPE_CHECKING:
    from .server import Console

T = TypeVar("T")


class Ask:
    """One request for a page by a visitor who may have it."""

    def __init__(self, console: Console, request: web.Request, visitor: Visitor, page: Page | None = None) -> None:
        self.console = console
        self.request = request
        self.visitor = visitor
        self._page = page

    # What was asked.

    def text(self, name: str, default: str | None = None) -> str | None:
        """A parameter of the query; what was left empty is not given."""
        value = self.given(name)
        return value if value else default

    def given(self, name: str) -> str | None:
        """The same where empty text means something."""
        value = self.request.query.get(name)
        if value is not None and len(value) > max(NAME_BYTES_MAX, TEXT_MAX):
            raise InvalidInput(f"{name} is too long")
        return value

    def needed(self, name: str) -> str:
        """A parameter without which there is no page."""
        value = self.text(name)
        if value is None:
            raise InvalidInput(f"the address lacks {name}")
        return value

    def whole(self, name: str, default: int = 0, most: int = 2**62) -> int:
        """A whole number of the query."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and len(value) < 20) or int(value) > most:
            raise InvalidInput(f"{name} must be a whole number up to {most}: {value[:40]!r}")
        return int(value)

    # What can be found out.

    async def answer(self, operation: str, **parameters: Any) -> Answer:
        """What an operation says; parameters that are None are left out."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return await self.console.run(self.visitor, operation, given)

    async def call(self, operation: str, **parameters: Any) -> Json:
        """The same where a refusal ends the page with its sentence."""
        answer = await self.answer(operation, **parameters)
        if isinstance(answer, Refused):
            raise refusal(answer)
        return answer

    async def read(self, job: Callable[[Store], T]) -> T:
        """Read the store, on a thread."""
        store = self.console.engine.store
        return await self.console.thread(lambda: job(store))

    def may(self, act: str) -> bool:
        """Whether the visitor may do this."""
        return self.visitor.role >= BY_NAME[act].role

    # What is answered.

    def render(self, template: str, *, status: int = 200, title: str | None = None, **values: Any) -> web.Response:
        """The page."""
        notices, self.visitor.notices[:] = list(self.visitor.notices), []
        return html(
            self.console.renderer.page(
                template,
                {
                    "title": title or (self._page.title if self._page else "Posthouse"),
                    "here": self._page.path if self._page else "",
                    "path": self.request.path_qs,
                    "menu": self.console.menu,
                    "node": self.console.engine.store.node,
                    "visitor": self.visitor,
                    "may": self.may,
                    "acts": BY_NAME,
                    "notices": notices,
                    "now": instant(self.console.engine.now()),
                    **values,
                },
            ),
            status,
        )


class Page(NamedTuple):
    """One row of the menu, or a page without a place in it."""

    path: str
    title: str
    handler: Callable[[Ask], Awaitable[web.StreamResponse]]
    nav: str = ""
    """What the menu says; '' where it has no place there."""
    role: Role = VIEWER


def html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A page as a response; it is nobody's but the visitor's."""
    return web.Response(
        text=text, status=status, content_type="text/html", headers={hdrs.CACHE_CONTROL: "no-store", **(headers or {})}
    )


def refusal(refused: Refused) -> Problem:
    """What an operation refused, as a problem."""
    return Problem("not_found" if refused.code == "not_found" else "refused", refused.message)
