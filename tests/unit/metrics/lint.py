"""What promtool's lint holds against a page of metrics, by the same rules.

In: a page in Prometheus' text format. Out: complaints, each with the metric's name; none for a page that is as it
should be. Also the page as rows: names, types, labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
UNITS = {
    "amperes", "bytes", "celsius", "grams", "joules", "kelvins", "meters", "metres", "moles", "seconds", "volts",
}  # fmt: skip
PREFIXES = (
    "pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega", "mibi", "giga", "gibi",
    "tera", "tebi", "peta", "pebi",
)  # fmt: skip
OTHER_UNITS = {"minutes", "hours", "days", "weeks", "years", "months", "bits", "feet", "inches", "miles", "pounds"}
ABBREVIATIONS = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}


def families(page: str) -> list[Metric]:
    """The page, parsed. A counter's name ends in _total again, which the parser takes off."""
    return list(text_string_to_metric_families(page))


def name_of(family: Metric) -> str:
    """The family's name as it stands behind # TYPE."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def complaints(page: str) -> Iterator[str]:
    """Everything that is not as it should be."""
    lines = page.splitlines()
    told = [line.split(" ")[2] for line in lines if line.startswith("# TYPE ")]
    helped = [line.split(" ")[2] for line in lines if line.startswith("# HELP ")]
    if not page.endswith("\n"):
        yield "the page does not end with a line feed"
    for name in told:
        if told.count(name) > 1:
            yield f"{name}: more than one TYPE"
    if told != helped:
        yield f"TYPE and HELP do not go together: {set(told) ^ set(helped)}"
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for family in families(page):
        yield from _family(family, name_of(family))
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            if key in seen:
                yield f"{sample.name}: {sample.labels} stands there twice"
            seen.add(key)
            if not any(sample.name.startswith(name) for name in (family.name, *told)):
                yield f"{sample.name}: has no TYPE"


def _family(family: Metric, name: str) -> Iterator[str]:
    words = name.split("_")
    if not family.documentation.strip():
        yield f"{name}: no help"
    if family.type not in TYPES or family.type == "untyped":
        yield f"{name}: no type"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        yield f"{name}: not in snake case"
    # What is a counter without _total, the parser takes for one with it; so the text is looked at.
    if family.type != "counter" and name.endswith("_total"):
        yield f"{name}: only counters end in _total"
    if family.type != "histogram" and name.endswith("_bucket"):
        yield f"{name}: only histograms have buckets"
    if family.type not in ("histogram", "summary") and name.endswith(("_count", "_sum")):
        yield f"{name}: only histograms and summaries have counts and sums"
    for type in TYPES:
        if type in words:
            yield f"{name}: names its type"
    for word in words:
        stem = next((word.removeprefix(p) for p in PREFIXES if word.startswith(p)), None)
        if stem in UNITS or word in OTHER_UNITS:
            yield f"{name}: {word} is no base unit"
        if word in ABBREVIATIONS:
            yield f"{name}: {word} is an abbreviation of a unit"
    for sample in family.samples:
        for label in sample.labels:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", label):
                yield f"{name}: label {label} is not in snake case"
            if label == "le" and family.type != "histogram":
                yield f"{name}: only histograms have le"
            if label == "quantile" and family.type != "summary":
                yield f"{name}: only summaries have quantiles"
    if family.type == "histogram":
        yield from _buckets(family, name)


def _buckets(family: Metric, name: str) -> Iterator[str]:
    """Buckets rise, end at +Inf, and the last equals the count."""
    found: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    counts: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            found.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            counts[labels] = sample.value
    for labels, buckets in found.items():
        if buckets != sorted(buckets) or [value for _, value in buckets] != sorted(value for _, value in buckets):
            yield f"{name}: buckets of {labels} do not rise"
        if buckets[-1] != (float("inf"), counts.get(labels)):
            yield f"{name}: the last bucket of {labels} is not its count"


def untotalled(page: str) -> list[str]:
    """Counters whose name does not end in _total; the parser hides that."""
    said = re.findall(r"^# TYPE (\S+) counter$", page, re.MULTILINE)
    return [name for name in said if not name.endswith("_total")]
