"""The data dictionary of the books, made from the tables' schema.

python -m posthouse.pipeline.reference > docs/reference/books.md
"""

from __future__ import annotations

import sys

from . import schema

_VOLATILE = " and ".join(f"`{name}`" for name in sorted(schema.VOLATILE))
HEAD = f"""\
# The books' tables

<!-- Made by `python -m posthouse.pipeline.reference`; do not edit. -->

Schema version {schema.SCHEMA_VERSION}. Each table is a Delta table in the lake, `<lake>/<table>`; any program that
reads Delta may read it. Lengths of time are in microseconds, instants in UTC. A column `part` holds `open` where a row
may still change, and a day once it is final. The columns {_VOLATILE}
say how a row came to be: two lakes of the same journal are equal if all others are.
"""


def page() -> str:
    """The page as Markdown."""
    lines = [HEAD]
    for table in schema.TABLES.values():
        lines.append(f"## {table.name}\n")
        parted = f" Partitioned by `{table.partitions[0]}`." if table.partitions else ""
        key = ", ".join(f"`{name}`" for name in table.key)
        lines.append(f"One row is {table.row}. Named by {key}.{parted}\n")
        lines.append("| column | type | meaning |\n|---|---|---|")
        lines += [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
        lines.append("")
    lines.append("## Kinds of anomalies\n")
    lines.append("| kind | meaning |\n|---|---|")
    lines += [f"| `{kind}` | {meaning} |" for kind, meaning in schema.ANOMALIES.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
