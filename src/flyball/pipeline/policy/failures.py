"""Which failures of a Spark query are transient, and when it is tried again.

A batch that failed is repeated from the checkpoint, and every sink takes it once. So trying again costs time only.
But what is wrong with the program, the config or the data fails again, and is reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

TRIES = 5
FIRST_S, LONGEST_S = 0.2, 5.0
"""Pauses before these tries: the first one, doubled each time, and the longest."""

_HEALTHY_S = 60.0


class FailureKind(StrEnum):
    UNREACHABLE = "unreachable"
    """the broker could not be reached"""
    UNCONFIRMED = "unconfirmed"
    """the broker did not confirm in time"""
    PROCESS_LOST = "process-lost"
    """a process of Spark, or the connection to one, was lost or too slow"""
    PERMANENT = "permanent"
    """would fail again"""

    @property
    def is_transient(self) -> bool:
        return self is not FailureKind.PERMANENT

    @property
    def is_outage(self) -> bool:
        """Whether the broker is away: there is nothing to do but to wait until it is back."""
        return self in (FailureKind.UNREACHABLE, FailureKind.UNCONFIRMED)


@dataclass(frozen=True, slots=True)
class JavaCause:
    """One exception of a chain in Spark's JVM: its class, and Spark's error condition if it has one."""

    class_name: str
    condition: str | None = None


# Raised when a process or a connection was lost or too slow. A Python worker that was killed shows as an end of
# file, a reset connection or a closed channel, one that does not start in time as a timeout. In one application on
# this machine (local[N]) Spark gives a task one chance only.
_LOST = frozenset(
    {
        "java.io.EOFException",
        "java.io.IOException",
        "java.net.ConnectException",
        "java.net.SocketException",
        "java.net.SocketTimeoutException",
        "java.nio.channels.AsynchronousCloseException",
        "java.nio.channels.ClosedChannelException",
        "org.apache.spark.shuffle.FetchFailedException",
    }
)
# Where no task threw anything, the scheduler gave the stage up because it lost an executor or its output: such an
# exception has neither a cause nor a condition, which errors of queries and data have.
_STAGE_ABORTED = JavaCause("org.apache.spark.SparkException")


def kind_of_causes(causes: Sequence[JavaCause]) -> FailureKind:
    """The kind of a failure by the chain of its causes, outermost first.

    >>> killed = [JavaCause("org.apache.spark.SparkException"), JavaCause("java.io.EOFException")]
    >>> kind_of_causes(killed)
    <FailureKind.PROCESS_LOST: 'process-lost'>
    >>> kind_of_causes([JavaCause("org.apache.spark.sql.AnalysisException", "UNRESOLVED_COLUMN.WITH_SUGGESTION")])
    <FailureKind.PERMANENT: 'permanent'>
    """
    if any(cause.class_name in _LOST for cause in causes) or causes[-1:] == [_STAGE_ABORTED]:
        return FailureKind.PROCESS_LOST
    return FailureKind.PERMANENT


@dataclass(frozen=True, slots=True)
class RetryState:
    """Since when a query or process runs, and how often in a row it had failed before."""

    since_s: float
    failures: int = 0

    def restart(self, now_s: float) -> RetryState:
        return replace(self, since_s=now_s)

    def fail(
        self, now_s: float, pauses_s: Sequence[float], *, external_kill: bool = False, outage: bool = False
    ) -> tuple[RetryState, float | None]:
        """When to try again, by the pauses before tries in a row; None: it failed more often than that.

        After a while of running, or a kill from outside, the count begins anew. In an outage it does not matter.

        >>> RetryState(0.0).fail(1.0, [0.2, 0.4])
        (RetryState(since_s=0.0, failures=1), 1.2)
        >>> RetryState(0.0, failures=2).fail(1.0, [0.2, 0.4])
        (RetryState(since_s=0.0, failures=3), None)
        >>> RetryState(0.0, failures=2).fail(1.0, [0.2, 0.4], outage=True)
        (RetryState(since_s=0.0, failures=2), 1.4)
        """
        before = 0 if external_kill or now_s - self.since_s >= _HEALTHY_S else self.failures
        if outage:
            longest = len(pauses_s) - 1
            return replace(self, failures=min(before, longest) + 1), now_s + pauses_s[min(before, longest)]
        again_s = now_s + pauses_s[before] if before < len(pauses_s) else None
        return replace(self, failures=before + 1), again_s
