"""Spark sessions for the books: local by default, a cluster by ``--master``, Spark Connect by ``--remote``.

In: settings. Out: a session with Delta, in UTC, with defaults for the machine that it runs on. A setting that the
caller gives wins over ours, is added to it where that is a list that Delta needs, and is refused where the tables would
be wrong by it. It never reads or writes a table. What fails while it starts comes out as one of our errors.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidInput, MissingExtra, PosthouseError, StoreUnavailable
from . import failure, jars, java, machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "posthouse-books"
MEMORY_MB_MIN = 1_024
ENDING_S = 0.2
DISTINCT = (
    "at", "cause_id", "cause_key", "commit", "delivered_offset", "ended_at", "end_offset", "expires_at", "finished",
    "finished_at", "finished_offset", "first_at", "first_leased", "first_leased_at", "first_offset", "flight_us",
    "freed", "freed_offset", "key", "last_offset", "latency", "lease_offset", "leased", "message_id", "offset",
    "posted", "posted_at", "posted_offset", "received", "received_at", "started_at", "ts", "twin", "wait_in_flight",
)  # fmt: skip
"""Columns whose values hardly repeat, in whatever table: a dictionary of them is made for nothing."""
JAVA = (
    "-XX:+UseParallelGC",
    # Sorting and hashing go all over the memory; with large pages fewer addresses are looked up. Only Linux knows it.
    *(("-XX:+UseTransparentHugePages",) if sys.platform == "linux" else ()),
    # What it has to say of these is not for whoever reads our output.
    "-XX:+DisplayVMOutputToStderr",
    # Java leaves large methods uncompiled, and Spark makes some that run for every row.
    "-XX:-DontCompileHugeMethods",
    "-XX:ReservedCodeCacheSize=512m",
    # A small batch runs much code a little: compiling all that to the utmost takes as long as running it does.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Of a driver that is all of Spark."""
PLANS = {
    # Deducing filters from filters takes longer than large plans take to run.
    "spark.sql.constraintPropagation.enabled": "false",
    # A batch knows its size before it begins; planning anew after each stage takes longer than most stages do.
    "spark.sql.adaptive.enabled": "false",
    # Nobody reads descriptions of plans, and they are made again and again.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "1000",
    # Journals are in order of time: a task writes few days, and need not sort its rows by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Rows are asked for by short lists of their instants (see ``held``). Of a list that is longer than this Spark tells
    # Parquet only the first and the last, and all that is between them is read.
    "spark.sql.parquet.pushdown.inFilterThreshold": "100",
    # Files are looked up in so many tasks; usually in one each, or ten thousand, however little there is to do.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    # Of the sizes of values nobody asks.
    "parquet.size.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in DISTINCT},
}
"""How the transforms' plans are made, and the files. No row depends on these; a job sets them in a session that has
none of its own."""
NEEDED = {
    # Days and hours are those of UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # What is replaced and what is added go into one commit.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
}
"""What the tables need; a job sets these in any session."""
LISTS = ("spark.jars", "spark.sql.extensions")
"""Comma-separated lists by which Delta is there: what the caller gives is added to them."""


class Settings(NamedTuple):
    """Where Spark runs and how."""

    master: str | None = None
    """``local[N]`` for the machine itself when there is none."""
    remote: str | None = None
    """``sc://host:port`` of a Spark Connect server; its own settings hold there."""
    conf: Mapping[str, str] = {}
    memory_mb: int | None = None
    environment: Mapping[str, str] = {}
    """The process's environment: JAVA_HOME and PATH are looked up in it."""


def defaults(settings: Settings) -> dict[str, str]:
    """Spark's settings before the caller's own."""
    cores = machine.cores()
    master = settings.master or f"local[{cores}]"
    found = {
        "spark.app.name": APP,
        "spark.master": master,
        "spark.jars": ",".join(map(str, jars.paths())),
        **delta_conf(),
        **PLANS,
        "spark.sql.shuffle.partitions": str(cores if master.startswith("local") else max(8, 4 * cores)),
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
        # A batch has more stages than Spark remembers the code of; and equal stages shall be equal code.
        "spark.sql.codegen.cache.maxEntries": "4000",
        "spark.sql.codegen.useIdInClassName": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Each sort and each hash table of each task takes one of these at least: usually 64 MiB, for however few rows.
        "spark.buffer.pageSize": "4m",
        # Spark makes the folder of a default database, in the current one if nobody says where. Nothing is put into it.
        # Hadoop takes names as they are: in a URL that is written by the rules a space would be three characters.
        "spark.sql.warehouse.dir": f"file://{tempfile.gettempdir()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What was shuffled is removed once Java has noticed that nobody needs it: of a long build in half an hour, and
        # until then it takes the memory that other files would be kept in.
        "spark.cleaner.periodicGC.interval": "3min",
        # What is remembered of work that is done, plans and all, is for a page that nobody can open.
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "5",
        "spark.ui.retainedStages": "5",
        "spark.ui.retainedTasks": "100",
    }
    if master.startswith("local"):
        found["spark.driver.memory"] = f"{settings.memory_mb or memory_mb()}m"
        found["spark.driver.extraJavaOptions"] = " ".join(JAVA)
        # On a cluster executors come to the driver from elsewhere, so there Spark or the caller says where it is.
        found["spark.driver.host"] = found["spark.driver.bindAddress"] = "127.0.0.1"
    elif settings.memory_mb:
        found["spark.driver.memory"] = f"{settings.memory_mb}m"
    return found


