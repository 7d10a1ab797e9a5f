"""The crash checker finds each kind of broken promise."""

from __future__ import annotations

import zlib

from flyball.testing.crash import Ledger, body_of


def ledger(*lines: str) -> Ledger:
    entries = Ledger(run="r")
    for line in lines:
        entries.note(line + "\n")
    return entries


def got(id: str, content: bytes | None = None) -> str:
    return f"got {id} {zlib.crc32(body_of(id) if content is None else content)}"


def test_repeats_with_the_same_content_are_allowed_and_counted() -> None:
    entries = ledger("sent r-1", got("r-1"), got("r-1"), "acked r-1", got("r-2"))
    assert entries.problems() == []
    assert (entries.repeats, entries.acked) == (1, ["r-1"])


def test_a_confirmed_message_that_was_never_delivered_is_lost() -> None:
    assert ledger("sent r-1", "sent r-2", got("r-2")).problems() == ["r-1 was confirmed and never delivered"]


def test_another_content_under_the_same_id_is_found() -> None:
    entries = ledger("sent r-1", got("r-1"), got("r-1", b"other"))
    assert entries.problems() == ["r-1 was delivered with another content"]


def test_a_message_that_was_never_sent_is_found() -> None:
    assert ledger(got("x-1")).problems() == ["x-1 was delivered but never sent"]


def test_contents_differ_between_ids() -> None:
    assert len({body_of(f"r-{number:08d}") for number in range(100)}) == 100
    assert len(body_of("r-00000001")) == 256
