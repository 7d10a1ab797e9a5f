"""Sinks: where results, alerts and the other logs of a pipeline are written to besides the broker.

parquet   a folder of files         exactly once
jsonl     a file of JSON lines      exactly once
sqlite    a table                   exactly once
channel   a channel of a broker     exactly once where its logs drop repeats
webhook   a web address             at least once, with an idempotency key
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from flyball.brokers.url import without_login
from flyball.errors import InvalidValue
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks.config import Channel, JsonLines, Parquet, SinkBase, SinkContext, Sqlite, Webhook
from flyball.pipeline.sinks.follower import Follower
from flyball.pipeline.sinks.streams import stream_of

if TYPE_CHECKING:
    from flyball.pipeline.config.pipeline import PipelineConfig

AnySink: TypeAlias = Annotated[Parquet | JsonLines | Sqlite | Channel | Webhook, Field(discriminator="kind")]


def check(sinks: Sequence[SinkBase], config: PipelineConfig) -> None:
    """Raise `InvalidValue`, the key first, at the first sink that cannot work."""
    targets: dict[str, str] = {}
    for number, sink in enumerate(sinks, start=1):
        key = f"sinks[{sink.name}]" if sink.name else f"sinks[number {number}]"
        try:
            stream_of(config, sink.of)
            sink.check()
            if isinstance(sink, Channel) and config.name is None:
                raise InvalidValue(
                    f"channel = {sink.channel!r} may be written by several pipelines, and their names tell their "
                    'messages apart: give this pipeline one, such as name = "lyon"'
                )
        except ValueError as error:
            raise InvalidValue(f"{key}.{error}") from None
        for kind, what in (("name", sink.producer_name), ("target", sink.where)):
            if f"{kind} {what}" in targets:
                other = targets[f"{kind} {what}"]
                shown = without_login(what) if kind == "target" else what
                raise InvalidValue(f"{key} and {other} have the same {kind}, {shown!r}; give one of them another")
            targets[f"{kind} {what}"] = key


class Sinks:
    """All sinks of a pipeline at work; `folder` keeps the positions of those that cannot do it themselves."""

    def __init__(self, url: str, config: PipelineConfig, folder: Path, logs: LogSinks) -> None:
        self._logs, self._read = logs, {stream_of(config, sink.of).log for sink in config.sinks}
        self._followers = [
            Follower(
                sink.producer_name,
                url,
                stream_of(config, sink.of).log,
                sink.target(
                    SinkContext(stream_of(config, sink.of), config.producer_name, url, folder / "sinks", logs)
                ),
            )
            for sink in config.sinks
        ]

    def start(self) -> None:
        for log in sorted(self._read):  # whoever writes it may be a process that has not begun yet
            self._logs.declare(log)
        for follower in self._followers:
            follower.start()

    def check(self) -> None:
        for follower in self._followers:
            follower.check()

    def drain(self) -> None:
        for follower in self._followers:
            follower.drain()

    def stop(self) -> None:
        for follower in self._followers:
            follower.stop()
