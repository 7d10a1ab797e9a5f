"""One Spark session for all tests of the pipeline: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from flyball.pipeline.run.session import spark_session

    session = spark_session("flyball-tests", workdir=tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
