"""Partitions are the same in every process; impossible declarations are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.brokers.core.checks import ChannelSpec, partition_of
from flyball.brokers.port import Kind, Unsupported
from flyball.errors import FlyballError, InvalidValue


@given(st.binary(), st.integers(1, 50), st.integers(0, 1000))
def test_a_key_decides_alone(key: bytes, partitions: int, keyless: int) -> None:
    assert 0 <= partition_of(key, partitions, keyless) < partitions
    assert partition_of(key, partitions, keyless) == partition_of(key, partitions, 0)


def test_keys_and_keyless_batches_use_all_partitions() -> None:
    assert {partition_of(b"%d" % at, 8, 0) for at in range(200)} == set(range(8))
    assert [partition_of(None, 3, at) for at in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("kind", "partitions", "max_bytes", "retention_s"),
    [
        ("topic", 1, None, None),
        ("log", 0, None, None),
        ("queue", 2, None, None),
        ("log", 1, 0, None),
        ("log", 1, None, 0.0),
    ],
)
def test_impossible_declarations(
    kind: Kind, partitions: int, max_bytes: int | None, retention_s: float | None
) -> None:
    with pytest.raises(InvalidValue):
        ChannelSpec("jobs", kind, partitions, max_bytes, retention_s).check()


def test_a_queue_has_no_retention() -> None:
    with pytest.raises(Unsupported, match="retention_s"):
        ChannelSpec("jobs", retention_s=5.0).check()
    ChannelSpec("jobs", "log", 3, 10, 5.0).check()


def test_another_shape_is_refused() -> None:
    for fitting in (ChannelSpec("jobs", "log", 2), ChannelSpec("jobs", "log")):
        fitting.check_fits("log", 2)
    for wanted in (ChannelSpec("jobs"), ChannelSpec("jobs", "log", 3)):
        with pytest.raises(FlyballError, match="'jobs' exists as a log of 2"):
            wanted.check_fits("log", 2)
