"""The sample is fair, of a fixed size, and the same however the log is cut into chunks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from flyball.pipeline.source.sampling import EventSample, origin_hashes, quantile, rate
from flyball.pipeline.sql.columns import EVENT, MALFORMED, Columns

COLUMNS = Columns.parse("load double, event_time double")


def chunk(first: int, stop: int, malformed_every: int = 10) -> pa.RecordBatch:
    rows = [
        {
            "_kind": MALFORMED if offset % malformed_every == 0 else EVENT,
            "_partition": 1,
            "_offset": offset,
            "load": None if offset % malformed_every == 0 else float(offset),
            "event_time": 1.0,
        }
        for offset in range(first, stop)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS.row_schema())


@pytest.mark.parametrize("cuts", [(0, 5000), (0, 1, 2, 700, 4999, 5000), tuple(range(0, 5001, 50))])
def test_a_sample_does_not_depend_on_how_the_log_is_cut(cuts: tuple[int, ...]) -> None:
    sample = EventSample(["load"], most=200)
    for first, stop in pairwise(cuts):
        sample.see(chunk(first, stop))
    whole = EventSample(["load"], most=200)
    whole.see(chunk(0, 5000))
    assert sample.rows() == whole.rows()
    assert len(sample.rows()["load"]) == 200
    assert sample.events == 4500  # malformed ones are no events


def test_every_event_has_the_same_chance() -> None:
    sample = EventSample(["load"], most=2000)
    sample.see(chunk(0, 20_000))
    tenths = np.histogram(sample.rows()["load"], bins=10, range=(0, 20_000))[0]
    # 200 in each on average; the standard deviation is 13.
    assert np.all(abs(tenths - 200) < 5 * 13)


def test_neighbouring_places_and_partitions_are_drawn_independently() -> None:
    offsets = np.arange(100_000)
    bits = np.stack([origin_hashes(np.full(offsets.size, partition), offsets) for partition in range(3)])
    uniform = bits.astype(np.float64) / 2.0**64
    assert abs(uniform.mean() - 0.5) < 5 / np.sqrt(12 * uniform.size)
    for other in (uniform[1], uniform[2], np.roll(uniform[0], 1)):
        assert abs(np.corrcoef(uniform[0], other)[0, 1]) < 5 / np.sqrt(offsets.size)


def test_a_quantile_counts_each_value_by_its_weight() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=500)
    weights = rng.integers(1, 9, size=500)
    repeated = np.sort(np.repeat(values, weights))
    for level in (0.01, 0.25, 0.5, 0.9, 0.999):
        wanted = repeated[max(0, int(np.ceil(level * repeated.size)) - 1)]
        assert quantile(values, weights.astype(float), level) == wanted


def test_a_rate_is_not_moved_by_wrong_clocks() -> None:
    times = np.concatenate([np.linspace(1000.0, 1010.0, 2000), [0.0, 4e9]])
    found = rate(times, np.full(times.size, 3.0), np.ones(times.size, bool))
    assert found == pytest.approx(600.0, rel=0.01)
    assert rate(np.full(100, 5.0), np.ones(100), np.ones(100, bool)) is None
