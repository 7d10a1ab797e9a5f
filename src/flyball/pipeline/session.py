"""The one place that builds a Spark session."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flyball.errors import require
from flyball.java import java_home

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


def spark_session(
    name: str = "flyball",
    master: str = "local[2]",
    settings: dict[str, str] | None = None,
    workdir: Path | None = None,
) -> SparkSession:
    """A session with the source `flyball` registered.

    `settings` win over ours. Whatever `master` says, driver and Python workers run this very interpreter.
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
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    from flyball.pipeline.source import FlyballSource

    session.dataSource.register(FlyballSource)
    return session
