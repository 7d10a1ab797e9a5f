"""The outbox against a model of it: a list in memory, under any sequence of operations and restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flyball.message import Message
from flyball.store import Outbox, SqliteDatabase


class Entry(NamedTuple):
    message: Message
    urgency: int
    channel: str = "c"


class OutboxModel(RuleBasedStateMachine):
    """`waiting` has (seq, accepted, urgency, id) of each unconfirmed message, in order of acceptance."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now_s = 0.0
        self.count = 0
        self.waiting: list[tuple[int, float, int, str]] = []

    @initialize()
    def open(self) -> None:
        self.database = SqliteDatabase(Path(self.folder.name) / "store.db", durability="process")
        self.outbox = Outbox(self.database, clock=lambda: self.now_s)

    @rule(classes=st.lists(st.integers(0, 9), max_size=6), step_s=st.floats(-5, 20))
    def append(self, classes: list[int], step_s: float) -> None:
        self.now_s += step_s
        batch = []
        for urgency in classes:
            self.count += 1
            batch.append(Entry(Message(b"b", str(self.count)), urgency))
        seqs = self.outbox.append(batch)
        for entry, seq in zip(batch, seqs, strict=True):
            self.waiting.append((seq, self.now_s, entry.urgency, entry.message.id))

    @rule(first=st.integers(0, 40), length=st.integers(0, 40), limit=st.integers(1, 5))
    def read(self, first: int, length: int, limit: int) -> None:
        pending = self.outbox.read(first, first + length, limit)
        expected = [entry for entry in self.waiting if first <= entry[0] <= first + length][:limit]
        assert [(one.seq, one.accepted_s, one.urgency, one.message.id) for one in pending] == expected

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if not self.waiting:
            return
        confirmed = data.draw(st.lists(st.sampled_from(self.waiting), unique=True))
        self.outbox.confirm([entry[0] for entry in confirmed])
        self.waiting = [entry for entry in self.waiting if entry not in confirmed]

    @rule()
    def restart(self) -> None:
        self.database.close()
        self.open()

    @invariant()
    def counts_are_true(self) -> None:
        if hasattr(self, "outbox"):
            assert self.outbox.pending()[0] == len(self.waiting)
            assert self.outbox.newest() == self.count

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        self.folder.cleanup()


TestOutboxModel = OutboxModel.TestCase
TestOutboxModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
