"""Every page, in the order of the menu."""

from __future__ import annotations

from ..page import Page
from . import books, dead, mailboxes, message, overview, peers, settings

MODULES = (overview, mailboxes, message, dead, peers, books, settings)
PAGES: tuple[Page, ...] = tuple(page for module in MODULES for page in module.PAGES)
