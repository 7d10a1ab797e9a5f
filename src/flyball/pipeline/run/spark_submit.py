"""Run by spark-submit: its JVM is there before Python starts, with a master and settings of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flyball.pipeline.config.pipeline import PipelineConfig

_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
_ABOUT_THE_SUBMISSION = ("spark.app.", "spark.submit.", "spark.master")


def is_submitted() -> bool:
    return _GATEWAY[0] in os.environ


def submitted_settings() -> dict[str, str]:
    """Options of spark-submit besides the master (--conf and the like); empty if it did not start this process."""
    return {name: value for name, value in _all().items() if not name.startswith(_ABOUT_THE_SUBMISSION)}


def on_submitted_master(config: PipelineConfig) -> PipelineConfig:
    """With the master of spark-submit, unless the config names one, which wins as everywhere in Spark."""
    master = _all().get("spark.master")
    if master is None or "master" in config.model_fields_set:
        return config
    return config.model_copy(update={"master": master})


def leave_gateway() -> None:
    """Processes that are started from now on have Spark applications of their own, each with its own JVM."""
    for name in _GATEWAY:
        os.environ.pop(name, None)


def _all() -> dict[str, str]:
    if not is_submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the JVM; starts no application
    return dict(SparkConf().getAll())
