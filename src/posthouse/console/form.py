"""Forms: what a visitor's buttons do. Acts with their confirmation, and jobs with their progress.

In: forms of our own pages, each with the session's mark. Out: the act is done, and the browser is sent back with a
notice; a long one is a job with a page of its own. Nothing here is done by looking at an address.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from aiohttp import web

from ..control import catalogue
from ..control.operation import Json, Refused
from ..errors import InvalidInput
from .access import Visitor
from .acts import BY_NAME, Act
from .field import from_text
from .jobs import Job
from .page import Ask, refusal
from .problem import Problem
from .role import OPERATOR
from .way import safe_next, see_other, to_log_in, with_next

if TYPE_CHECKING:
    from .server import Console

FIELDS_MAX = 64
OWN = frozenset({"csrf", "next"})
"""Fields of a form that are not the act's."""


def route(console: Console, router: web.UrlDispatcher) -> None:
    """Add the addresses of forms."""
    forms = _Forms(console)
    router.add_post("/do/{act}", forms.do)
    router.add_get("/confirm/{act}", forms.confirm)
    router.add_get("/jobs/{id}", forms.job)
    router.add_post("/jobs/{id}/stop", forms.stop)


def fields_of(data: bytes, request: web.Request) -> dict[str, str]:
    """The fields of a form, each of which may stand there once."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise Problem("unsupported_media_type", "a form is sent as application/x-www-form-urlencoded")
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise InvalidInput("the form cannot be read") from error
    if len({name for name, _ in pairs}) != len(pairs):
        raise InvalidInput("a field is given twice")
    return dict(pairs)


def start(console: Console, visitor: Visitor, act: Act, given: Json) -> Job:
    """Begin a long act for a visitor."""
    parameters = act.adapt(given)
    return console.jobs.start(
        act.name, visitor.by, lambda report: catalogue.run(console.context(visitor, report), act.name, parameters)
    )


class _Forms:
    def __init__(self, console: Console) -> None:
        self._console = console

    def _act(self, request: web.Request, visitor: Visitor) -> Act:
        act = BY_NAME.get(request.match_info["act"])
        if act is None or not act.changes:
            raise Problem("not_found", "there is nothing of that name to be done")
        if visitor.role < act.role:
            raise Problem("forbidden", f"{act.name} is for the role {act.role.word}; yours is {visitor.role.word}")
        return act

    async def _posted(self, request: web.Request) -> tuple[Visitor, dict[str, str]]:
        visitor = self._console.visitor(request)
        if visitor is None:
            raise to_log_in(request)
        given = fields_of(await self._console.body(request), request)
        if not hmac.compare_digest(given.get("csrf", "").encode(), visitor.csrf.encode()):
            raise Problem("cross_site", "the form does not carry its mark; load the page again")
        return visitor, given

    async def do(self, request: web.Request) -> web.StreamResponse:
        """Do what the form says, and go back."""
        visitor, form = await self._posted(request)
        act = self._act(request, visitor)
        given = from_text({name: value for name, value in form.items() if name not in OWN}, act.fields, is_form=True)
        wanted = safe_next(form.get("next", "/"))
        if act.long:
            job = start(self._console, visitor, act, given)
            return see_other(with_next(f"/jobs/{job.id}", wanted))
        answer = await self._console.run(visitor, act.name, act.adapt(given))
        if isinstance(answer, Refused):
            visitor.notices.append(("bad", f"{act.verb}: {answer.message}"))
        elif "token" in answer:
            # Shown this once, so it goes on a page of its own and into no notice.
            return Ask(self._console, request, visitor).render(
                "token.html", title="The new token", made=answer, next=wanted
            )
        else:
            visitor.notices.append(("good", told(act, answer)))
        return see_other(wanted)

    async def confirm(self, request: web.Request) -> web.StreamResponse:
        """Say what would be done, and ask."""
        visitor = self._console.visitor(request)
        if visitor is None:
            raise to_log_in(request)
        act = self._act(request, visitor)
        query = request.query
        if len(set(query)) != len(query):
            raise InvalidInput("a parameter is given twice")
        fields = {name: value for name, value in query.items() if name not in OWN}
        given = from_text(fields, act.fields, is_form=True)
        would: Json | None = None
        if act.takes("dry_run"):
            answer = await self._console.run(visitor, act.name, act.adapt({**given, "dry_run": True}))
            if isinstance(answer, Refused):
                raise refusal(answer)
            would = answer
        return Ask(self._console, request, visitor).render(
            "confirm.html",
            title=f"{act.verb}?",
            act=act,
            fields={name: value for name, value in fields.items() if name in given},
            would=would,
            next=safe_next(query.get("next", "/")),
        )

    async def job(self, request: web.Request) -> web.StreamResponse:
        """How far a job is."""
        visitor = self._console.visitor(request)
        if visitor is None:
            raise to_log_in(request)
        job = self._console.jobs.get(request.match_info["id"])
        return Ask(self._console, request, visitor).render(
            "job.html",
            title=job.act,
            job=job.as_json(),
            told=told(BY_NAME[job.act], job.result),
            next=safe_next(request.query.get("next", "/")),
        )

    async def stop(self, request: web.Request) -> web.StreamResponse:
        """Stop a job."""
        visitor, form = await self._posted(request)
        if visitor.role < OPERATOR:
            raise Problem("forbidden", f"stopping is for the role operator; yours is {visitor.role.word}")
        job = self._console.jobs.get(request.match_info["id"])
        job.stopping.set()
        return see_other(with_next(f"/jobs/{job.id}", safe_next(form.get("next", "/"))))


def told(act: Act, answer: Mapping[str, object]) -> str:
    """What came of an act, in a sentence: its counts, or that it is done."""
    if answer.get("changed") is False:
        return f"{act.verb}: it was so already."
    counts = [
        f"{value:,} {name}"
        for name, value in answer.items()
        if isinstance(value, int) and not isinstance(value, bool) and name in act.keys
    ]
    if counts:
        return f"{act.verb}: {', '.join(counts)}."
    of = answer.get("id") or answer.get("lane") or answer.get("mailbox") or answer.get("name") or ""
    return f"{act.verb}: done{f' ({of})' if of else ''}."
