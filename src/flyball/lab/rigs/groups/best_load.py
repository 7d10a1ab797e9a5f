"""The best possible assignment by load, found exactly: a judge for small groups."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from flyball.groups.policy.load import LoadedGroup


def least_largest_utilisation(group: LoadedGroup) -> float:
    """The largest utilisation of the assignment in which it is least, whatever has to move for it."""
    queues, members = group.allowed.shape
    size = queues * members + 1  # the last variable is the largest utilisation
    rows, low, high = [], [], []
    for queue in range(queues):
        row = np.zeros(size)
        row[queue * members : (queue + 1) * members] = group.allowed[queue]
        rows.append(row)
        low.append(1.0)
        high.append(1.0)
    for member in range(members):
        row = np.zeros(size)
        row[member : queues * members : members] = group.weights / group.capacities[member]
        row[-1] = -1.0
        rows.append(row)
        low.append(-np.inf)
        high.append(0.0)
    limits = np.append(group.allowed.astype(float).reshape(-1), np.inf)
    found = milp(
        np.append(np.zeros(size - 1), 1.0),
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=np.append(np.ones(size - 1, np.int64), 0),
        bounds=Bounds(np.zeros(size), limits),
    )
    assert found.success, found.message
    return float(found.fun)
