"""What kind a failure is, also where Spark hands on nothing but its text.

The source runs in Python processes of Spark. An exception there reaches the driver as a traceback in the message
of a Java exception: its class is lost. So the source writes the kind into the message as a code,
`[flyball:unreachable]`, which is made and read here alone. Everywhere else the kind follows from the classes of
the exception and its causes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flyball.brokers.port import Unconfirmed, Unreachable
from flyball.errors import FlyballError
from flyball.pipeline.policy.failures import FailureKind, JavaCause, kind_of_causes

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_CODE = re.compile(rf"\[flyball:({'|'.join(FailureKind)})\] ")
_MAX_CAUSES = 32


class CodedFailure(FlyballError, RuntimeError):
    """A transient failure in a process of Spark; its message begins with the code of its kind."""


@contextmanager
def coded_failures() -> Iterator[None]:
    """Write the kind of a transient failure that leaves the block into its message.

    >>> with coded_failures():
    ...     raise Unreachable("nobody answers")
    Traceback (most recent call last):
        ...
    flyball.pipeline.run.failure_codes.CodedFailure: [flyball:unreachable] Unreachable: nobody answers
    """
    try:
        yield
    except Exception as error:
        kind = _kind_by_class(error)
        if kind is None:
            raise
        raise CodedFailure(f"[flyball:{kind}] {type(error).__name__}: {error}") from error


def without_code(reason: str) -> str:
    """The reason as people read it.

    >>> without_code("flyball.pipeline.run.failure_codes.CodedFailure: [flyball:unreachable] Unreachable: gone")
    'Unreachable: gone'
    """
    return _CODE.split(reason)[-1]


def kind_of(error: BaseException) -> FailureKind:
    """The kind of a failure in this process, from an exception of ours, of PySpark or of py4j."""
    # PySpark's own exceptions keep the Java exception they come from in private, py4j's in public.
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    return _kind_by_class(error) or _kind_by_java(java)


def kind_of_query(query: StreamingQuery) -> FailureKind:
    """The kind of what ended a query, as far as Spark tells it.

    `query.exception()` keeps the text of most Java exceptions and drops the exceptions themselves.
    """
    return _kind_by_java(query._jsq.exception().get())


def _kind_by_class(error: BaseException) -> FailureKind | None:
    for one in _python_causes(error):
        if isinstance(one, Unreachable):
            return FailureKind.UNREACHABLE
        if isinstance(one, Unconfirmed):
            return FailureKind.UNCONFIRMED
    return None


def _python_causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ if one.__cause__ is not None or one.__suppress_context__ else one.__context__


def _kind_by_java(java: Any) -> FailureKind:
    causes: list[JavaCause] = []
    while java is not None and len(causes) < _MAX_CAUSES:
        code = _CODE.search(java.getMessage() or "")
        if code is not None:
            return FailureKind(code[1])
        causes.append(JavaCause(java.getClass().getName(), _condition(java)))
        java = java.getCause()
    return kind_of_causes(causes)


def _condition(java: Any) -> str | None:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "the exception came from it"
    if not is_instance_of(gateway, java, "org.apache.spark.SparkThrowable"):
        return None
    condition = java.getCondition()
    return None if condition is None else str(condition)
