"""By config: every member that asks gets the configured list as it is.

No goal is pursued: whether the queues exist, and whether somebody else reads them too, is up to the person who
wrote the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flyball.groups.policy.broker_queue import BrokerQueue, sort_members


def allocate_by_config(config: Sequence[BrokerQueue], members: Iterable[str]) -> dict[str, list[BrokerQueue]]:
    return {member: list(config) for member in sort_members(members)}
