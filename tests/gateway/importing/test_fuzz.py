"""Whatever stands in a file or a row, it becomes a message that the engine takes, or is named and left."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.errors import InvalidInput
from posthouse.gateway import strict
from posthouse.gateway.importing import page
from posthouse.gateway.importing.database import PATH
from posthouse.gateway.importing.entry import Entry, Result, Unfit
from posthouse.gateway.importing.letters import message_of
from posthouse.gateway.importing.openclaw import read
from posthouse.mailbox.check import check_command
from posthouse.mailbox.command import Post
from posthouse.mailbox.message import SECOND
from posthouse.mailbox.policy import PRESETS

NOW = 1_780_000_000 * SECOND
NOW_MS = NOW // 1_000
VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([NOW_MS, NOW_MS - 3_600_000, "telegram", "default", "send_attempt_started", "x" * 600, "a\nb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PAYLOADS = st.lists(
    st.fixed_dictionaries({}, optional={"text": VALUES, "mediaUrl": VALUES, "mediaUrls": VALUES, "x": VALUES}) | VALUES,
    max_size=3,
)
NAMES = (
    "enqueuedAt channel to accountId payloads threadId replyToId bestEffort mirror retryCount lastError lastAttemptAt "
    "session recoveryState platformSendStartedAt preparedBatch reply attemptCount availableAt sessionKey text message "
    "messageId route deliveryContext kind deliveryStartedAt"
)
GOOD: dict[str, Any] = {
    "enqueuedAt": NOW_MS - 1_000,
    "channel": "telegram",
    "to": "5",
    "payloads": [{"text": "x"}],
    "kind": "agentTurn",
    "sessionKey": "agent:main",
    "message": "go on",
}


@st.composite
def entries(draw: Any) -> dict[str, Any]:
    """An entry that is right but for some of its fields."""
    changed = draw(st.dictionaries(st.sampled_from(NAMES.split()), VALUES, max_size=5))
    if draw(st.booleans()):
        changed["payloads"] = draw(PAYLOADS)
    return {**GOOD, **changed}


def hold(found: Any) -> None:
    """What was found can be posted, or says why not."""
    if not isinstance(found, Entry):
        assert found.reason
        assert found.message
        assert found.result in (Result.IGNORED, Result.QUARANTINED)
        return
    try:
        message = message_of(found)
        plain = page.plain(found, NOW, PRESETS)
    except Unfit:
        return
    assert json.loads(json.dumps(plain)) == {**plain, "stands_for": None}
    if message is not None:
        check_command(Post(message, reason="import", exempt=True, posted_at=plain["posted_at"]), PRESETS)


@settings(max_examples=150, deadline=None)
@given(st.lists(entries(), min_size=1, max_size=4), st.sampled_from(["delivery-queue", "session-delivery-queue"]))
def test_any_files(made: list[dict[str, Any]], queue: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / queue
        (place / "failed").mkdir(parents=True)
        for number, fields in enumerate(made):
            where = place / "failed" if number % 3 == 2 else place
            text = json.dumps({"id": f"e{number}", **fields})
            (where / f"e{number}.json").write_text(text, encoding="utf-8", errors="surrogatepass")
        found = list(read(Path(folder), NOW, PRESETS))
        assert len(found) == len(made)
        for one in found:
            hold(one)


@settings(max_examples=100, deadline=None)
@given(
    entries(),
    st.sampled_from(["pending", "failed", "completed", "claimed", "?", ""]),
    st.sampled_from(["outbound", "outbound-prepared-v1", "session", "outbound-preparing-v1", "other"]),
    VALUES,
    VALUES,
)
def test_any_rows(fields: dict[str, Any], status: str, queue: str, at: Any, payload: Any) -> None:
    def stored(value: Any) -> Any:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return str(value)
        if isinstance(value, list | dict):
            value = json.dumps(value)
        return value.encode(errors="replace").decode() if isinstance(value, str) else value

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PATH
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as database:
            database.execute(
                "CREATE TABLE delivery_queue_entries (queue_name, id, status, entry_json, enqueued_at, retry_count)"
            )
            database.execute(
                "CREATE TABLE channel_ingress_events"
                " (queue_name, event_id, channel_id, account_id, status, lane_key, payload_json, received_at)"
            )
            row = (queue, "e1", status, json.dumps({"id": "e1", **fields}), stored(at), stored(payload))
            database.execute("INSERT INTO delivery_queue_entries VALUES (?, ?, ?, ?, ?, ?)", row)
            event = (queue, "e1", "telegram", "default", status, stored(at), json.dumps(payload), stored(at))
            database.execute("INSERT INTO channel_ingress_events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", event)
            database.commit()
        found = list(read(Path(folder), NOW, PRESETS))
        assert len(found) == 2
        for one in found:
            hold(one)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode(errors="surrogatepass")))
def test_any_bytes_are_read_strictly_or_refused(data: bytes) -> None:
    try:
        value = strict.loads(data)
    except InvalidInput:
        return
    # What is taken is what any other reader takes, and can be written again.
    assert json.loads(data) == value
    json.dumps(value, allow_nan=False).encode()
