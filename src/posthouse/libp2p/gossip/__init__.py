"""gossipsub 1.1: messages on topics, passed on from peer to peer."""

from __future__ import annotations

from .message import Message
from .params import Params
from .router import Verdict
from .service import Gossip, Subscription

__all__ = ["Gossip", "Message", "Params", "Subscription", "Verdict"]
