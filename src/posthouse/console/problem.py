"""Problems of the console: its table of what can be wrong; how one is told, the gateway's API has shown."""

from __future__ import annotations

from collections.abc import Mapping

from ..gateway.api import problem
from ..gateway.api.problem import Kind

KINDS: Mapping[str, Kind] = {
    "invalid": Kind(400, "The request is not what it should be"),
    "unauthorized": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "This is not allowed"),
    "cross_site": Kind(403, "This request was made by another site"),
    "not_found": Kind(404, "There is nothing of that name"),
    "method_not_allowed": Kind(405, "This cannot be done here"),
    "too_slow": Kind(408, "The request did not come in time"),
    "refused": Kind(409, "It was not done"),
    "too_large": Kind(413, "The request is too large"),
    "unsupported_media_type": Kind(415, "The body is of another kind"),
    "misdirected": Kind(421, "This console has another name"),
    "busy": Kind(429, "Too many wait already"),
    "rate_limited": Kind(429, "Too many wrong tokens"),
    "internal": Kind(500, "Something went wrong here"),
    "unavailable": Kind(503, "The store cannot be reached"),
}


class Problem(problem.Problem):
    """Ends a request with an answer that says what is wrong."""

    kinds = KINDS
