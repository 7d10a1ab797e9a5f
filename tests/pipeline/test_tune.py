"""Flow control identified open loop on a running pipeline, and the gains that a pipeline then reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from flyball.control.gains import Gains
from flyball.control.models import first_order
from flyball.control.tuning import Untunable
from flyball.errors import InvalidValue
from flyball.pipeline.config.flow_gains import read_gains, write_gains
from flyball.pipeline.config.lanes import LanesConfig
from flyball.pipeline.tune import tune
from tests.pipeline.run.test_inline import config, publish, random_bodies


def test_the_queue_is_found_whatever_the_combiner_takes_out_of_it(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, random_bodies(random.Random(5), 0, 60_000))
    settings = config(count=1, queue_bytes=800_000, free_bytes=500_000, interval_s=0.4)
    found = tune(url, settings, tmp_path, samples=16, hold=1, spark=spark)
    model = found.fit.model
    assert model.a[0] == pytest.approx(1.0, abs=0.1)
    assert model.b[0] == pytest.approx(-1.0, abs=0.3)
    assert found.fit.r2 > 0.95
    assert found.candidates[0].accepted, found.candidates[0].reason


def test_an_empty_input_tells_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, random_bodies(random.Random(5), 0, 40))
    settings = config(count=1, queue_bytes=800_000, free_bytes=500_000, interval_s=0.1)
    with pytest.raises(Untunable, match="fill the input log"):
        tune(url, settings, tmp_path, samples=12, hold=1, wait_s=8.0, spark=spark)


def test_gains_are_read_again_and_verified(tmp_path: Path) -> None:
    path = tmp_path / "flow.toml"
    write_gains(path, Gains(-0.5, -0.1), first_order(1.0, -1.0), r2=0.99)
    assert read_gains(path) == {"kp": -0.5, "ki": -0.1}
    assert LanesConfig.model_validate({"flow": str(path)}).flow_gains == {"kp": -0.5, "ki": -0.1}
    write_gains(path, Gains(0.5, 0.1), first_order(1.0, -1.0), r2=0.99)
    with pytest.raises(ValidationError, match="are refused"):
        LanesConfig.model_validate({"flow": str(path)})
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_gains(tmp_path / "missing.toml")
    path.write_text("[controller]\nkp = 1\n")
    with pytest.raises(InvalidValue, match="let it write the file again"):
        read_gains(path)
