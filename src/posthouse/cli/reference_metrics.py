"""The reference page of the metrics, docs/reference/metrics.md, made from the tables of the parts that tell them."""

from __future__ import annotations

from ..console import metrics as console
from ..gateway import metrics as gateway
from ..gateway.api import metrics as api
from ..metrics import FAMILIES, Family, books
from ..metrics.flow import KINDS_MAX
from ..peer import metrics as peer
from ..relay import metrics as relay
from ..traces import service as traces

TABLES: dict[str, tuple[Family, ...]] = {
    "Every server": FAMILIES,
    "The relay": relay.FAMILIES,
    "The gateway": gateway.FAMILIES,
    "The gateway's HTTP API": api.FAMILIES,
    "The peer": peer.FAMILIES,
    "The console": console.FAMILIES,
    "The books": books.FAMILIES,
    "Traces": traces.FAMILIES,
}
"""All metrics, by the part that tells them."""

_HEAD = f"""\
# Metrics

`/metrics` on `metrics.host` and `metrics.port` is in Prometheus' text format. What `process_…` and `python_…` mean is
Prometheus' own; the rest is here. [How to use them](../guides/operate.md#metrics-and-alerts).

Labels are bounded, however many mailboxes there are: a desk that is not configured counts as `other`; of kinds a desk's
first {KINDS_MAX} are told apart, and all others are `other`; reasons come from [the journal's list](journal.md). A
histogram has `_bucket`, `_sum` and `_count` behind its name, a summary the last two. Counters begin at 0 with each
process.
"""


def metrics_page() -> str:
    """The page below its first line."""
    parts = [_HEAD]
    for title, families in TABLES.items():
        parts.append(f"## {title}\n")
        parts.append("| metric | type | labels | meaning |\n|---|---|---|---|")
        for family in families:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            parts.append(f"| `{family.name}` | {family.type} | {labels} | {family.help} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"
