"""Replicas of a group's view, for client mode: each is a document in the group's store that heartbeats update.

A replica shows its readers what it knew some time ago (`lag_s`), and heartbeats, notices and fetches may be lost
(`loss`): as with the name servers and brokers that RocketMQ's clients ask.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flyball.groups.policy.client_mode import Replica, View, forget_member, forget_silent, note_heartbeat
from flyball.groups.policy.client_mode import replica_lag_s as replica_lag_s
from flyball.groups.policy.state import Subscription
from flyball.store.documents import ABSENT, Documents
from flyball.store.protocol import Conflict, Database

_SPACE = "group views"
_ATTEMPTS = 20  # of a write that others come before


class ViewReplicas:
    """All replicas of one group, as one member calls them. Calls wait for the database."""

    def __init__(
        self,
        database: Database,
        group: str,
        *,
        count: int,
        lag_s: float,
        loss: float,
        rng: random.Random,
    ) -> None:
        self._database, self._documents = database, Documents(database, _SPACE)
        self._keys = [f"{group} {number}" for number in range(count)]
        self._lags_s = [replica_lag_s(lag_s, number, count) for number in range(count)]
        self._loss, self._rng = loss, rng
        self._seen: dict[str, int] = {}

    def heartbeat(
        self, member: str, subscription: Subscription, topics: Mapping[str, int], timeout_s: float
    ) -> bool:
        """Report to all replicas; whether one of them has a notice that it shows something new."""
        news = False
        for key, lag_s in zip(self._keys, self._lags_s, strict=True):
            if self._is_lost():
                continue

            def note(replica: Replica, now_s: float) -> Replica:
                heard = note_heartbeat(replica, member, subscription, topics, now_s)
                return forget_silent(heard, timeout_s, now_s)

            shown = self._change(key, lag_s, note)
            if self._seen.get(key) != shown and not self._is_lost():
                self._seen[key], news = shown, True
        return news

    def leave(self, member: str) -> None:
        """Tell all replicas that a member is gone."""
        for key, lag_s in zip(self._keys, self._lags_s, strict=True):
            if not self._is_lost():
                self._change(key, lag_s, lambda replica, _: forget_member(replica, member))

    def fetch(self) -> View | None:
        """The view of a random replica; None: the call was lost, or the replica is new."""
        key = self._rng.choice(self._keys)
        document = None if self._is_lost() else self._documents.get(key)
        return None if document is None else _decode_view(document.value["shown"])

    def _is_lost(self) -> bool:
        return self._rng.random() < self._loss

    def _change(self, key: str, lag_s: float, change: Any) -> int:
        """Change what a replica knows, and what it shows once that is old enough; return the number shown."""
        for _ in range(_ATTEMPTS):
            document = self._documents.get(key)
            now_s = self._database.time().seconds
            before = _EMPTY if document is None else document.value
            replica = change(_decode_replica(before), now_s)
            view = _encode_view(replica.view)
            pending, since_s = before["pending"], before["since_s"]
            if view != pending:
                pending, since_s = view, now_s
            shown, number = before["shown"], before["number"]
            # a time in the future is from before a restart of the store's host
            if shown != pending and not 0 <= now_s - since_s < lag_s:
                shown, number = pending, number + 1
            value = {
                "heard_s": dict(replica.heard_s),
                "pending": pending,
                "since_s": since_s,
                "shown": shown,
                "number": number,
            }
            try:
                self._documents.put(key, value, expected=ABSENT if document is None else document.version)
            except Conflict:
                continue
            return int(number)
        raise Conflict(f"the view {key!r} was changed by others {_ATTEMPTS} times in a row: try again")


_NO_VIEW: dict[str, Any] = {"members": {}, "topics": {}}
_EMPTY: dict[str, Any] = {"heard_s": {}, "pending": _NO_VIEW, "since_s": 0.0, "shown": _NO_VIEW, "number": 0}


def _encode_view(view: View) -> dict[str, Any]:
    return {
        "members": {
            name: {
                "topics": sorted(each.topics),
                "rack": each.rack,
                "queues": [list(q) for q in sorted(each.queues)],
            }
            for name, each in view.members.items()
        },
        "topics": dict(view.topics),
    }


def _decode_view(value: Mapping[str, Any]) -> View:
    return View(
        {
            name: Subscription(
                frozenset(each["topics"]), each["rack"], frozenset((topic, n) for topic, n in each["queues"])
            )
            for name, each in value["members"].items()
        },
        value["topics"],
    )


def _decode_replica(value: Mapping[str, Any]) -> Replica:
    return replace(Replica(_decode_view(value["pending"])), heard_s=value["heard_s"])
