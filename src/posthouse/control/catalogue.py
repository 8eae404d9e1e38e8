"""Every operation there is: loading this module registers them all."""

from . import dead, doctor, journal, lane, mailbox, message, snapshot
from .operation import OPERATIONS, run

__all__ = ["OPERATIONS", "dead", "doctor", "journal", "lane", "mailbox", "message", "run", "snapshot"]
