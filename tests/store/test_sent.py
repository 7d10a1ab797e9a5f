"""Confirmed messages that wait for a receipt: passed over, received by id, overdue after a time."""

from __future__ import annotations

from typing import NamedTuple

from flyball.message import Message
from flyball.store import Outbox, SqliteDatabase
from flyball.store.sent import SentMessages


class Entry(NamedTuple):
    message: Message
    channel: str = "q"
    urgency: int = 4


def test_sent_messages_wait_for_their_receipt_and_are_skipped_meanwhile(database: SqliteDatabase) -> None:
    now_s = [100.0]
    outbox = Outbox(database)
    sent = SentMessages(database, clock=lambda: now_s[0])
    one, two, three, _ = outbox.append([Entry(Message(b"%d" % n, f"m{n}")) for n in range(1, 5)])
    sent.mark([one, two])
    now_s[0] = 105.0
    sent.mark([three])
    assert sent.count() == 3
    assert [pending.message.id for pending in outbox.read(1, 9, 10)] == ["m4"]
    assert [pending.message.id for pending in outbox.read(0, outbox.newest(), 10)] == ["m4"]
    assert outbox.pending()[0] == 4
    assert sent.overdue(6.0, 10) == []
    now_s[0] = 106.0
    assert [(late.seq, late.message.body) for late in sent.overdue(6.0, 10)] == [(one, b"1"), (two, b"2")]
    assert len(sent.overdue(6.0, 1)) == 1
    assert sent.received(["m2", "m4", "unknown"]) == 1  # m4 is not confirmed yet
    assert outbox.pending()[0] == 3
    sent.mark([one])
    assert sent.overdue(6.0, 10) == []
    sent.forget_all()
    assert (sent.count(), outbox.pending()[0]) == (0, 1)


def test_what_was_marked_before_the_clock_was_set_back_is_overdue(database: SqliteDatabase) -> None:
    now_s = [2000.0]
    sent = SentMessages(database, clock=lambda: now_s[0])
    sent.mark(Outbox(database).append([Entry(Message(b"", "m"))]))
    now_s[0] = 1000.0  # in the next run
    assert [late.message.id for late in sent.overdue(60.0, 10)] == ["m"]
