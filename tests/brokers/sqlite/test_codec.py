"""Batches come back exactly as they went in, whole and in ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.brokers.port import Message
from flyball.brokers.sqlite.codec import Batch, encode

HEADERS = st.dictionaries(
    st.text(max_size=5),
    st.text(max_size=5) | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.binary(max_size=5),
    max_size=3,
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=40),
    id=st.text(max_size=6) | st.uuids().map(lambda value: value.hex),
    key=st.none() | st.binary(max_size=6),
    headers=HEADERS | st.just({}),
    event_time_s=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    content_type=st.none() | st.sampled_from(["text/plain", "application/json"]),
)


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.data())
def test_round_trip(messages: list[Message], data: st.DataObject) -> None:
    batch = Batch(encode(messages), len(messages))
    assert batch.count == len(messages)
    assert batch.decode() == (messages, None)
    low = data.draw(st.integers(0, len(messages)))
    high = data.draw(st.integers(low, len(messages)))
    assert batch.decode(low, high) == (messages[low:high], None)
    assert batch.bodies(low, high) == [message.body for message in messages[low:high]]
    for got, sent in zip(batch.decode()[0], messages, strict=True):
        assert [type(value) for value in got.headers.values()] == [type(value) for value in sent.headers.values()]


def test_a_layout_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layout \(9\)"):
        Batch(b"\x09" + encode([Message(b"x")])[1:], 1)


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.data())
def test_damage_beside_the_bodies_makes_messages_unreadable_and_loses_none(
    messages: list[Message], data: st.DataObject
) -> None:
    extras = Batch(encode(messages), len(messages))._extra_json
    damaged = data.draw(st.binary(min_size=len(extras), max_size=len(extras)))
    stored = encode(messages).replace(extras, damaged, 1) if extras else encode(messages)
    got, unreadable = Batch(stored, len(messages)).decode()
    assert [message.body for message in got] == [message.body for message in messages]
    assert unreadable is not None or not extras or all(type(message.id) is str for message in got)


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.data())
def test_a_batch_that_is_cut_off_or_counts_wrongly_has_unreadable_messages(
    messages: list[Message], data: st.DataObject
) -> None:
    whole = encode(messages)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for stored, count in ((cut, len(messages)), (whole, len(messages) + 1)):
        got, unreadable = Batch(stored, count).decode()
        assert unreadable is not None
        assert "damaged" in unreadable
        assert [message.body for message in got] == [stored] + [b""] * (count - 1)
        assert len({message.id for message in got}) == count
