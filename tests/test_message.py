"""The check of messages: what it accepts stays as it is, what it refuses is named in one sentence."""

from __future__ import annotations

import datetime
import enum
import fractions
from collections import ChainMap
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.errors import InvalidValue
from flyball.message import MAX_HEADERS_BYTES, MAX_TIME_S, HeaderValue, Message, check_message, check_name
from flyball.testing.contract.messages import extreme_messages, odd_messages, unfit_messages


class Colour(str, enum.Enum):  # noqa: UP042  str() of a StrEnum would be its value anyway
    RED = "red"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no description")


@pytest.mark.parametrize("message", [*odd_messages(), *extreme_messages()])
def test_a_fit_message_is_returned_itself(message: Message) -> None:
    assert check_message(message) is message


@pytest.mark.parametrize("at", range(len(unfit_messages())))
def test_an_unfit_message_is_refused_in_one_sentence(at: int) -> None:
    with pytest.raises(InvalidValue, match=r"must( not)? ") as refused:
        check_message(unfit_messages()[at])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"id": 17}, "^the id of a message must be str, got int 17$"),
        ({"id": ""}, "^the id of a message must not be empty$"),
        ({"key": 10**5000}, r"^the key of a message must be bytes \| None, got int$"),
        ({"headers": np.array([1, 2])}, r"^the headers of a message must be a mapping, got ndarray array\("),
        ({"id": "é" * 128}, "^the id of a message must take at most 255 bytes, got 256 in "),
        ({"content_type": ["a"]}, r"^content_type of a message must be str \| None, got list \['a'\]$"),
        ({"event_time_s": datetime.date(2026, 1, 1)}, "got date 2026-01-01: pass datetime.timestamp"),
        (
            {"event_time_s": "now"},
            "^event_time_s of a message must be a number of seconds since 1970, got str 'now'$",
        ),
        ({"event_time_s": np.datetime64("2026-01-01")}, "^event_time_s of a message must be a number of seconds"),
        ({"event_time_s": np.timedelta64(1, "s")}, "^event_time_s of a message must be a number of seconds"),
        ({"event_time_s": float("inf")}, "must be finite and at most 2.*53 seconds from 1970, got inf$"),
        ({"headers": None}, "^the headers of a message must be a mapping, got NoneType None$"),
        (
            {"headers": {"n": 2**63}},
            "^header 'n' of a message must be an integer from .*, got an integer of 64 bits: ",
        ),
        ({"headers": {"n": fractions.Fraction(1, 3)}}, "^header 'n' of a message must be str "),
        (
            {"headers": {"n": Hostile()}},
            "^header 'n' of a message must be str .* got Hostile <Hostile instance at ",
        ),
        ({"headers": {"CC": "x"}}, "^a header of a message must not be named 'CC'"),
        ({"headers": {"file": "\udcff"}}, "header 'file' of a message must be text that UTF-8 can encode"),
        ({"key": bytes(MAX_HEADERS_BYTES + 1)}, "^key and headers of a message must take at most 100000 bytes"),
    ],
)
def test_the_sentence_names_the_field_and_the_value(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        check_message(Message(b"", **options))


@pytest.mark.parametrize("value", [b"body", None, {"body": b""}])
def test_what_is_no_message_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match=f"^a message must be a Message, got {type(value).__name__} "):
        check_message(value)


def test_values_of_other_types_become_plain_ones_in_a_copy() -> None:
    headers: Any = {
        Colour.RED: Colour.RED,
        "numpy": np.float64(1.5),
        "long double": np.longdouble(2.5),
        "unsigned": np.uint8(9),
        "truth": np.bool_(False),
    }
    time_s: Any = np.float32(0.5)
    odd = Message(np.bytes_(b"b"), Colour.RED, np.bytes_(b"k"), headers, time_s)
    plain = check_message(odd)
    expected: dict[str, HeaderValue] = {
        "red": "red",
        "numpy": 1.5,
        "long double": 2.5,
        "unsigned": 9,
        "truth": False,
    }
    assert plain == Message(b"b", "red", b"k", expected, 0.5)
    fields = (plain.body, plain.id, plain.key, plain.event_time_s, *plain.headers, *plain.headers.values())
    assert {type(each) for each in fields} <= {bytes, str, int, float, bool}
    assert type(odd.id) is Colour
    assert check_message(plain) is plain


def test_any_mapping_may_hold_the_headers() -> None:
    for headers in (MappingProxyType({"a": 1}), ChainMap({"a": 1}, {"b": 2}), ChainMap()):
        message = Message(b"", headers=headers)
        assert check_message(message) is message


_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.datetimes(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(st.characters()), inner, max_size=2),
    max_leaves=4,
)


@given(st.builds(Message, _anything, _anything, _anything, _anything, _anything, _anything))
def test_whatever_is_passed_is_accepted_as_plain_values_or_refused(message: Message) -> None:
    try:
        plain = check_message(message)
    except InvalidValue:
        return
    assert type(plain.body) is bytes
    assert 0 < len(plain.id.encode()) <= 255
    assert plain.event_time_s is None or abs(plain.event_time_s) <= MAX_TIME_S
    for name, value in plain.headers.items():
        assert 0 < len(name.encode()) <= 255
        assert type(value) in (str, bytes, int, float, bool)
        assert type(value) is not int or -(2**63) <= value < 2**63


@pytest.mark.parametrize("name", ["", "a b", "a..b", "x" * 201, 5, None, b"orders"])
def test_a_name_that_no_broker_takes_is_refused(name: Any) -> None:
    with pytest.raises(InvalidValue, match="channel"):
        check_name(name)
