"""The one place that builds a Spark session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flyball.errors import require
from flyball.java import java_home
from flyball.pipeline.run.spark_submit import submitted_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Half the time of a small batch is spent on checkpoint files; this file manager writes them without the
    # rename dance of the default. Neither calls fsync: a killed process is covered, a power cut is not.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Few cores and small heaps: the serial collector starts faster and pauses no longer.
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseSerialGC -Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
}

# The same where the JVM was there before us, under spark-submit.
_QUIET = {"spark.log.level": "ERROR"}


def spark_session(
    name: str = "flyball",
    master: str = "local[2]",
    settings: dict[str, str] | None = None,
    workdir: Path | None = None,
) -> SparkSession:
    """A session with the source `flyball` registered.

    `settings` take precedence over options of spark-submit, and those over our defaults. With a `workdir`, what
    Spark's processes print goes to `spark.log` there. Whatever `master` says, driver and Python workers run this
    very interpreter.
    """
    require("pyspark", "spark")
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        # A laptop's host name often resolves to an address that is gone by now.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    if workdir is not None:
        builder = builder.config("spark.sql.warehouse.dir", str(workdir / "warehouse"))
        builder = builder.config("spark.local.dir", str(workdir / "local"))
    for key, value in {**_SETTINGS, **_QUIET, **submitted_settings(), **(settings or {})}.items():
        builder = builder.config(key, value)
    with _children_speak_to(workdir / "spark.log" if workdir is not None else None):
        session = builder.getOrCreate()
    from flyball.pipeline.source.datasource import FlyballSource

    session.dataSource.register(FlyballSource)
    return session


@contextmanager
def _children_speak_to(log: Path | None) -> Iterator[None]:
    """Processes that are started meanwhile have that file as standard error; this one keeps its own.

    Spark's JVM and Python workers inherit ours and print there, down to tracebacks of workers that were asked to
    stop. PySpark offers no way to send that elsewhere, so the descriptor is swapped while it starts them.
    """
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    ours, stream = os.dup(2), sys.stderr
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(os.dup(ours), "w", buffering=1) as sys.stderr:
            yield
    finally:
        sys.stderr = stream
        os.dup2(ours, 2)
        os.close(ours)
