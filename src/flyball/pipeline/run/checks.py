"""Checks of arguments that both runners of a pipeline make before they start anything."""

from __future__ import annotations

from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

_MAX_LANES = 64


def check_lane_count(count: int) -> None:
    """
    >>> check_lane_count(0)
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: the number of lanes must be between 1 and 64, got 0
    """
    if not 1 <= count <= _MAX_LANES:
        raise InvalidValue(f"the number of lanes must be between 1 and {_MAX_LANES}, got {count}")


def check_broker_reach(url: str, master: str) -> None:
    """A SQLite file cannot be shared between hosts, so executors elsewhere could not read it.

    >>> check_broker_reach("sqlite:///x.db", "spark://10.0.0.7:7077")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: the embedded broker sqlite:///x.db is a file of this host, which executors of ...
    >>> check_broker_reach("sqlite:///x.db", "local[2]")
    """
    here = master.startswith(("local", "spark://127.0.0.1:", "spark://localhost:"))
    if BrokerUrl.parse(url).scheme == "sqlite" and not here:
        raise InvalidValue(
            f"the embedded broker {url} is a file of this host, which executors of {master} on other hosts cannot "
            "read: use kafka:// or rabbitmq-stream://"
        )
