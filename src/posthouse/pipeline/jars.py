"""Delta's jars for Spark: fetched once, checked by their hashes, kept beside the environment.

In: a folder, and Maven Central or a mirror of it. Out: paths of jars. ``python -m posthouse.pipeline.jars`` fetches
what is missing, and makes what ``java`` needs beside them: both are for all who use the environment, and these may not
write there. Nothing else in the package uses the network for them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from ..errors import MissingExtra
from . import java

VERSION = "4.4.0"
MAVEN = "https://repo1.maven.org/maven2"
# name → SHA-256. The jar for Spark 4.2 and what it needs that Spark does not bring.
JARS = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
TIMEOUT_S = 60


def folder() -> Path:
    """Where the jars are kept: with the environment that holds pyspark."""
    return java.folder() / "jars"


def path_of(name: str) -> Path:
    """The place of a jar, whether it is there or not."""
    return folder() / f"{name}-{VERSION}.jar"


def missing() -> list[str]:
    """The jars that are not there, or not for us to read."""
    return [name for name in JARS if not os.access(path_of(name), os.R_OK)]


def paths() -> list[Path]:
    """The jars; MissingExtra says how to get them."""
    if missing():
        raise MissingExtra("the books need Delta's jars: python -m posthouse.pipeline.jars fetches them (10 MB, once)")
    return [path_of(name) for name in JARS]


def fetch(source: str = MAVEN) -> int:
    """Fetch what is missing; how many that were. MissingExtra where it cannot be had."""
    wanted = missing()
    for name in wanted:
        url = f"{source}/io/delta/{name}/{VERSION}/{name}-{VERSION}.jar"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                content = answer.read()
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise MissingExtra(f"Delta's jar cannot be had from {url}: {getattr(error, 'reason', error)}") from error
        if hashlib.sha256(content).hexdigest() != JARS[name]:
            raise MissingExtra(f"what came from {url} is not the jar that was expected")
        target = path_of(name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}-{os.getpid()}")
            draft.write_bytes(content)
            os.replace(draft, target)
        except OSError as error:
            raise MissingExtra(f"Delta's jar cannot be kept in {target.parent}: {error.strerror}") from error
    return len(wanted)


def main() -> int:
    """Set up what the books need besides packages, and say which jars those are and which were fetched.

    Exit code 1 and one line where it cannot be done.
    """
    parser = argparse.ArgumentParser(prog="python -m posthouse.pipeline.jars", description=__doc__)
    parser.add_argument("--from", dest="source", default=MAVEN, metavar="URL", help="a mirror of Maven Central")
    source = parser.parse_args().source
    # Where it cannot be made, each user makes his own.
    with contextlib.suppress(OSError):
        java.make(java.folder())
    wanted = missing()
    try:
        fetch(source)
    except MissingExtra as error:
        print(error, file=sys.stderr)
        return 1
    for name in JARS:
        print(f"{path_of(name)}: {'fetched' if name in wanted else 'was there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
