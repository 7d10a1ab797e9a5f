"""Checks of arguments that both runners of a pipeline make before they start anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.levels import cursor_name, lanes_name, queue_name, rules_name
from flyball.pipeline.run.worker import lane_role
from flyball.pipeline.split.ticks import ticks_name
from flyball.pipeline.tier1.monitor import monitor_name
from flyball.pipeline.tier2.stage import gate_log

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


def check_partitions(url: str, config: PipelineConfig, lanes: Iterable[int]) -> None:
    """Refuse logs that were created beforehand, with more partitions than one, where their order is needed."""
    for key, log in _ordered_logs(config, lanes):
        with open_log_reader(url, log) as reader:
            try:
                partitions = reader.partitions()
            except NoSuchChannel:
                continue  # the pipeline creates it
        if partitions != 1:
            raise InvalidValue(
                f"the log {log!r} has {partitions} partitions and must have 1, for the pipeline reads it in its "
                f"order: delete it, or choose another name by {key!r} in the config"
            )


def _ordered_logs(config: PipelineConfig, lanes: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Key of the config that names a log, and the log: all that the pipeline reads again, but the input."""
    results, owner = config.results, "results" if config.name is None else "name"
    names = [results, *(name(results) for name in (cursor_name, lanes_name, ticks_name, rules_name))]
    if config.monitors:
        names.append(monitor_name(results))
    for lane in lanes:
        names.append(queue_name(results, lane))
        if config.monitors and config.chosen_runner == "process":
            names.append(f"{monitor_name(results)}.{lane_role(lane)}")
    yield from (("results", name) for name in names)
    yield from ((owner, gate_log(config, rule)) for rule in config.rules if rule.gated)
    yield from (("feeds", channel) for channel in config.feeds)
