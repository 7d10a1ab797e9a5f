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

URGENCY_STEP_S = 3.0


class Entry(NamedTuple):
    message: Message
    urgency: int
    channel: str = "c"


class OutboxModel(RuleBasedStateMachine):
    """`waiting` and `taken` hold (urgency, accepted, seq, id) in order of acceptance."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now_s = 0.0
        self.count = 0
        self.waiting: list[tuple[int, float, int, str]] = []
        self.taken: list[tuple[int, float, int, str]] = []

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
            self.waiting.append((entry.urgency, self.now_s, seq, entry.message.id))

    @rule(limit=st.integers(1, 5))
    def take(self, limit: int) -> None:
        got = self.outbox.take(limit, urgency_step_s=URGENCY_STEP_S)
        due: dict[int, float] = {}
        ranked = []
        for urgency, accepted_s, seq, id in sorted(self.waiting, key=lambda entry: entry[2]):
            due[urgency] = max(due.get(urgency, float("-inf")), accepted_s + urgency * URGENCY_STEP_S)
            ranked.append((due[urgency], urgency, seq, id))
        expected = [id for _, _, _, id in sorted(ranked)[:limit]]
        assert [pending.message.id for pending in got] == expected
        self.taken += [entry for entry in self.waiting if entry[3] in expected]
        self.waiting = [entry for entry in self.waiting if entry[3] not in expected]

    @rule(data=st.data())
    def confirm_or_give_back(self, data: st.DataObject) -> None:
        if not self.taken:
            return
        some = data.draw(st.lists(st.sampled_from(self.taken), unique=True))
        back = data.draw(st.booleans())
        (self.outbox.give_back if back else self.outbox.confirm)([entry[2] for entry in some])
        self.taken = [entry for entry in self.taken if entry not in some]
        if back:
            self.waiting += some

    @rule()
    def restart(self) -> None:
        self.database.close()
        self.open()
        self.waiting += self.taken
        self.taken = []

    @invariant()
    def counts_are_true(self) -> None:
        if hasattr(self, "outbox"):
            assert self.outbox.pending()[0] == len(self.waiting) + len(self.taken)
            assert self.outbox.taken == len(self.taken)

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        self.folder.cleanup()


TestOutboxModel = OutboxModel.TestCase
TestOutboxModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
