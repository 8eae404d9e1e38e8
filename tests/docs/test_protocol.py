"""The protocol's documents are compared with the code: close codes and reasons, types, limits."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import yaml
from tests.relay.harness import CLOSES

from posthouse.mailbox.event import REASONS, REFUSED
from posthouse.relay import auth, connection, http, registration, server, session, settings
from posthouse.wire import envelope

PROTOCOL = Path(__file__).parents[2] / "protocol"
PAGE = (PROTOCOL / "relay.md").read_text(encoding="utf-8")
ASYNC: dict[str, Any] = yaml.safe_load((PROTOCOL / "relay.asyncapi.yaml").read_text(encoding="utf-8"))

SESSION_CODES = {
    session.SHUTTING_DOWN: session.GOING_AWAY,
    session.ENVELOPE_TOO_LARGE: session.TOO_LARGE,
    session.AUTH_FRAME_TOO_LARGE: session.TOO_LARGE,
    session.STORE_UNAVAILABLE: session.TRY_AGAIN_LATER,
}
"""All other reasons of sessions go with a policy violation."""


def in_code() -> set[tuple[int, str]]:
    """Every close code and reason that the program has."""
    reasons = {value for name, value in vars(session).items() if name.isupper() and isinstance(value, str)}
    reasons |= {auth.FAILED, registration.KEY_NOT_REGISTERED}
    return {(SESSION_CODES.get(reason, session.POLICY_VIOLATION), reason) for reason in reasons} | set(
        connection.CLOSES
    )


def test_every_close_code_and_reason_stands_in_both_documents_and_no_other() -> None:
    assert in_code() == CLOSES
    assert {(row["code"], row["reason"]) for row in ASYNC["x-close"]} == CLOSES


def test_sessions_close_with_named_reasons_only() -> None:
    for module in (session, connection):
        for code, reason in re.findall(r"\.close\((\w+), ([^)]+)\)", inspect.getsource(module)):
            assert reason.split(",")[0].isupper() or reason.split(",")[0] in ("reason",), (code, reason)


def test_the_machine_readable_document_is_whole() -> None:
    assert ASYNC["asyncapi"].startswith("3.")

    def resolve(reference: str) -> Any:
        found: Any = ASYNC
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return found

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "$ref" and value.startswith("#"):
                    resolve(value)
                elif key == "$ref":
                    assert (PROTOCOL / value).exists()
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(ASYNC)
    said = {message["x-message-type"] for message in ASYNC["components"]["messages"].values()}
    assert said == {int(kind) for kind in envelope.MessageType} - {0}
    channel = ASYNC["channels"]["ws"]["messages"]
    assert set(channel) == set(ASYNC["components"]["messages"])
    used = str(ASYNC["operations"])
    assert all(f"/messages/{name}'" in used for name in channel)


def test_limits_in_the_page_are_those_of_the_code() -> None:
    plain = re.sub(r"(?<=\d)[ \u202f](?=\d{3}\b)", "", PAGE)
    defaults = settings.Settings("x")
    for number, words in (
        (envelope.ENVELOPE_BYTES_MAX, "up to {} bytes"),
        (envelope.FRAME_BYTES_MAX, "over {} bytes it is not even read"),
        (envelope.AUTH_BYTES_MAX, "over {} bytes before authentication"),
        (http.HEAD_BYTES_MAX, "head has at most {} bytes"),
        (http.HEADERS_MAX, "and {} headers"),
        (http.BODY_BYTES_MAX, "a body of at most {} bytes"),
        (connection.FRAGMENTS_MAX, "up\n  to {} frames"),
        (defaults.auth_s, "within {} s is closed"),
        (defaults.unauthenticated_max, "not authenticated ({})"),
        (defaults.probe_s, "within {} s, it stays"),
        (defaults.start_pause_s * 1000, "a pause ({} ms)"),
        (defaults.batch, "in batches of {}"),
        (defaults.batch_pause_s * 1000, "with a pause ({} ms)"),
        (defaults.heartbeat_s, "After {} s of silence"),
        (defaults.heartbeat_wait_s, "after {} s more"),
        (defaults.pings_per_s, "{} a second, 50 at once"),
        (defaults.rate_burst, "{} at once, per address"),
        (defaults.unreceived_frames_max, "until {} envelopes"),
        (defaults.unanswered_max, "({} of them or 1 MiB)"),
        (defaults.blocks_max, "{} at most"),
        (server.LINGER_S, "waits {} s for the agent's"),
        (registration.BURST, "{} at once, per network address"),
    ):
        assert words.format(f"{number:g}" if number < 10_000 else f"{number:.0f}") in plain, words


def test_every_reason_of_a_refusal_in_the_page_is_one_of_the_journals() -> None:
    table = PAGE[PAGE.index("| check | reason |") : PAGE.index("- All other types, unknown")]
    said = set(re.findall(r"\| `(\w+)` \|", table))
    assert said <= set(REASONS[REFUSED])
    assert {"spoofed", "forbidden_type", "bad_address", "blocked", "rate_limited", "full", "oversize"} <= said
