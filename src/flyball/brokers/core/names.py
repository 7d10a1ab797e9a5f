"""Hierarchical channel names and the patterns that match them."""

from __future__ import annotations

import re

from flyball.message import check_name as check_name


def is_pattern(text: str) -> bool:
    return any(word in ("*", "#") for word in text.split("."))


def to_regex(pattern: str) -> str:
    """The regular expression (for a full match) of a pattern: * is one word, # any number of words.

    >>> import re
    >>> [bool(re.fullmatch(to_regex("city.*.load"), name)) for name in ("city.lyon.load", "city.load")]
    [True, False]
    >>> [bool(re.fullmatch(to_regex("city.#"), name)) for name in ("city", "city.lyon.load", "citys")]
    [True, True, False]
    >>> [bool(re.fullmatch(to_regex("#.load"), name)) for name in ("load", "city.lyon.load", "upload")]
    [True, True, False]
    """
    parts = pattern.split(".")
    if all(part == "#" for part in parts):
        return ".+"
    expression, started = "", False
    for part in parts:
        if part == "#":
            # Before the first fixed word each extra word brings the dot after it, later the dot before it.
            expression += r"(?:\.[^.]+)*" if started else r"(?:[^.]+\.)*"
            continue
        expression += r"\." if started else ""
        expression += "[^.]+" if part == "*" else re.escape(check_name(part))
        started = True
    return expression


def matches(pattern: str, channel: str) -> bool:
    return re.fullmatch(to_regex(pattern), channel) is not None
