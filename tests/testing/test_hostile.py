"""The generator of hostile messages: repeatable, broad, and able to see what changed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flyball.brokers import Message
from flyball.testing.hostile import (
    differences,
    foreign_amqp,
    foreign_kafka,
    foreign_sqlite,
    foreign_stream,
    hostile_messages,
    is_plain,
)


def test_the_same_seed_gives_the_same_messages() -> None:
    first, again, other = (list(map(str, hostile_messages(seed, 300))) for seed in (1, 1, 2))
    assert first == again != other
    for generate in (foreign_amqp, foreign_kafka, foreign_stream, foreign_sqlite):
        assert list(generate(1, 50)) == list(generate(1, 50)) != list(generate(2, 50))


def test_every_field_is_hostile_in_many_types() -> None:
    types: dict[str, set[str]] = {}
    for case in hostile_messages(1, 5000):
        for name in case.fields:
            types.setdefault(name, set()).add(type(case.arguments[name]).__name__)
    assert set(types) == {"body", "id", "key", "headers", "event_time_s", "content_type"}
    assert min(map(len, types.values())) >= 4
    assert len(types["event_time_s"]) > 30


@pytest.mark.parametrize(
    ("arguments", "arrived", "found"),
    [
        ({"headers": {"n": np.float64(0.5)}}, {"headers": {"n": 0.5}}, []),
        ({"headers": {"n": math.nan}}, {"headers": {"n": math.nan}}, []),
        ({"headers": {"n": True}}, {"headers": {"n": 1}}, ["headers"]),
        ({"headers": {"n": 3.0}}, {"headers": {"n": 3}}, ["headers"]),
        ({"headers": {"n": "a"}}, {}, ["headers"]),
        ({"key": b""}, {"key": None}, ["key"]),
        ({"event_time_s": np.float32(1.5)}, {"event_time_s": 1.5}, []),
        ({"event_time_s": 1.5}, {"event_time_s": 1.0}, ["event_time_s"]),
        ({"content_type": "a"}, {"content_type": "b"}, ["content_type"]),
    ],
)
def test_differences(arguments: dict[str, object], arrived: dict[str, object], found: list[str]) -> None:
    sent = {"body": b"", "id": "1", **arguments}
    assert differences(sent, Message(**{"body": b"", "id": "1", **arrived})) == found  # type: ignore[arg-type]  # any value


def test_values_of_other_types_are_seen() -> None:
    assert is_plain(Message(b"", headers={"a": 1.5}))
    assert not is_plain(Message(b"", headers={"a": np.float64(1.5)}))
    assert not is_plain(Message(b"", key="text"))  # type: ignore[arg-type]  # it is what is looked for
