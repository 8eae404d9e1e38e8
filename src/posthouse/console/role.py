"""Roles: what a visitor of the console may do. Each may do all that the one before it may."""

from __future__ import annotations

import enum

from ..control.token import ROLES


class Role(enum.IntEnum):
    """In order of what they may do."""

    VIEWER = 1
    """Looks at everything but bodies."""
    OPERATOR = 2
    """Pauses, resumes, redrives, parks, cancels and purges, too."""
    ADMIN = 3
    """Reads bodies (unless the configuration says otherwise), and makes and revokes tokens, too."""

    @property
    def word(self) -> str:
        """As people and the configuration say it."""
        return self.name.lower()


VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN


def role_of(word: str | None) -> Role | None:
    """The role of this name; None where there is none."""
    return Role(ROLES.index(word) + 1) if word in ROLES else None