def delta_conf() -> dict[str, str]:
    """What Delta and the tables need wherever Spark runs; a Connect server must be started with them."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **NEEDED,
    }


def merged(settings: Settings) -> dict[str, str]:
    """All settings of a session: ours, and the caller's over them or, in a list that Delta needs, behind them."""
    if settings.remote:
        # Jars and extensions are those of the server, and ours lie on this machine.
        return {**PLANS, **NEEDED, **settings.conf}
    ours = defaults(settings)
    lists = {name: _joined(ours[name], settings.conf[name]) for name in LISTS if name in settings.conf}
    return {**ours, **settings.conf, **lists}


def _joined(*lists: str) -> str:
    """Comma-separated lists as one, in their order; what is in it twice counts where it comes first."""
    found = (part.strip() for each in lists for part in each.split(","))
    return ",".join(dict.fromkeys(part for part in found if part))


def memory_mb() -> int:
    """A quarter of the memory that is there for us, and no less than Spark needs."""
    return max(MEMORY_MB_MIN, machine.memory_mb() // 4)


@contextlib.contextmanager
def start(settings: Settings) -> Iterator[SparkSession]:
    """A session that is stopped at the end; MissingExtra where Spark, Java or Delta is not there."""
    try:
        import pyspark
    except ImportError as error:
        raise MissingExtra("the books need Spark: pip install posthouse[pipeline]") from error
    if settings.master and settings.remote:
        raise InvalidInput("--master and --remote exclude each other")
    for name, needed in NEEDED.items():
        if (given := settings.conf.get(name, needed)).lower() != needed.lower():
            raise InvalidInput(f"the books need {name}={needed}, and cannot do with {given!r:.80}")
    spark = _connect(settings) if settings.remote else _launch(settings, pyspark.__path__[0])
    try:
        yield spark
    finally:
        _stop(spark)


def _launch(settings: Settings, spark_home: str) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    found = merged(settings)
    home = java.find(settings.environment, java.folder())
    if _has_no_java():
        # pyspark would go on with the Java of an earlier session, which has ended.
        SparkContext._gateway = SparkContext._jvm = None
    with _environment({"JAVA_HOME": str(home.home), "PYSPARK_PYTHON": sys.executable}, spark_home) as said:
        try:
            builder = SparkSession.builder
            for name, value in found.items():
                builder = builder.config(name, value)
            spark = builder.getOrCreate()
            try:
                spark.sparkContext.setLogLevel("ERROR")
                # Settings of SQL are looked at when one is asked for.
                len(spark.conf.getAll)
            except BaseException:
                _stop(spark)
                raise
        except Exception as error:
            if not failure.is_sparks(error):
                raise
            raise failure.at_start(said() if _has_no_java() else failure.text_of(error)) from error
    return spark


def _has_no_java() -> bool:
    """Whether the Java that pyspark talks to has ended, or was never there."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return True
    try:
        # What it has ended with is known a moment after it stops answering.
        return gateway.proc is not None and gateway.proc.wait(ENDING_S) is not None
    except subprocess.TimeoutExpired:
        return False


def _stop(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        spark.stop()
    except (Py4JError, ConnectionError):
        # Java has ended. The first call forgets Java's part, the second one Python's.
        spark.sparkContext.stop()


def _connect(settings: Settings) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        builder = SparkSession.builder.remote(settings.remote or "")
        for name, value in merged(settings).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        # Nothing is asked of the server before this.
        version: str = spark.version
    except ImportError as error:
        raise MissingExtra("Spark Connect needs more packages: pip install posthouse[pipeline]") from error
    except (PySparkException, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise StoreUnavailable(f"the Spark Connect server at {settings.remote} does not answer: {text:.200}") from error
    assert version
    return spark


@contextlib.contextmanager
def _environment(values: Mapping[str, str], spark_home: str) -> Iterator[Callable[[], str]]:
    """What Spark's launcher reads, set while it starts; yields what tells its words on stderr so far."""
    wanted = {**values, "SPARK_HOME": spark_home}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        with _quiet_stderr() as said:
            yield said
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[Callable[[], str]]:
    """Hold back what the JVM prints while it starts, and show it only if that fails in a way that nobody foresaw."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:

        def said() -> str:
            held.seek(0)
            return held.read().decode(errors="replace")

        os.dup2(held.fileno(), 2)
        try:
            yield said
        except PosthouseError:
            raise
        except BaseException:
            os.dup2(kept, 2)
            os.write(2, said().encode()[-4_000:])
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
