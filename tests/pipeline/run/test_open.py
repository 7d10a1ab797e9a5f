"""`flyball.Pipeline`: the config chooses the runner; a block starts and stops it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flyball import Pipeline, PipelineConfig
from flyball.errors import InvalidValue
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.run.queries import FailedForGood
from tests.pipeline.run.test_inline import config, expected, publish, random_bodies, results
from tests.pipeline.run.test_queries import fail_after_writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_runner(runner: str | None, master: str = "local[2]") -> PipelineConfig:
    given = config(count=1).model_dump(exclude_unset=True)
    return PipelineConfig.model_validate(given | {"runner": runner, "master": master})


@pytest.mark.parametrize(
    ("runner", "master", "wanted"),
    [
        ("process", "local[2]", "process"),
        ("inline", "local[2]", "inline"),
        (None, "local[2]", "inline"),
        (None, "spark://127.0.0.1:7077", "process"),
    ],
)
def test_the_config_chooses_the_runner(tmp_path: Path, runner: str | None, master: str, wanted: str) -> None:
    pipeline = Pipeline(f"sqlite:///{tmp_path / 'broker.db'}", with_runner(runner, master), tmp_path)
    assert pipeline.runner == wanted
    assert (pipeline.pids(), pipeline.restarts()) == ({}, {})


def test_a_block_starts_and_stops_a_pipeline_whose_folder_keeps_its_runner(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(random.Random(5), 0, 500)
    publish(url, [*bodies, END_OF_INPUT])
    with Pipeline(url, with_runner("inline"), tmp_path, spark=spark) as pipeline:
        pipeline.drain()
        assert pipeline.ended
        assert pipeline.restarts() == {"tier1": 0}
        with pytest.raises(InvalidValue, match="balance cannot be set to False while runner = 'inline' runs"):
            pipeline.set_balance(False)
    assert results(url) == expected(bodies)
    assert spark.streams.active == []
    with pytest.raises(InvalidValue, match="was begun with runner = 'inline'"):
        Pipeline(url, with_runner("process"), tmp_path)


def test_a_block_that_ends_raises_what_had_stopped_a_part(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, random_bodies(random.Random(5), 0, 200))
    fail_after_writing(monkeypatch, [ValueError("no such thing")])

    def run_until_it_fails() -> None:
        with Pipeline(url, with_runner("inline"), tmp_path, spark=spark):
            while spark.streams.active:
                time.sleep(0.05)

    with pytest.raises(FailedForGood, match="ValueError: no such thing"):
        run_until_it_fails()
    assert spark.streams.active == []


def test_a_session_is_refused_by_lanes_that_have_their_own(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="each lane starts a Spark session of its own"):
        Pipeline(f"sqlite:///{tmp_path / 'broker.db'}", with_runner("process"), tmp_path, spark=spark)
