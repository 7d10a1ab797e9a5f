"""Which failures of a Spark query pass by themselves, and when it is tried again.

A batch that failed is repeated from the checkpoint, and every sink takes it once. So trying again costs time only.
But what is wrong with the program, the config or the data fails again, and is told at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from flyball.brokers.backoff import delays_s

TRIES = 5
_HEALTHY_S = 60.0
_FIRST_S, _LONGEST_S = 0.2, 5.0

# What Spark, its Python workers and the broker's adapters say when a process, a connection or a host was lost or
# too slow. In one application on this machine (local[N]) Spark gives a task one chance only.
_PASSING = (
    "Python worker failed to connect back",
    "Python worker exited unexpectedly",
    "Timed out while waiting for the Python worker",
    "ExecutorLostFailure",
    "FetchFailed",
    "java.io.EOFException",
    "java.net.ConnectException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.nio.channels.ClosedChannelException",
    "flyball.brokers.port.Unreachable",
    "flyball.brokers.port.Unconfirmed",
)


def passes(failure: str) -> bool:
    """Whether what Spark tells about a failure, causes and all, is of the kind that passes.

    >>> passes("Job aborted … java.io.IOException: Python worker failed to connect back.")
    True
    >>> passes("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `laod` cannot be resolved.")
    False
    """
    return any(sign in failure for sign in _PASSING)


@dataclass(frozen=True, slots=True)
class Retrying:
    """Of one query or process: since when it runs, and how often in a row it had failed before."""

    since_s: float
    failures: int = 0

    def begun(self, now_s: float) -> Retrying:
        return replace(self, since_s=now_s)

    def failed(self, now_s: float, *, blameless: bool = False) -> tuple[Retrying, float | None]:
        """When to try again; None: it failed too often in a row.

        Who ran for a while, or was ended from outside (`blameless`), has all its chances again.
        """
        before = 0 if blameless or now_s - self.since_s >= _HEALTHY_S else self.failures
        pauses = delays_s(TRIES, first_s=_FIRST_S, longest_s=_LONGEST_S)
        pause_s = next(islice(pauses, before, None), None)
        return replace(self, failures=before + 1), None if pause_s is None else now_s + pause_s
