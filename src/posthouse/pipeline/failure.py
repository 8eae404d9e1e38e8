"""What fails in Spark, its Java or Delta, told in one line.

In: what they throw, or what Java said before it ended. Out: one of our errors, with the cause. Our own mistakes stay as
they are.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

from ..errors import InvalidInput, PosthouseError, StoreError, StoreFull, StoreUnavailable

_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Colours, and what else is not for a line of text."""
_CAUSE = re.compile(r"^(?:Caused by: |: |Exception in thread \S+ )?(?:[a-z]\w*\.)+([A-Z][\w$]*): (\S.*)$")
"""A line of Java that names what was thrown, and says something about it."""
_BESIDE = re.compile(
    r"^(at |\.\.\. \d+ more|JVM stacktrace:|An error occurred while calling |Warning:|WARNING:"
    r"|Using Spark's default log4j|Setting default log level|To adjust logging level"
    r"|Error: (Could not create the Java|A fatal exception)"
    r"|Error occurred during initialization of VM|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) )"
)
"""Lines that tell no cause."""
_OF_SETTINGS = re.compile(
    r"IllegalArgument|NumberFormat|ClassNotFound|INVALID_CONF|[Mm]aster URL|[Mm]ust |[Ii]nvalid |Unrecognized"
    r"|[Tt]oo (small|large)"
)
"""What is said of settings that can never be right."""


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What fails in Spark, in Delta or for want of room comes out as a StoreError; our own mistakes as they are."""
    try:
        yield
    except Exception as error:
        found = of(error)
        if found is None:
            raise
        raise found from error


def of(error: Exception) -> StoreError | None:
    """The StoreError for what Spark, Delta or the disk did; None for everything else."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(_full(f"{error.strerror}: {error.filename}" if error.filename else str(error)))
    # What deltalake and pyarrow meet in a file system often comes without a number, and as several lines.
    if type(error) is OSError and error.errno is None:
        text = " ".join(_CONTROL.sub("", str(error)).split())
        return StoreFull(_full(text)) if _NO_ROOM.search(text) else StoreUnavailable(f"{text:.300}")
    if not is_sparks(error):
        return None
    text = text_of(error)
    if _NO_ROOM.search(text):
        return StoreFull(_full(text))
    return StoreUnavailable(f"Spark could not do it: {reason(text)}")


def reason(text: str) -> str:
    """The cause that a Java trace tells, in one line: what was thrown first, and what that came of."""
    lines = [line for each in text.splitlines() if (line := each.strip()) and not _BESIDE.match(line)]
    causes = [f"{found[1]}: {found[2]}" for line in lines if (found := _CAUSE.match(line))]
    if not causes:
        return f"{lines[0]:.300}" if lines else "Java ended and said nothing"
    # What PySpark knows by a name begins with its own words.
    first = lines[0] if lines[0].startswith("[") else causes[0]
    last = causes[-1]
    said = last.partition(": ")[2]
    return f"{first:.300}" if said in first else f"{first:.200} ({last:.200})"


def _full(text: str) -> str:
    found = _NO_ROOM.search(text)
    assert found is not None
    return f"the disk of the lake or of temporary files is full: {text[found.start() :].splitlines()[0]:.200}"


def is_sparks(error: BaseException) -> bool:
    """Whether it was thrown by Spark, its Java or Delta, and not because we called them wrongly."""
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    ours = TypeError, ValueError, AttributeError, LookupError, AssertionError, NotImplementedError
    theirs = Py4JError, PySparkException, DeltaError, ConnectionRefusedError, ConnectionResetError
    return isinstance(error, theirs) and not isinstance(error, ours)


def text_of(error: BaseException) -> str:
    """All that it says, Java's trace and all; nothing where Java has ended, since Java is asked for it."""
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return ""
    trace = getattr(error, "_stackTrace", None)
    if isinstance(trace, str):
        return f"{getattr(error, '_desc', '')}\n{trace}"
    try:
        return str(error)
    except Exception:
        return ""


def at_start(text: str) -> PosthouseError:
    """What Spark's not starting is told as: InvalidInput where that is for its settings."""
    if _NO_ROOM.search(text):
        return StoreFull(_full(text))
    line = reason(text)
    if _OF_SETTINGS.search(line):
        return InvalidInput(f"Spark does not start with these settings: {line}")
    return StoreUnavailable(f"Spark does not start: {line}")
