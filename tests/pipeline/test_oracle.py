"""The oracle by itself: on hostile journals its books close, its waits add up, and it keeps what was told."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from tests.pipeline.compare import KEY, WAITS
from tests.pipeline.journals import hostile_nodes, write_journal
from tests.pipeline.oracle import Oracle

from posthouse.journal.verify import verify_folder


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile_nodes(2, 6))
def test_the_books_of_hostile_journals_close_and_waits_add_up(nodes: list[list[dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder)
        write_journal(journal, nodes)
        assert list(verify_folder(journal)) == []
        oracle = Oracle(journal)
    outside = "posted <> delivered + dead + expired + cancelled + uncertain + open or len(remainder_ids) <> remainder"
    assert oracle.rows(f"select * from books where {outside}") == []
    spent = " + ".join(f"wait_{name}" for name in WAITS)
    using = ", ".join(KEY)
    # Where something is told of a message before its post, there may be no time between its post and its end.
    wrong = f"first_offset = posted_offset and {spent} <> greatest(finished_at - posted_at, 0)"
    assert oracle.rows(f"select * from waits join messages using ({using}) where {wrong}") == []
    kept = oracle.rows("select count(*) as n from messages where not orphan and outcome <> 'refused'")
    posts = oracle.rows("select count(*) as n from events where event = 'posted'")
    assert kept == posts
