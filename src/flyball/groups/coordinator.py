"""The coordinator of a group: every member is a candidate, the one with the lease makes rounds.

A round reads the sessions after the state that it goes on from, removes those that have expired, lets the policy
decide, and writes. Every write carries the token of the lease: a leader that was paused and replaced cannot write.
A leader that fails three rounds in a row resigns, and lets others try first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from flyball.groups.group_store import GroupStore, StoredState
from flyball.groups.policy.coordination import Moment, coordinate
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import PlanRecord
from flyball.store.candidacy import Candidacy
from flyball.store.protocol import Conflict, Fenced

log = logging.getLogger("flyball.groups")


class Coordinator:
    """One candidate. All calls must come from one thread at a time, and may wait for the store."""

    def __init__(
        self,
        store: GroupStore,
        rules: GroupRules,
        candidate: str,
        *,
        ttl_s: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._rules = store, rules
        self._wall_clock = wall_clock
        self._candidacy = Candidacy(store, candidate, ttl_s=ttl_s)
        self._known: StoredState | None = None

    @property
    def candidate(self) -> str:
        return self._candidacy.candidate

    @property
    def leads(self) -> bool:
        return self._candidacy.leads

    def run_round(self) -> StoredState | None:
        """Campaign, and as the leader bring the group forward; return the state then, None if another leads.

        A round that fails raises what happened.
        """
        try:
            found = self._run_round()
        except Exception as error:
            self._candidacy.note_failure(error)
            raise
        self._candidacy.note_success()
        return found

    def resign(self) -> None:
        """Give the lease back and stop being a candidate."""
        self._known = None
        self._candidacy.resign()

    def _run_round(self) -> StoredState | None:
        lease, is_new = self._candidacy.campaign()
        if is_new:
            self._known = None  # what another leader wrote meanwhile has to be read
        if lease is None:
            return None
        known = self._known if self._known is not None else self._store.read()
        sessions = self._store.sessions()
        self._store.remove([session for session in sessions if not session.alive], lease)
        after = coordinate(known.state, sessions, self._rules, Moment(self._store.now_s(), self._wall_clock()))
        try:
            if after.round != known.state.round:
                self._known = self._store.write(after, known, lease)
                log.info("%s: round %d%s", self.candidate, after.round, _news(known.state.history, after.history))
            else:
                self._known = replace(known, state=after)
        except (Fenced, Conflict):
            self._known = self._candidacy.lease = None
            raise
        return self._known


def _news(before: tuple[PlanRecord, ...], after: tuple[PlanRecord, ...]) -> str:
    new = after and (not before or after[-1].round != before[-1].round)
    return f": {after[-1].reason}" if new else ""
