"""Names and patterns, checked against a second, slower definition of what a pattern means."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyball.brokers.core.names import check_name, is_pattern, matches
from flyball.errors import InvalidValue

WORDS = st.lists(st.sampled_from(["a", "b", "a-b", "A"]), min_size=1, max_size=5)
PARTS = st.lists(st.sampled_from(["a", "b", "a-b", "A", "*", "#"]), min_size=1, max_size=5)


def means(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(means(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and means(pattern[1:], words[1:])


@given(PARTS, WORDS)
@example(["#", "#"], ["a"])
@example(["#", "a", "#"], ["a"])
@example(["#", "*"], ["a"])
@example(["*", "#", "a"], ["a", "a"])
def test_a_pattern_matches_what_it_means(pattern: list[str], words: list[str]) -> None:
    assert matches(".".join(pattern), ".".join(words)) == means(pattern, words)


@pytest.mark.parametrize("name", ["a", "city.lyon.traffic", "A-b_c@d:1", "x" * 200, "0.1"])
def test_good_names(name: str) -> None:
    assert check_name(name) == name
    assert not is_pattern(name)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a b", "ä", "a*", "#", "x" * 201, "a\n", "a/b"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidValue, match="invalid channel name"):
        check_name(name)


@pytest.mark.parametrize("pattern", ["a.*", "#", "*.b", "a.#.c"])
def test_patterns_are_recognised(pattern: str) -> None:
    assert is_pattern(pattern)


@pytest.mark.parametrize("pattern", ["a*.b", "a.##", "", "a..#", "a b.#"])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue):
        matches(pattern, "a.b")
