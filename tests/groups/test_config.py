"""The configuration of a group: what is refused, each in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from flyball.errors import InvalidValue
from flyball.groups.config import GroupConfig

_OPTIONS: dict[str, Any] = {"name": "shop", "topics": {"orders": 8}, "store": "sqlite:///groups.db"}


def test_a_store_on_one_host_or_on_several() -> None:
    for store in ("sqlite:///groups.db", "postgresql://flyball@db/shop"):
        assert GroupConfig(**{**_OPTIONS, "store": store}).store == store


def test_topics_with_and_without_a_number_of_queues() -> None:
    assert GroupConfig(**_OPTIONS).queue_counts == {"orders": 8}
    assert GroupConfig(**{**_OPTIONS, "topics": ["orders", "bills"]}).queue_counts == {
        "orders": None,
        "bills": None,
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"topics": {}}, "group: topics: must name at least one topic, got none"),
        ({"topics": ["a", "a"]}, "group: topics: must differ, got ['a', 'a']"),
        ({"topics": {"a": 0}}, "group: topics.a = 0: input should be greater than or equal to 1"),
        (
            {"store": "groups.db"},
            "group: store: must be a URL like sqlite:///groups.db or postgresql://user@host/database, got 'grou",
        ),
        ({"strategy": "best"}, "group: strategy = 'best': input should be 'sticky', 'load'"),
        ({"session_timeout_s": 2}, "group: session_timeout_s must be >= 3 * heartbeat_s (3), got 2"),
        ({"heartbeat_s": float("nan")}, "group: heartbeat_s = nan: input should be a finite number"),
        ({"name": ""}, "group: name = '': string should have at least 1 character"),
        ({"member": 7}, "group: member = 7: input should be a valid string"),
        (
            {"session_timeout": 9},
            "group: there is no key session_timeout (here 9); did you mean session_timeout_s?",
        ),
        ({"mode": "both"}, "group: mode = 'both': input should be 'broker' or 'client'"),
        (
            {"mode": "client"},
            "group: strategy must need no assignment before, such as 'averagely', with mode 'client'",
        ),
        ({"views": {"loss": 0.1}}, "group: views are for mode 'client', got them with mode 'broker'"),
        (
            {"mode": "client", "strategy": "averagely", "views": {"loss": 1}},
            "group: views.loss = 1: input should be less than 1",
        ),
        ({"options": {"band": -1}}, "group: options.band = -1: input should be greater than or equal to 0"),
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        GroupConfig(**{**_OPTIONS, **changes})
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)
