"""Access: whose request it is, and what its token allows.

In: the header ``Authorization: Bearer …``. Out: the token's record, or a problem. Tokens are compared by their hashes;
what a client says of its own rights is not looked at. Records are read again when an operator changed one.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from ...control.token import PREFIX, SHELF, Token, digest, each
from ...engine.engine import Engine
from ...mailbox.command import Command, Keep
from .problem import Problem

TOKEN_CHARACTERS_MAX = 200


class Access:
    """Knows the tokens of a running gateway."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tokens: dict[str, Token] = {}
        self._read = -1
        self._changes = 0
        self._told = self._changed
        engine.on_call.append(self._told)

    def close(self) -> None:
        """Listen no more."""
        if self._told in self._engine.on_call:
            self._engine.on_call.remove(self._told)

    def _changed(self, commands: Sequence[Command]) -> None:
        if any(isinstance(command, Keep) and command.shelf == SHELF for command in commands):
            # Read again with the next request: until then nobody uses what was read before.
            self._changes += 1

    def token(self, request: web.Request, scope: str) -> Token:
        """The token of a request, if it allows this; else a Problem."""
        found = self.known(request.headers.get("Authorization", ""))
        if found is None:
            raise Problem(
                "unauthorized",
                "give a token that `posthouse token add` made: Authorization: Bearer " + PREFIX + "…",
                {"WWW-Authenticate": 'Bearer realm="posthouse"'},
            )
        if scope not in found.scopes:
            raise Problem(
                "forbidden",
                f"the token {found.name} lacks the scope {scope}",
                {"WWW-Authenticate": f'Bearer realm="posthouse", error="insufficient_scope", scope="{scope}"'},
            )
        return found

    def known(self, header: str) -> Token | None:
        """The token that the header carries, if it is one of ours."""
        kind, _, value = header.partition(" ")
        value = value.strip()
        if kind.lower() != "bearer" or not value.startswith(PREFIX) or len(value) > TOKEN_CHARACTERS_MAX:
            return None
        return self._records().get(digest(value))

    def role(self, token_digest: str) -> str | None:
        """What the token of this digest is in the console at present."""
        found = self._records().get(token_digest)
        return None if found is None else found.role

    def any_role(self) -> bool:
        """Whether there is a token for the console."""
        return any(token.role is not None for token in self._records().values())

    def _records(self) -> dict[str, Token]:
        if self._read != (now := self._changes):
            self._tokens = dict(each(self._engine.store))
            self._read = now
        return self._tokens


def check_tenant(token: Token, tenant: str) -> None:
    """A token that is for one tenant sees no other's messages."""
    if token.tenant is not None and tenant != token.tenant:
        raise Problem("forbidden", f"the token {token.name} is for another tenant")
